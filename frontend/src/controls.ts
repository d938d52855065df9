// The panel that says what the active pane shows, and how.

import type { About } from "./api";
import { Choice, element, Range } from "./dom";
import { kindName } from "./numbers";
import type { Pane } from "./pane";
import { SCALE_NAMES, type Scale, thresholdText } from "./scales";
import type { Source, ViewState } from "./view_state";

export interface ControlActions {
  activate: (pane: number) => void;
  run: (name: string) => void;
  source: (source: Source) => void;
  training: (training: string) => void;
  kind: (kind: string) => void;
  part: (part: number) => void;
  /** colors, scale, opacity, threshold or what is drawn have changed */
  look: () => void;
}

const COLOR_NAMES: Record<string, string> = { PuOr_r: "purple to orange", RdBu_r: "blue to red" };

export class Controls {
  readonly root: HTMLElement;
  private readonly tabs = element("div", { class: "segments", aria: { role: "tablist", label: "Pane" } });
  private readonly run: Choice;
  private readonly source = element("div", { class: "segments" });
  private readonly training: Choice;
  private readonly kind: Choice;
  private readonly part: Choice;
  private readonly colors: Choice;
  private readonly scale: Choice;
  private readonly opacity: Range;
  private readonly threshold: Range;
  private readonly map: HTMLInputElement;
  private readonly annotations: HTMLInputElement;
  private readonly annotationsRow: HTMLElement;
  private readonly gray: HTMLInputElement;
  private readonly note = element("p", { class: "note" });
  private readonly facts = element("dl", { class: "facts" });
  private readonly mapSection: HTMLElement;
  private readonly display: HTMLElement;
  private readonly mapSwitches: HTMLElement[];
  /** whether the values of the map have both signs, and whether its colors show that */
  private signed = false;
  private diverging = false;
  private pane: Pane | null = null;
  private readonly none = element("p", { class: "note" }, "No run is open. Start the viewer with a run folder to see maps: asmil view RUN");

  constructor(private readonly state: ViewState, private readonly about: About, private readonly actions: ControlActions) {
    this.run = new Choice("Run", actions.run);
    this.training = new Choice("Model", actions.training);
    this.kind = new Choice("Map", actions.kind);
    this.part = new Choice("Class, head or token", (value) => actions.part(Number(value)));
    this.colors = new Choice("Colors", (value) => {
      if (this.diverging) state.signedColorMap = value;
      else state.colorMap = value;
      actions.look();
    });
    this.scale = new Choice("Scale", (value) => {
      if (this.signed) state.signedScale = value as Scale;
      else state.scale = value as Scale;
      actions.look();
    });
    this.opacity = new Range("Opacity", 100, (value) => `${value} %`, (value) => {
      state.opacity = value;
      actions.look();
    });
    this.threshold = new Range("Hide tiles below", 255, (value) => thresholdText(value, this.pane?.scale ?? state.scale, this.pane?.map ?? null), (value) => {
      state.threshold = value;
      actions.look();
    });
    this.map = element("input", { type: "checkbox", onchange: () => {
      state.map = this.map.checked;
      actions.look();
    } });
    this.annotations = element("input", { type: "checkbox", onchange: () => {
      state.annotations = this.annotations.checked;
      actions.look();
    } });
    this.gray = element("input", { type: "checkbox", onchange: () => {
      state.gray = this.gray.checked;
      actions.look();
    } });
    this.annotationsRow = element("label", { class: "switch" }, this.annotations, "Annotations");
    this.mapSection = element(
      "section",
      {},
      element("h2", {}, "Map"),
      this.run.root,
      this.source,
      this.training.root,
      this.kind.root,
      this.part.root,
      this.note,
    );
    this.mapSwitches = [
      element("label", { class: "switch" }, this.map, "Map"),
      element("label", { class: "switch", title: "The slide below the map in gray, so that all color is of the map" }, this.gray, "Gray slide"),
    ];
    this.display = element(
      "section",
      {},
      element("h2", {}, "Display"),
      element("div", { class: "switches" }, ...this.mapSwitches, this.annotationsRow),
      this.opacity.root,
      this.threshold.root,
      this.scale.root,
      this.colors.root,
    );
    this.root = element(
      "aside",
      { class: "controls", aria: { label: "Map and display" } },
      this.tabs,
      this.mapSection,
      this.none,
      this.display,
      element("section", {}, element("h2", {}, "Slide"), this.facts),
    );
  }

  /** Show what a pane shows. */
  show(panes: readonly Pane[], pane: Pane): void {
    const { state } = this;
    this.pane = pane;
    this.tabs.hidden = panes.length < 2;
    this.tabs.replaceChildren(
      ...panes.map((one, place) => segment(`${"AB"[place]}: ${one.state.slide || "–"}`, one === pane, () => this.actions.activate(place))),
    );
    this.none.hidden = this.about.runs.length > 0;
    this.mapSection.hidden = this.about.runs.length === 0;
    this.showMap(pane);
    this.map.checked = state.map;
    this.annotations.checked = state.annotations;
    this.gray.checked = state.gray;
    this.annotationsRow.hidden = !panes.some((one) => one.row?.annotated);
    this.opacity.value = state.opacity;
    this.threshold.value = state.threshold;
    this.showScale(pane);
    const maps = this.about.runs.length > 0;
    for (const part of [...this.mapSwitches, this.opacity.root, this.threshold.root]) part.hidden = !maps;
    this.display.hidden = !maps && this.annotationsRow.hidden;
    this.showFacts(pane);
  }

  private showScale(pane: Pane): void {
    this.signed = pane.signed;
    this.diverging = pane.signed && pane.scale === "linear";
    const maps = this.about.runs.length > 0;
    const scales = pane.map?.scales ?? [pane.scale];
    this.scale.fill(maps ? scales.map((name) => [name, SCALE_NAMES[name]] as const) : [], pane.scale);
    const signed = this.about.signed_color_maps;
    const names = Object.keys(this.about.color_maps).filter((name) => signed.includes(name) === this.diverging);
    this.colors.fill(maps ? names.map((name) => [name, COLOR_NAMES[name] ?? name] as const) : [], pane.colorMap);
  }

  private showMap(pane: Pane): void {
    const { maps, state } = pane;
    this.run.fill(this.about.runs.map((run) => [run.name, run.name === run.method ? run.name : `${run.name} (${run.method})`] as const), state.run);
    this.source.replaceChildren(
      segment("Trained model", state.source === "final", () => this.actions.source("final")),
      segment("Over epochs", state.source === "recorded", () => this.actions.source("recorded")),
    );
    const recorded = state.source === "recorded";
    const trainings = recorded ? (maps?.recorded ?? []).map(({ fold, seed }) => [fold, seed] as const) : (maps?.trainings ?? []);
    const options = trainings.map(([fold, seed]) => [`${fold}-${seed}`, `fold ${fold}, seed ${seed}`] as const);
    const mean = trainings.length > 1 ? `mean of ${trainings.length} models` : "";
    this.training.fill(recorded || !mean ? options : [["", mean], ...options], recorded || mean ? state.training : (options[0]?.[0] ?? ""));
    const kinds = recorded ? [] : (maps?.kinds ?? []);
    this.kind.fill(kinds.map(({ kind }) => [kind, kindName(kind)] as const), state.kind);
    const parts = kinds.find(({ kind }) => kind === state.kind)?.parts ?? [];
    this.part.fill(parts.map((name, place) => [String(place), name] as const), String(state.part));
    const failed = maps?.error ? `the trained models cannot be shown: ${maps.error}` : "";
    const note = recorded ? failed : pane.map?.note || (maps?.note ?? "");
    this.note.textContent = note ? `Note: ${note}.` : "";
    this.note.hidden = !note;
  }

  private showFacts(pane: Pane): void {
    const { row, slide, canvas } = pane;
    const facts: [string, string][] = [];
    if (row) facts.push(["Slide", row.name]);
    if (row && row.patient !== row.name) facts.push(["Patient", row.patient]);
    if (row?.site) facts.push(["Site", row.site]);
    if (row?.label) facts.push(["Label", row.label]);
    let name = "Prediction";
    row?.runs.forEach((said, run) => {
      if (said.prediction === undefined) return;
      const number = said.value === null || said.value === undefined ? "" : ` ${said.value.toFixed(3)}`;
      const role = said.role ? ` (${said.role} slide)` : "";
      facts.push([name, `${this.about.runs[run]!.name}: ${said.prediction}${number}${role}`]);
      name = "";
    });
    if (slide) {
      facts.push(["Size", `${slide.size[0]} × ${slide.size[1]} px`]);
      facts.push(["Resolution", slide.mpp ? `${slide.mpp.toFixed(3)} µm/px` : "unknown"]);
      facts.push(["Image", slide.image ? (slide.image.vendor ?? slide.image.reader) : "none: tiles only"]);
    }
    if (canvas) facts.push(["Tiles", `${canvas.places.tiles} of ${canvas.places.tile_px} px`]);
    this.facts.replaceChildren(...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }
}

function segment(text: string, chosen: boolean, run: () => void): HTMLButtonElement {
  return element("button", { type: "button", class: chosen ? "chosen" : "", onclick: run, title: text, aria: { pressed: String(chosen) } }, text);
}
