// The slider over training epochs, beside the curve of how much attention moved.

import uPlot from "uplot";
import { element, icon } from "./dom";
import type { Pane } from "./pane";
import { epoch, significant } from "./numbers";

const MOMENTS_PER_SECOND = 6;

/** Steps between the ticks of the axis: epochs are whole numbers. */
const WHOLE_EPOCHS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

export class Timeline {
  readonly root: HTMLElement;
  /** called with the moment to show */
  onMoment: (moment: number) => void = () => undefined;
  onStopped: () => void = () => undefined;
  playing = false;
  private readonly slider = element("input", { type: "range", min: "0", step: "1", aria: { label: "Epoch" } });
  private readonly label = element("output", { class: "epoch" });
  private readonly button = element("button", { type: "button", class: "button play", title: "Play (space)" });
  private readonly chart = element("div", { class: "chart" });
  private readonly body: HTMLElement;
  private readonly why = element("p", { class: "why" });
  private readonly marker = element("div", { class: "marker" });
  private plot: uPlot | null = null;
  private shownMap: unknown = null;
  private pane: Pane | null = null;

  constructor() {
    this.button.addEventListener("click", () => this.toggle());
    this.slider.addEventListener("input", () => {
      this.stop();
      this.onMoment(this.slider.valueAsNumber);
    });
    this.slider.addEventListener("change", () => this.onStopped());
    this.body = element(
      "div",
      { class: "timeline-body" },
      element("div", { class: "timeline-controls" }, this.button, this.slider, this.label),
      element("div", { class: "chart-frame" }, element("div", { class: "chart-title", title: "Jensen-Shannon divergence of the attention from that of the epoch before, in nats; 0: nothing changed" }, "Change of attention since the epoch before (JSD)"), this.chart),
    );
    this.root = element("section", { class: "timeline", hidden: true, aria: { label: "Training epochs" } }, this.body, this.why);
    new ResizeObserver(() => this.plot?.setSize(this.chartSize())).observe(this.chart);
    this.setIcon();
  }

  /** Show the epochs of a pane, or why there are none. */
  show(pane: Pane): void {
    this.pane = pane;
    const { map } = pane;
    const recorded = pane.state.source === "recorded";
    this.root.hidden = !recorded;
    if (!recorded) {
      this.stop();
      return;
    }
    const has = map !== null && map.epochs.length > 0;
    this.body.hidden = !has;
    this.why.hidden = has;
    this.why.textContent = has ? "" : pane.loading ? "Reading the map…" : (pane.maps?.why_not_recorded ?? "");
    if (!has) {
      this.stop();
      return;
    }
    this.slider.max = String(map.moments - 1);
    if (this.shownMap !== map) {
      this.shownMap = map;
      this.draw();
    }
    this.mark();
  }

  /** Follow the moment that is shown. */
  mark(): void {
    const map = this.pane?.map;
    if (!map || !map.epochs.length) return;
    const at = this.pane!.moment;
    this.slider.value = String(at);
    const jsd = map.jsd[at];
    this.label.textContent = `epoch ${epoch(map.epochs[at]!)} of ${epoch(map.epochs.at(-1)!)}${at === map.kept ? " (kept)" : ""}${jsd === null || jsd === undefined ? "" : ` · JSD ${significant(jsd)}`}`;
    if (this.plot) this.marker.style.transform = `translateX(${this.plot.valToPos(map.epochs[at]!, "x")}px)`;
  }

  step(by: number): void {
    const map = this.pane?.map;
    if (!map || !map.epochs.length) return;
    this.stop();
    this.onMoment(Math.min(Math.max(this.pane!.moment + by, 0), map.moments - 1));
    this.onStopped();
  }

  toggle(): void {
    if (this.playing) this.stop();
    else this.play();
  }

  stop(): void {
    if (!this.playing) return;
    this.playing = false;
    this.setIcon();
    this.onStopped();
  }

  private play(): void {
    const map = this.pane?.map;
    if (!map || map.moments < 2) return;
    this.playing = true;
    this.setIcon();
    if (this.pane!.moment >= map.moments - 1) this.onMoment(0);
    let before = performance.now();
    const frame = (now: number): void => {
      if (!this.playing) return;
      if (now - before >= 1000 / MOMENTS_PER_SECOND) {
        before = now;
        const next = this.pane!.moment + 1;
        if (!this.pane?.map || next >= this.pane.map.moments) {
          this.stop();
          return;
        }
        this.onMoment(next);
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  private setIcon(): void {
    this.button.replaceChildren(icon(this.playing ? "pause" : "play"));
    this.button.setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }

  private chartSize(): { width: number; height: number } {
    return { width: Math.max(120, this.chart.clientWidth), height: Math.max(60, this.chart.clientHeight) };
  }

  private draw(): void {
    this.plot?.destroy();
    const map = this.pane!.map!;
    const style = getComputedStyle(this.root);
    const ink = style.getPropertyValue("--muted");
    const axis: uPlot.Axis = { stroke: ink, grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    this.plot = new uPlot(
      {
        ...this.chartSize(),
        scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, y: false },
        axes: [
          { ...axis, size: 20, gap: 2, incrs: WHOLE_EPOCHS },
          { ...axis, size: 48, space: 24, values: (_, ticks) => ticks.map(significant) },
        ],
        series: [{}, { stroke: style.getPropertyValue("--accent"), width: 2, points: { show: map.moments < 40, size: 5 } }],
        hooks: { setSize: [() => this.mark()] },
      },
      [map.epochs, map.jsd],
      this.chart,
    );
    this.plot.over.append(this.marker);
    this.plot.over.addEventListener("click", () => {
      const at = this.plot?.cursor.idx;
      if (at !== null && at !== undefined) {
        this.stop();
        this.onMoment(at);
        this.onStopped();
      }
    });
  }

  /** Draw again in the colors of another theme. */
  restyle(): void {
    if (!this.plot || !this.pane?.map?.epochs.length) return;
    this.draw();
    this.mark();
  }
}
