// What is shown, and how a link says it.

import { isScale, type Scale } from "./scales";

export type Source = "final" | "recorded";

/** One pane: a slide with a map. Names, not numbers, so that a link outlives a restart. */
export interface PaneState {
  slide: string;
  run: string;
  source: Source;
  training: string;
  kind: string;
  part: number;
  /** -1: the last moment */
  moment: number;
  /** center in level-0 pixels, and level-0 pixels per screen pixel; 0: the whole slide */
  x: number;
  y: number;
  zoom: number;
}

export interface ViewState {
  panes: PaneState[];
  active: number;
  linked: boolean;
  map: boolean;
  annotations: boolean;
  /** the slide below a map in gray, so that all color is of the map */
  gray: boolean;
  /** of maps whose values have one sign, such as attention */
  colorMap: string;
  scale: Scale;
  /** of maps whose values have both signs: 0 is in the middle of the colors */
  signedColorMap: string;
  signedScale: Scale;
  /** percent */
  opacity: number;
  /** 0 to 255: tiles below are not drawn */
  threshold: number;
}

export const emptyPane = (): PaneState => ({
  slide: "",
  run: "",
  source: "final",
  training: "",
  kind: "",
  part: 0,
  moment: -1,
  x: 0,
  y: 0,
  zoom: 0,
});

export const initialState = (): ViewState => ({
  panes: [emptyPane()],
  active: 0,
  linked: true,
  map: true,
  annotations: true,
  gray: true,
  colorMap: "viridis",
  scale: "relative",
  signedColorMap: "PuOr_r",
  signedScale: "linear",
  opacity: 55,
  threshold: 0,
});

const PANE_PREFIXES = ["", "b."];

/** The part of the address after `#`. */
export function toHash(state: ViewState): string {
  const parameters = new URLSearchParams();
  state.panes.forEach((pane, place) => {
    const prefix = PANE_PREFIXES[place];
    const set = (name: string, value: string | number, standard: string | number): void => {
      if (value !== standard) parameters.set(prefix + name, String(value));
    };
    parameters.set(`${prefix}slide`, pane.slide);
    set("run", pane.run, "");
    set("source", pane.source, "final");
    set("training", pane.training, "");
    set("kind", pane.kind, "");
    set("part", pane.part, 0);
    set("moment", pane.moment, -1);
    if (pane.zoom > 0) {
      parameters.set(`${prefix}x`, pane.x.toFixed(0));
      parameters.set(`${prefix}y`, pane.y.toFixed(0));
      parameters.set(`${prefix}zoom`, pane.zoom.toPrecision(4));
    }
  });
  const standard = initialState();
  if (state.active) parameters.set("active", String(state.active));
  if (!state.linked) parameters.set("linked", "0");
  if (!state.map) parameters.set("map", "0");
  if (!state.annotations) parameters.set("annotations", "0");
  if (!state.gray) parameters.set("gray", "0");
  if (state.colorMap !== standard.colorMap) parameters.set("colors", state.colorMap);
  if (state.scale !== standard.scale) parameters.set("scale", state.scale);
  if (state.signedColorMap !== standard.signedColorMap) parameters.set("signedcolors", state.signedColorMap);
  if (state.signedScale !== standard.signedScale) parameters.set("signedscale", state.signedScale);
  if (state.opacity !== standard.opacity) parameters.set("opacity", String(state.opacity));
  if (state.threshold !== standard.threshold) parameters.set("threshold", String(state.threshold));
  return parameters.toString();
}

/** The state that a link names; what it does not name, or names wrongly, is as at the start. */
export function fromHash(hash: string): ViewState {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const state = initialState();
  const number = (name: string, low: number, high: number, standard: number): number => {
    const value = Number(parameters.get(name) ?? Number.NaN);
    return Number.isFinite(value) ? Math.min(Math.max(value, low), high) : standard;
  };
  state.panes = PANE_PREFIXES.filter((prefix) => prefix === "" || parameters.has(`${prefix}slide`)).map((prefix) => ({
    slide: parameters.get(`${prefix}slide`) ?? "",
    run: parameters.get(`${prefix}run`) ?? "",
    source: parameters.get(`${prefix}source`) === "recorded" ? "recorded" : "final",
    training: parameters.get(`${prefix}training`) ?? "",
    kind: parameters.get(`${prefix}kind`) ?? "",
    part: number(`${prefix}part`, 0, 1e6, 0),
    moment: number(`${prefix}moment`, -1, 1e6, -1),
    x: number(`${prefix}x`, -1e9, 1e9, 0),
    y: number(`${prefix}y`, -1e9, 1e9, 0),
    zoom: number(`${prefix}zoom`, 0, 1e6, 0),
  }));
  state.active = number("active", 0, state.panes.length - 1, 0);
  state.linked = parameters.get("linked") !== "0";
  state.map = parameters.get("map") !== "0";
  state.annotations = parameters.get("annotations") !== "0";
  state.gray = parameters.get("gray") !== "0";
  state.colorMap = parameters.get("colors") ?? state.colorMap;
  const scale = parameters.get("scale");
  if (isScale(scale)) state.scale = scale;
  state.signedColorMap = parameters.get("signedcolors") ?? state.signedColorMap;
  state.signedScale = parameters.get("signedscale") === "percentile" ? "percentile" : "linear";
  state.opacity = number("opacity", 0, 100, state.opacity);
  state.threshold = number("threshold", 0, 255, state.threshold);
  return state;
}
