// Small helpers to build the page without a framework.

export type Child = Node | string | null | undefined | false;

type Properties<Tag extends keyof HTMLElementTagNameMap> = Partial<
  Omit<HTMLElementTagNameMap[Tag], "style" | "dataset">
> & { class?: string; aria?: Record<string, string>; data?: Record<string, string> };

/** An element with properties and children. */
export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  properties: Properties<Tag> = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const made = document.createElement(tag);
  const { class: name, aria, data, ...rest } = properties;
  if (name) made.className = name;
  for (const [key, value] of Object.entries(aria ?? {})) made.setAttribute(key === "role" ? key : `aria-${key}`, value);
  Object.assign(made.dataset, data ?? {});
  Object.assign(made, rest);
  made.append(...children.filter((child): child is Node | string => child !== null && child !== undefined && child !== false));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  list: "M4 6h16M4 12h16M4 18h10",
  sliders: "M4 7h10M18 7h2M4 17h2M10 17h10M14 4v6M6 14v6",
  compare: "M3 5h8v14H3zM13 5h8v14h-8z",
  link: "M9 15l6-6M8 11l-2.5 2.5a3.5 3.5 0 0 0 5 5L13 16M16 13l2.5-2.5a3.5 3.5 0 0 0-5-5L11 8",
  camera: "M4 8h4l2-3h4l2 3h4v11H4zM12 16.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6z",
  download: "M12 4v11M7 11l5 5 5-5M4 20h16",
  moon: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5z",
  help: "M9.5 9a2.5 2.5 0 1 1 3.5 2.3c-.7.4-1 .9-1 1.7M12 17h.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  play: "M7 5l12 7-12 7z",
  pause: "M8 5v14M16 5v14",
  close: "M6 6l12 12M18 6L6 18",
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  home: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
  left: "M15 5l-7 7 7 7",
  right: "M9 5l7 7-7 7",
} as const;

export type IconName = keyof typeof ICONS;

/** An icon drawn in the color of the text. */
export function icon(name: IconName): SVGElement {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", "0 0 24 24");
  picture.setAttribute("class", "icon");
  picture.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  picture.append(path);
  return picture;
}

/** A button with an icon, its name and its shortcut. */
export function iconButton(name: IconName, title: string, run: () => void, label?: string): HTMLButtonElement {
  const button = element(
    "button",
    { type: "button", class: "button", title, onclick: run, aria: { label: title } },
    icon(name),
    label ? element("span", { class: "button-label" }, label) : null,
  );
  return button;
}

/** A select box; `fill` replaces its options. */
export class Choice {
  readonly root: HTMLLabelElement;
  readonly select: HTMLSelectElement;

  constructor(label: string, onChoice: (value: string) => void) {
    this.select = element("select", { onchange: () => onChoice(this.select.value) });
    this.root = element("label", { class: "field" }, element("span", {}, label), this.select);
  }

  /** Options as [value, text]; a choice among one is shown but cannot be changed. */
  fill(options: readonly (readonly [string, string])[], chosen: string, hideSingle = false): void {
    this.select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
    this.select.value = chosen;
    this.select.disabled = options.length < 2;
    this.root.hidden = options.length === 0 || (hideSingle && options.length < 2);
  }
}

/** A slider with its value beside it. */
export class Range {
  readonly root: HTMLLabelElement;
  readonly input: HTMLInputElement;
  private readonly shown: HTMLOutputElement;

  constructor(label: string, max: number, private readonly format: (value: number) => string, onInput: (value: number) => void) {
    this.shown = element("output");
    this.input = element("input", { type: "range", min: "0", max: String(max), step: "1" });
    this.input.addEventListener("input", () => {
      this.shown.textContent = format(this.input.valueAsNumber);
      onInput(this.input.valueAsNumber);
    });
    this.root = element("label", { class: "field range" }, element("span", {}, label, this.shown), this.input);
  }

  set value(value: number) {
    this.input.value = String(value);
    this.shown.textContent = this.format(value);
  }
}

/** Offers a file for download. */
export function download(content: Blob, name: string): void {
  const address = URL.createObjectURL(content);
  const anchor = element("a", { href: address, download: name });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Runs a function once calls have paused for a while. */
export function debounced<Arguments extends unknown[]>(run: (...args: Arguments) => void, wait: number): (...args: Arguments) => void {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => run(...args), wait);
  };
}
