// A pane: a slide, the run whose map is shown on it, and what is known of its tiles.

import { api, Refusal, type About, type MapList, type Region, type RunAbout, type SlideAbout, type SlideRow, type TileMap } from "./api";
import { element } from "./dom";
import { MapCanvas, type ColorTable } from "./map_canvas";
import { kindName, percentile, significant } from "./numbers";
import { type Scale, valueOf } from "./scales";
import { SlideView } from "./slide_view";
import type { PaneState, ViewState } from "./view_state";

const MAPS_KEPT = 6;

export class Pane {
  readonly root: HTMLDivElement;
  readonly view: SlideView;
  row: SlideRow | null = null;
  slide: SlideAbout | null = null;
  maps: MapList | null = null;
  map: TileMap | null = null;
  canvas: MapCanvas | null = null;
  /** tells the rest of the page that something has arrived */
  onChange: () => void = () => undefined;
  onTile: (tile: number) => void = () => undefined;
  private readonly title = element("div", { class: "pane-title" });
  private readonly message = element("div", { class: "pane-message", aria: { live: "polite" } });
  private readonly tip = element("div", { class: "tip", hidden: true });
  private readonly legend = element("div", { class: "legend", hidden: true });
  private readonly gradient = element("canvas", { width: 256, height: 1, class: "gradient" });
  private readonly gradientFrame = element("div", { class: "gradient-frame" }, this.gradient);
  private readonly legendText = element("div", { class: "legend-scale" });
  private readonly legendTitle = element("div", { class: "legend-title" });
  private readonly legendRange = element("div", { class: "legend-range" });
  private regions: Region[] | null = null;
  private busy = "";
  private problem = "";
  private turn = 0;
  private mapTurn = 0;
  private readonly kept = new Map<string, TileMap>();

  constructor(
    readonly state: PaneState,
    private readonly shared: ViewState,
    private readonly about: About,
    private readonly colors: Record<string, ColorTable>,
    stage: HTMLElement,
  ) {
    this.legend.append(this.legendTitle, this.gradientFrame, this.legendText, this.legendRange);
    this.root = element("div", { class: "pane" }, this.title, this.message, this.legend, this.tip);
    stage.append(this.root);
    this.view = new SlideView(this.root);
    this.view.onHover = (x, y, at) => this.hover(x, y, at);
    this.view.onClick = (x, y) => {
      const tile = this.canvas?.tileAt(x, y) ?? -1;
      if (tile >= 0) this.onTile(tile);
    };
  }

  get run(): RunAbout | null {
    return this.about.runs.find((run) => run.name === this.state.run) ?? null;
  }

  /** Whether something is on its way; nothing of what was shown before it is on screen then. */
  get loading(): boolean {
    return this.busy !== "";
  }

  /** The moment shown, counted from 0. */
  get moment(): number {
    if (!this.map) return 0;
    const { moment } = this.state;
    return moment < 0 || moment >= this.map.moments ? (this.map.kept ?? this.map.moments - 1) : moment;
  }

  /** The values of the moment shown, one byte per tile. */
  get values(): Uint8Array | null {
    if (!this.map) return null;
    const start = this.moment * this.map.tiles;
    return this.map[this.scale]!.subarray(start, start + this.map.tiles);
  }

  /** Whether the values have both signs: then 0 is in the middle of the scale. */
  get signed(): boolean {
    return this.map !== null && this.map.low < 0;
  }

  /** The chosen scale, or the one that fits the map if it does not have that. */
  get scale(): Scale {
    const chosen = this.signed ? this.shared.signedScale : this.shared.scale;
    return this.map === null || this.map.scales.includes(chosen) ? chosen : this.map.scales[0]!;
  }

  /** What is wrong with the run, and what has to be said of the attention that is shown. */
  get caveats(): { alarms: string[]; finding: string } {
    return { alarms: this.maps?.alarms ?? [], finding: this.map?.findings[this.moment] ?? "" };
  }

  get colorMap(): string {
    return this.signed && this.scale === "linear" ? this.shared.signedColorMap : this.shared.colorMap;
  }

  /** Show a slide, with the map of the chosen run. */
  async show(row: SlideRow): Promise<void> {
    const turn = (this.turn += 1);
    this.mapTurn += 1; // a map of the slide before is no longer wanted
    const { x, y, zoom } = this.state;
    this.row = row;
    this.state.slide = row.name;
    this.slide = null;
    this.maps = null;
    this.map = null;
    this.canvas = null;
    this.regions = null;
    this.kept.clear();
    this.view.close();
    this.tell("Opening the slide…");
    this.onChange();
    try {
      const about = await api.slide(row);
      if (turn !== this.turn) return;
      this.slide = about;
      this.problem = about.image_error ?? "";
      await this.view.open(row, about, zoom > 0 ? { x, y, zoom } : null);
      if (turn !== this.turn) return;
      if (row.annotated) {
        void api.annotations(row).then((regions) => {
          if (turn === this.turn) {
            this.regions = regions;
            this.paint();
          }
        }, (error: unknown) => {
          if (turn !== this.turn) return;
          this.problem = reason(error);
          this.describe();
        });
      }
      await this.loadMap(true);
    } catch (error) {
      if (turn === this.turn) this.fail(error);
    }
  }

  destroy(): void {
    this.turn += 1;
    this.mapTurn += 1;
    this.view.destroy();
    this.root.remove();
  }

  /** Show what a link names; only what differs is loaded. */
  async go(row: SlideRow, wanted: PaneState): Promise<void> {
    const before = { ...this.state };
    Object.assign(this.state, wanted);
    if (before.slide !== wanted.slide || !this.slide) return this.show(row);
    if (wanted.zoom > 0) this.view.move(wanted);
    else this.view.home();
    const differs = (["run", "source", "training", "kind", "part"] as const).filter((name) => before[name] !== wanted[name]);
    if (differs.length) await this.loadMap(differs.includes("run"));
  }

  /** Read the chosen map; `anew` also where the tiles are and which maps there are. */
  async loadMap(anew = false): Promise<void> {
    const { row } = this;
    if (!row || !this.slide) return;
    const turn = (this.mapTurn += 1);
    const current = (): boolean => turn === this.mapTurn;
    try {
      if (anew) {
        this.maps = null;
        this.map = null;
        this.canvas = null;
        this.chooseRun(row);
        this.paint();
        this.tell("Reading the tiles…");
        this.onChange();
        if (!row.features && this.run === null) {
          this.problem ||= this.about.runs.length ? `${row.name} has no features, so there is no map of it.` : "";
          this.changed();
          return;
        }
        const places = await api.places(row, this.run);
        if (!current()) return;
        this.canvas = new MapCanvas(places);
      } else if (!this.kept.has(this.mapKey())) {
        // the map on screen is not the one that the menus name now
        this.map = null;
        this.tell("Reading the map…");
        this.paint();
        this.onChange();
      }
      const { run } = this;
      if (run === null) {
        this.changed();
        return;
      }
      const needsModels = this.state.source === "final";
      if (!this.maps || (needsModels && !this.maps.complete)) {
        this.tell(needsModels ? "Loading the models…" : "Reading the map…");
        const maps = await api.maps(row, run, needsModels);
        if (!current()) return;
        this.maps = maps;
      }
      this.tell("Reading the map…");
      this.chooseMap(this.maps);
      const found = await this.readMap(row, run, this.maps);
      if (!current()) return;
      this.map = found;
      if (found) this.problem = this.slide.image_error ?? "";
      this.changed();
    } catch (error) {
      if (!current()) return;
      this.map = null;
      this.fail(error);
    }
  }

  /** Paint the map with the colors, threshold and moment that are chosen. */
  paint(): void {
    const colors = this.colors[this.colorMap] ?? Object.values(this.colors)[0]!;
    const { values } = this;
    if (this.canvas) {
      const plain = !this.map && !this.slide?.image;
      if (values) this.canvas.paint(values, colors, this.shared.threshold);
      else if (plain) this.canvas.paint(new Uint8Array(this.canvas.places.tiles).fill(128), this.colors["gray"]!, 0);
      const drawn = this.shared.map && (values !== null || plain);
      this.view.overlay.map = drawn ? this.canvas : null;
    } else {
      this.view.overlay.map = null;
    }
    this.view.overlay.opacity = this.shared.opacity / 100;
    this.view.gray = this.shared.gray && this.shared.map && (values !== null || (this.loading && this.run !== null));
    this.view.overlay.regions = this.shared.annotations ? this.regions : null;
    this.view.draw();
  }

  /** What is shown, in words: the title, a message, and the legend. */
  describe(): void {
    this.describeTitle();
    const text = this.busy || this.problem || (this.maps?.error && !this.map ? this.maps.error : "");
    this.message.textContent = text;
    this.message.hidden = !text;
    this.message.classList.toggle("busy", this.busy !== "");
    this.message.classList.toggle("aside", this.busy === "" && Boolean(this.slide?.image || this.map));
    this.describeLegend();
  }

  /** The title alone, which changes with every epoch that is played. */
  describeTitle(): void {
    const { row, map, run } = this;
    const parts: string[] = [];
    if (run) parts.push(run.name === run.method ? run.name : `${run.name} (${run.method})`);
    if (this.state.training) parts.push(`fold ${this.state.training.replace("-", ", seed ")}`);
    if (map && map.epochs.length) {
      parts.push(`epoch ${map.epochs[this.moment]}`);
      this.describeEnds();
    }
    this.title.replaceChildren(
      element("strong", {}, row?.name ?? ""),
      row?.label ? element("span", { class: "chip" }, row.label) : "",
      element("span", {}, parts.join(" · ")),
      ...this.caveats.alarms.map((alarm) => element("div", { class: "alarm" }, `Alarm: ${alarm}`)),
      this.caveats.finding ? element("div", { class: "finding" }, `Note: ${this.caveats.finding}.`) : "",
    );
    this.root.classList.toggle("alarmed", this.caveats.alarms.length > 0 || this.caveats.finding !== "");
  }

  /** The lines of the legend, also for a screenshot. */
  legendLines(): string[] {
    const { map } = this;
    if (!map) return [];
    const part = this.maps?.kinds.find((kind) => kind.kind === map.kind)?.parts[this.state.part];
    const name = map.kind === "attention row" ? "attention" : map.kind === "tile probability" ? "probability" : kindName(map.kind);
    const what = map.explained ? `${name} for ${map.explained}` : part ? `${name} of ${part}` : name;
    const how = { relative: ", 1 = average tile", percentile: ", by rank", linear: "" }[this.scale];
    return [what + how, ...this.legendEnds(map)];
  }

  /** The lowest and the highest tile of what is shown, in the unit of the scale. */
  legendExtent(): string {
    const { map } = this;
    if (!map) return "";
    const at = this.moment * map.shown;
    const average = this.scale === "relative" ? (map.averages?.[this.moment] ?? 1) : 1;
    const ends = [map.bottom[at]!, map.top[at]!].map((tile) => significant(valueOf(map, this.moment, tile) / average));
    return `here ${map.exact ? "" : "about "}${ends[0]} to ${ends[1]}`;
  }

  /** Both ends and the middle of the scale in numbers. */
  private legendEnds(map: TileMap): [string, string, string] {
    if (this.scale === "percentile") return ["lowest", "", "highest"];
    if (this.scale === "relative") return [`≤ ${map.relative_ends[0]}`, "1", `≥ ${map.relative_ends[1]}`];
    return [significant(map.low), this.signed ? "0" : "", significant(map.high)];
  }

  get gradientCanvas(): HTMLCanvasElement {
    return this.gradient;
  }

  private describeLegend(): void {
    const lines = this.legendLines();
    this.legend.hidden = lines.length === 0 || !this.shared.map;
    if (this.legend.hidden) return;
    this.legendTitle.textContent = lines[0]!;
    this.describeEnds();
    const colors = this.colors[this.colorMap] ?? Object.values(this.colors)[0]!;
    this.gradient.style.opacity = String(this.view.mapOpacity);
    const image = new ImageData(256, 1);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.set(colors);
    const left = this.shared.threshold;
    for (let code = 0; code < left; code += 1) pixels[code] = 0;
    this.gradient.getContext("2d")!.putImageData(image, 0, 0);
    this.legend.title = this.map?.note ?? "";
  }

  private describeEnds(): void {
    const [, ...ends] = this.legendLines();
    this.legendText.replaceChildren(...ends.map((end) => element("span", {}, end)));
    this.legendRange.textContent = this.legendExtent();
  }

  private hover(x: number, y: number, at: { x: number; y: number } | null): void {
    const tile = at && this.canvas && this.map ? this.canvas.tileAt(x, y) : -1;
    this.tip.hidden = tile < 0 || !at;
    if (tile < 0 || !at) return;
    this.tip.textContent = `${this.valueText(tile)} · ${percentile(this.map!.percentile[this.moment * this.map!.tiles + tile]!)}`;
    const right = at.x + 24 + this.tip.offsetWidth > this.root.clientWidth;
    this.tip.style.transform = `translate(${at.x + (right ? -16 : 16)}px, ${at.y + 18}px)${right ? " translateX(-100%)" : ""}`;
  }

  /** What the map says of a tile, in words. */
  valueText(tile: number): string {
    const { map } = this;
    if (!map) return "";
    const value = valueOf(map, this.moment, tile);
    const about = map.exact ? "" : "≈ ";
    const average = map.averages?.[this.moment];
    const times = average ? ` (${about}${significant(value / average)} × the average tile)` : "";
    return `${kindName(map.kind)} ${about}${significant(value)}${times}`;
  }

  private chooseRun(row: SlideRow): void {
    const known = this.about.runs.some((run) => run.name === this.state.run);
    if (!known) this.state.run = row.features || row.runs.length ? (this.about.runs[0]?.name ?? "") : "";
  }

  /** Make the choice one that there is. */
  private chooseMap(maps: MapList): void {
    const { state } = this;
    if (state.source === "final" && maps.error && maps.recorded.length) state.source = "recorded";
    if (state.source === "recorded") {
      const known = maps.recorded.map(({ fold, seed }) => `${fold}-${seed}`);
      if (!known.includes(state.training)) state.training = known[0] ?? "";
      return;
    }
    const trainings = maps.trainings.map(([fold, seed]) => `${fold}-${seed}`);
    if (state.training && !trainings.includes(state.training)) state.training = "";
    const kind = maps.kinds.find((one) => one.kind === state.kind) ?? maps.kinds[0];
    state.kind = kind?.kind ?? "";
    if (state.part >= Math.max(1, kind?.parts.length ?? 0)) state.part = 0;
  }

  private mapKey(): string {
    const { run, source, training, kind, part } = this.state;
    return [run, source, training, kind, part].join("|");
  }

  private async readMap(row: SlideRow, run: RunAbout, maps: MapList): Promise<TileMap | null> {
    const { source, training, kind, part } = this.state;
    if (source === "recorded" ? !maps.recorded.length : maps.error || !kind) return null;
    const key = this.mapKey();
    const known = this.kept.get(key);
    if (known) return known;
    const found = await api.map(row, run, { source, training, kind, part });
    if (found.tiles !== this.canvas?.places.tiles) throw new Refusal("The map and the tiles of this slide do not fit together.");
    this.kept.set(key, found);
    if (this.kept.size > MAPS_KEPT) this.kept.delete(this.kept.keys().next().value!);
    return found;
  }

  private tell(busy: string): void {
    this.busy = busy;
    this.describe();
  }

  private fail(error: unknown): void {
    this.problem = reason(error);
    this.changed();
  }

  private changed(): void {
    this.busy = "";
    this.paint();
    this.describe();
    this.onChange();
  }
}

const reason = (error: unknown): string => (error instanceof Error ? error.message : String(error));
