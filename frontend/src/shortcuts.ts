// Keys, and the panel that lists them.

import { element, icon } from "./dom";

export interface Shortcut {
  keys: string[];
  shown: string;
  what: string;
  run: () => void;
}

/** Listens to the keys, except while somebody types. */
export function listen(shortcuts: readonly Shortcut[]): void {
  const byKey = new Map(shortcuts.flatMap((one) => one.keys.map((key) => [key, one] as const)));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target as HTMLElement;
    const typing = target.closest("input:not([type=range]):not([type=checkbox]), select, textarea, dialog[open]");
    if (typing) {
      if (event.key === "Escape" && target instanceof HTMLInputElement) target.blur();
      return;
    }
    const found = byKey.get(event.key);
    if (!found) return;
    event.preventDefault();
    found.run();
  });
}

/** The help panel. */
export function helpDialog(shortcuts: readonly Shortcut[], version: string): HTMLDialogElement {
  const dialog: HTMLDialogElement = element(
    "dialog",
    { class: "help" },
    element("button", { type: "button", class: "button close", title: "Close (Esc)", onclick: () => dialog.close() }, icon("close")),
    element("h2", {}, "Keys"),
    element("dl", { class: "keys" }, ...shortcuts.map(({ shown, what }) => element("div", {}, element("dt", {}, element("kbd", {}, shown)), element("dd", {}, what)))),
    element("p", {}, "Drag to move, scroll or pinch to zoom, double-click to zoom in. Point at a tile to read its value, click it to see it at full resolution."),
    element("p", { class: "note" }, "A map shows what was computed: one color per tile, no smoothing. Opacity is the same for every tile. Attention is shown relative to the average tile on one scale for all slides and runs, so colors can be compared. With colors by rank, compare only tiles of the same slide: the order is shown, not how far apart the values are."),
    element("p", { class: "note" }, `asmil ${version}. For research, not for diagnosis.`),
  );
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return dialog;
}
