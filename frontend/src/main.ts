// The page of `asmil view`: puts the parts together and keeps the address in step with what is shown.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { api, type About, type SlideRow } from "./api";
import { Connection } from "./connection";
import { Controls } from "./controls";
import { debounced, download, element, iconButton } from "./dom";
import { Link } from "./linking";
import { colorTable, type ColorTable } from "./map_canvas";
import { counted } from "./numbers";
import { Pane } from "./pane";
import { screenshot } from "./screenshot";
import { helpDialog, listen, type Shortcut } from "./shortcuts";
import { SlideList } from "./slide_list";
import { TileDialog, TileStrip } from "./tiles";
import { Timeline } from "./timeline";
import { emptyPane, fromHash, toHash, type PaneState, type ViewState } from "./view_state";

const ZOOM_STEP = 1.6;
const THEMES = ["auto", "light", "dark"] as const;
const DARK = matchMedia("(prefers-color-scheme: dark)");
const chosenTheme = () => (localStorage.getItem("asmil-theme") ?? "auto") as (typeof THEMES)[number];

class Page {
  private readonly state: ViewState;
  private readonly colors: Record<string, ColorTable>;
  private readonly list: SlideList;
  private readonly controls: Controls;
  private readonly timeline = new Timeline();
  private readonly strip = new TileStrip();
  private readonly dialog = new TileDialog();
  private readonly connection: Connection;
  private readonly stage = element("div", { class: "stage" });
  private readonly toast = element("div", { class: "toast", hidden: true, aria: { live: "polite" } });
  private readonly body: HTMLElement;
  private readonly help: HTMLDialogElement;
  private readonly linkButton: HTMLButtonElement;
  private readonly compareButton: HTMLButtonElement;
  private readonly panes: Pane[] = [];
  private link: Link | null = null;
  /** the pane that the user moves; the other one follows it */
  private leader: Pane | null = null;
  private readonly saveHash = debounced(() => this.writeHash(), 250);

  constructor(private readonly about: About) {
    this.state = fromHash(location.hash);
    this.colors = Object.fromEntries(Object.entries(about.color_maps).map(([name, table]) => [name, colorTable(table)]));
    if (!(this.state.colorMap in this.colors)) this.state.colorMap = Object.keys(this.colors)[0]!;
    this.list = new SlideList(about);
    this.list.onChoice = (row) => {
      this.showSlide(row);
      this.body.classList.remove("list-open");
    };
    this.controls = new Controls(this.state, about, {
      activate: (pane) => this.activate(pane),
      run: (name) => this.choose({ run: name, training: "", kind: "", part: 0, moment: -1 }, true),
      source: (source) => this.choose({ source, training: "", moment: -1 }),
      training: (training) => this.choose({ training }),
      kind: (kind) => this.choose({ kind, part: 0 }),
      part: (part) => this.choose({ part }),
      look: () => this.look(),
    });
    this.timeline.onMoment = (moment) => this.showMoment(moment);
    this.timeline.onStopped = () => this.settle();
    this.strip.onTile = (tile) => this.openTile(this.active, tile, true);
    this.connection = new Connection(about, () => this.reconnect(), () => this.reload());
    const shortcuts = this.shortcuts();
    this.help = helpDialog(shortcuts, about.version);
    this.compareButton = iconButton("compare", "Compare side by side (c)", () => this.toggleCompare(), "Compare");
    this.linkButton = iconButton("link", "Move both together (l)", () => this.toggleLink(), "Linked");
    this.body = element(
      "div",
      { class: "page" },
      element(
        "header",
        { class: "bar" },
        iconButton("list", "Slides", () => this.body.classList.toggle("list-open"), "Slides"),
        element("h1", {}, element("b", {}, "asmil"), element("span", {}, title(about))),
        element("div", { class: "spacer" }),
        this.compareButton,
        this.linkButton,
        iconButton("camera", "Screenshot (s)", () => void this.screenshot()),
        iconButton("download", "GeoJSON of the map for QuPath (g)", () => void this.geojson()),
        iconButton("moon", "Light or dark (t)", () => this.nextTheme()),
        iconButton("help", "Help (?)", () => this.help.showModal()),
        iconButton("sliders", "Map and display", () => this.body.classList.toggle("controls-open"), "Map"),
      ),
      this.connection.root,
      this.list.root,
      element(
        "main",
        { class: "center" },
        element(
          "div",
          { class: "stage-frame" },
          this.stage,
          element(
            "div",
            { class: "zoom-buttons" },
            iconButton("plus", "Zoom in (+)", () => this.zoom(ZOOM_STEP)),
            iconButton("minus", "Zoom out (-)", () => this.zoom(1 / ZOOM_STEP)),
            iconButton("home", "Whole slide (0)", () => this.home()),
          ),
        ),
        this.timeline.root,
        this.strip.root,
      ),
      this.controls.root,
      this.toast,
      this.dialog.root,
      this.help,
    );
    document.body.replaceChildren(this.body);
    this.applyTheme();
    DARK.addEventListener("change", () => this.applyTheme());
    listen(shortcuts);
    for (const pane of this.state.panes) this.addPane(pane);
    this.activate(this.state.active);
    for (const pane of this.panes) void pane.show(this.rowOf(pane.state));
    this.list.choose(this.active.state.slide);
    if (about.notes.length) {
      const more = about.notes.length - 1;
      this.tell(more ? `${about.notes[0]}\n${counted(more, "more note")} in the terminal` : about.notes[0]!, 12_000);
    }
    window.addEventListener("popstate", () => this.restore(fromHash(location.hash)));
    // a picture that cannot be loaded may be that of a slide that has changed
    document.addEventListener("error", (event) => this.pictureFailed(event.target), true);
  }

  /** The slide that a link names, or the first one; then the rest of the link means nothing. */
  private rowOf(state: PaneState): SlideRow {
    const row = this.about.slides.find((one) => one.name === state.slide) ?? firstSlide(this.about);
    if (state.slide && row.name !== state.slide) Object.assign(state, emptyPane(), { run: state.run });
    return row;
  }

  private writeHash(): void {
    history.replaceState(null, "", `#${toHash(this.state)}`);
  }

  private reload(): void {
    this.writeHash();
    location.reload();
  }

  /** Do something that Back undoes: the view as it is now stays in the history. */
  private step(change: () => void): void {
    this.writeHash();
    change();
    history.pushState(null, "", `#${toHash(this.state)}`);
  }

  /** Show what the address says after Back or Forward. */
  private restore(wanted: ViewState): void {
    this.timeline.stop();
    this.dialog.root.close();
    const { panes, ...look } = wanted;
    Object.assign(this.state, look);
    if (!(this.state.colorMap in this.colors)) this.state.colorMap = Object.keys(this.colors)[0]!;
    while (this.panes.length > panes.length) this.removePane(this.panes.length - 1);
    panes.forEach((state, place) => {
      const row = this.rowOf(state);
      const known = this.panes[place];
      if (known) {
        void known.go(row, { ...state, slide: row.name });
      } else {
        this.state.panes.push(state);
        void this.addPane(state).show(row);
      }
    });
    this.linkButton.classList.toggle("on", this.state.linked);
    this.activate(this.state.active);
    this.list.choose(this.active.state.slide);
    this.look();
  }

  private pictureFailed(target: EventTarget | null): void {
    const slide = target instanceof HTMLImageElement ? /\/api\/slides\/(\d+)\//.exec(target.src)?.[1] : undefined;
    if (slide !== undefined) this.slideFailed(this.about.slides[Number(slide)]!);
  }

  /** Ask for the slide itself: the server tells if it is another one now. */
  private slideFailed(row: SlideRow): void {
    this.connection.check();
    api.slide(row).catch(() => undefined);
  }

  private get active(): Pane {
    return this.panes[this.state.active]!;
  }

  private addPane(state: PaneState): Pane {
    const pane = new Pane(state, this.state, this.about, this.colors, this.stage);
    pane.onChange = () => {
      if (pane === this.active) this.refresh();
      else this.controls.show(this.panes, this.active);
      this.align();
      this.saveHash();
    };
    pane.onTile = (tile) => this.openTile(pane, tile);
    pane.view.onTileFailed = () => pane.row && this.slideFailed(pane.row);
    pane.view.onMove = (position) => {
      Object.assign(pane.state, position);
      if (pane === this.leader && this.state.linked) this.link?.follow(pane.view);
      this.saveHash();
    };
    pane.root.addEventListener("pointerdown", () => this.activate(this.panes.indexOf(pane)), true);
    for (const event of ["pointerdown", "pointerenter", "wheel"]) {
      pane.root.addEventListener(event, () => (this.leader = pane), { capture: true, passive: true });
    }
    this.leader ??= pane;
    this.panes.push(pane);
    this.stage.dataset["panes"] = String(this.panes.length);
    this.link =
      this.panes.length === 2
        ? new Link([this.panes[0]!.view, this.panes[1]!.view], () => this.panes[0]!.state.slide === this.panes[1]!.state.slide)
        : null;
    this.compareButton.classList.toggle("on", this.panes.length === 2);
    this.linkButton.hidden = this.panes.length < 2;
    this.linkButton.classList.toggle("on", this.state.linked);
    return pane;
  }

  /** Bring both panes together again after one of them shows something else. */
  private align(): void {
    if (!this.link || !this.leader) return;
    this.link.hold();
    if (this.state.linked) this.link.follow(this.leader.view);
  }

  private activate(place: number): void {
    if (place < 0 || place >= this.panes.length) return;
    const changed = place !== this.state.active;
    this.state.active = place;
    this.panes.forEach((pane, at) => pane.root.classList.toggle("active", at === place && this.panes.length > 1));
    if (changed) {
      this.timeline.stop();
      this.list.choose(this.active.state.slide);
      this.saveHash();
    }
    this.refresh();
  }

  private showSlide(row: SlideRow): void {
    if (row.name === this.active.state.slide && this.active.slide) return;
    this.timeline.stop();
    this.step(() => {
      Object.assign(this.active.state, { moment: -1, x: 0, y: 0, zoom: 0 });
      void this.active.show(row);
    });
    this.list.choose(row.name, false);
  }

  private choose(changes: Partial<PaneState>, anew = false): void {
    this.timeline.stop();
    Object.assign(this.active.state, changes);
    void this.active.loadMap(anew);
  }

  private showMoment(moment: number): void {
    const pane = this.active;
    pane.state.moment = moment;
    pane.paint();
    pane.describeTitle();
    this.timeline.mark();
    const other = this.panes.find((one) => one !== pane);
    if (other?.map?.epochs.length && pane.map && other.map !== pane.map && other.state.source === "recorded" && this.state.linked) {
      const wanted = pane.map.epochs[moment]!;
      const gaps = other.map.epochs.map((epoch) => Math.abs(epoch - wanted));
      const sameTraining = other.state.run === pane.state.run && other.state.training === pane.state.training && other.state.slide === pane.state.slide;
      if (!sameTraining) {
        other.state.moment = gaps.indexOf(Math.min(...gaps));
        other.paint();
        other.describeTitle();
      }
    }
  }

  private settle(): void {
    this.strip.show(this.active);
    this.saveHash();
  }

  private look(): void {
    for (const pane of this.panes) {
      pane.paint();
      pane.describe();
    }
    this.controls.show(this.panes, this.active);
    this.saveHash();
  }

  private refresh(): void {
    this.controls.show(this.panes, this.active);
    this.timeline.show(this.active);
    this.strip.show(this.active);
  }

  private openTile(pane: Pane, tile: number, goThere = false): void {
    if (goThere && pane.canvas) {
      const { coords, tile_px: side } = pane.canvas.places;
      this.leader = pane;
      pane.view.move({ x: coords[tile * 2]! + side / 2, y: coords[tile * 2 + 1]! + side / 2, zoom: Math.max(side / 300, 0.25) });
    }
    this.dialog.open(pane, tile);
  }

  private toggleCompare(): void {
    this.timeline.stop();
    this.step(() => this.changeCompare());
  }

  /** One pane remains. */
  private removePane(place: number): void {
    this.panes.splice(place, 1)[0]!.destroy();
    this.state.panes = [this.panes[0]!.state];
    this.leader = this.panes[0]!;
    this.state.active = 0;
    this.link = null;
    this.stage.dataset["panes"] = "1";
    this.compareButton.classList.remove("on");
    this.linkButton.hidden = true;
  }

  private changeCompare(): void {
    if (this.panes.length === 2) {
      this.removePane(1 - this.state.active);
      this.activate(0);
    } else {
      const first = this.active;
      const state: PaneState = { ...first.state, ...first.view.position };
      const other = this.about.runs.find((run) => run.name !== state.run);
      if (other) Object.assign(state, { run: other.name, training: "", kind: "", part: 0, moment: -1 });
      this.state.panes.push(state);
      const pane = this.addPane(state);
      if (first.row) void pane.show(first.row);
      this.activate(1);
    }
  }

  private toggleLink(): void {
    if (!this.link) return;
    this.state.linked = !this.state.linked;
    this.linkButton.classList.toggle("on", this.state.linked);
    if (this.state.linked) {
      this.leader = this.active;
      this.align();
    }
    this.tell(this.state.linked ? "Both panes move together" : "Panes move on their own");
    this.saveHash();
  }

  private async screenshot(): Promise<void> {
    const name = [...new Set(this.panes.map((pane) => pane.state.slide))].join("_");
    download(await screenshot(this.panes), `${fileName(name)}.png`);
  }

  private async geojson(): Promise<void> {
    const pane = this.active;
    if (!pane.map || !pane.row || pane.run === null) {
      this.tell("There is no map to save: choose a run that has one.");
      return;
    }
    const { source, training, kind, part } = pane.state;
    this.tell("Writing GeoJSON…");
    try {
      const content = await api.geojson(pane.row, pane.run, { source, training, kind, part }, pane.moment, pane.scale, this.state.threshold);
      download(content, `${fileName(pane.row.name)}.geojson`);
      this.tell("GeoJSON saved. In QuPath: drag the file onto the open image.");
    } catch (error) {
      this.tell(error instanceof Error ? error.message : String(error), 8000);
    }
  }

  private reconnect(): void {
    for (const pane of this.panes) {
      pane.view.reload();
      if (!pane.slide && pane.row) void pane.show(pane.row);
      else if (!pane.map) void pane.loadMap(true);
    }
    this.tell("Connected again");
  }

  private nextTheme(): void {
    const next = THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]!;
    localStorage.setItem("asmil-theme", next);
    this.applyTheme();
    this.tell(`Theme: ${next}`);
  }

  private applyTheme(): void {
    const theme = chosenTheme();
    const dark = theme === "dark" || (theme === "auto" && DARK.matches);
    document.documentElement.dataset["theme"] = dark ? "dark" : "light";
    this.timeline.restyle();
  }

  private toggle(what: "map" | "annotations" | "gray"): void {
    this.state[what] = !this.state[what];
    this.look();
  }

  private change(what: "opacity" | "threshold", by: number, most: number): void {
    this.state[what] = Math.min(Math.max(this.state[what] + by, 0), most);
    this.look();
  }

  private zoom(factor: number): void {
    this.leader = this.active;
    this.active.view.zoomBy(factor);
  }

  private home(): void {
    this.leader = this.active;
    this.active.view.home();
  }

  private walk(step: number): void {
    const row = this.list.neighbor(this.active.state.slide, step);
    if (row && row.name !== this.active.state.slide) {
      this.showSlide(row);
      this.list.choose(row.name);
    }
  }

  private tell(text: string, time = 3000): void {
    this.toast.textContent = text;
    this.toast.hidden = false;
    clearTimeout(this.toastTimer);
    this.toastTimer = window.setTimeout(() => (this.toast.hidden = true), time);
  }

  private toastTimer = 0;

  private shortcuts(): Shortcut[] {
    return [
      { keys: ["/"], shown: "/", what: "search slides", run: () => {
        this.body.classList.add("list-open");
        this.list.search.focus();
      } },
      { keys: ["ArrowDown", "j"], shown: "↓ or j", what: "next slide", run: () => this.walk(1) },
      { keys: ["ArrowUp", "k"], shown: "↑ or k", what: "previous slide", run: () => this.walk(-1) },
      { keys: [" "], shown: "space", what: "play how attention evolved", run: () => this.timeline.toggle() },
      { keys: ["ArrowRight"], shown: "→", what: "next epoch", run: () => this.timeline.step(1) },
      { keys: ["ArrowLeft"], shown: "←", what: "previous epoch", run: () => this.timeline.step(-1) },
      { keys: ["m"], shown: "m", what: "map on or off", run: () => this.toggle("map") },
      { keys: ["a"], shown: "a", what: "annotations on or off", run: () => this.toggle("annotations") },
      { keys: ["b"], shown: "b", what: "slide in gray, or in its colors", run: () => this.toggle("gray") },
      { keys: ["]"], shown: "]", what: "map more opaque", run: () => this.change("opacity", 10, 100) },
      { keys: ["["], shown: "[", what: "map more transparent", run: () => this.change("opacity", -10, 100) },
      { keys: ["."], shown: ".", what: "hide more tiles", run: () => this.change("threshold", 13, 255) },
      { keys: [","], shown: ",", what: "hide fewer tiles", run: () => this.change("threshold", -13, 255) },
      { keys: ["c"], shown: "c", what: "compare side by side", run: () => this.toggleCompare() },
      { keys: ["l"], shown: "l", what: "move both panes together or not", run: () => this.toggleLink() },
      { keys: ["1"], shown: "1", what: "first pane", run: () => this.activate(0) },
      { keys: ["2"], shown: "2", what: "second pane", run: () => this.activate(1) },
      { keys: ["+", "="], shown: "+", what: "zoom in", run: () => this.zoom(ZOOM_STEP) },
      { keys: ["-"], shown: "-", what: "zoom out", run: () => this.zoom(1 / ZOOM_STEP) },
      { keys: ["0"], shown: "0", what: "whole slide", run: () => this.home() },
      { keys: ["s"], shown: "s", what: "screenshot", run: () => void this.screenshot() },
      { keys: ["g"], shown: "g", what: "GeoJSON for QuPath", run: () => void this.geojson() },
      { keys: ["t"], shown: "t", what: "light, dark or as the system", run: () => this.nextTheme() },
      { keys: ["?"], shown: "?", what: "this help", run: () => this.help.showModal() },
    ];
  }
}

/** What is open: the names of the runs, or of the folder. */
function title(about: About): string {
  if (!about.runs.length) return about.title;
  return `${about.runs.length === 1 ? "run" : "runs"} ${about.runs.map((run) => run.name).join(", ")}`;
}

/** The slide to begin with: one that the models were not trained on. */
function firstSlide(about: About): SlideRow {
  const seen = (row: SlideRow): boolean => row.runs.some((run) => run.role === "train");
  return about.slides.find((row) => row.features && row.runs.length > 0 && !seen(row)) ?? about.slides[0]!;
}

const fileName = (name: string): string => name.replace(/[^\w.-]+/g, "_");

async function start(): Promise<void> {
  try {
    const page = new Page(await api.about());
    Object.assign(window, { asmilViewer: page });
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    document.body.replaceChildren(element("p", { class: "fatal" }, text));
  }
}

void start();
