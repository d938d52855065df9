// The list of slides: search, filter, sort and group; only the rows in sight are in the page.

import { api, type About, type SlideRow } from "./api";
import { Choice, debounced, element } from "./dom";
import { counted, percent, significant } from "./numbers";

const ROW_PX = 76;
const HEADING_PX = 34;
const SPARE_PX = 6 * ROW_PX;
const NAME_END = 8;
/** of the filter: slides whose site the manifest does not state */
const NO_SITE = " ";

const SORTS = {
  order: "as listed",
  name: "name",
  label: "label",
  high: "highest value first",
  low: "lowest value first",
  wrong: "errors first",
} as const;
type Sort = keyof typeof SORTS;

/** What is in the list: slides, and headings of groups of them. */
type Entry = { top: number; row: SlideRow } | { top: number; heading: string; slides: number };

const natural = new Intl.Collator(undefined, { numeric: true });

/** Whether the prediction is the label; null where that cannot be said. */
export function isRight(row: SlideRow, run: number, task: string): boolean | null {
  const said = row.runs[run]?.prediction;
  return task === "classification" && said !== undefined && row.label ? said === row.label : null;
}

export class SlideList {
  readonly root: HTMLElement;
  readonly search: HTMLInputElement;
  onChoice: (row: SlideRow) => void = () => undefined;
  private readonly scroller = element("div", { class: "slides", tabIndex: 0, aria: { role: "listbox", label: "Slides" } });
  private readonly sheet = element("div", { class: "slides-sheet" });
  private readonly count = element("div", { class: "count" });
  private readonly nothing = element("div", { class: "nothing", hidden: true }, element("p", {}, "No slide matches the search and the filters."), element("button", { type: "button", onclick: () => this.showAll() }, "Show all slides"));
  private readonly choices: Choice[];
  private rows: SlideRow[] = [];
  private entries: Entry[] = [];
  private chosen = "";
  private run = 0;
  private sort: Sort = "order";
  private label = "";
  private role = "";
  private outcome = "";
  private site = "";
  private grouped = false;

  constructor(private readonly about: About) {
    this.search = element("input", { type: "search", placeholder: "Search slides and patients", aria: { label: "Search" } });
    this.search.addEventListener("input", debounced(() => this.update(), 80));
    const run = new Choice("Predictions of", (value) => {
      this.run = Number(value);
      this.update();
    });
    run.fill(about.runs.map((one) => [String(one.id), one.name] as const), "0", true);
    const sort = new Choice("Sort", (value) => {
      this.sort = value as Sort;
      this.update();
    });
    const sorts = Object.entries(SORTS).filter(([key]) => about.runs.length > 0 || ["order", "name", "label"].includes(key));
    sort.fill(sorts, "order");
    const label = new Choice("Label", (value) => {
      this.label = value;
      this.update();
    });
    const named = about.runs.length === 0 || about.runs.some((one) => one.task === "classification" || one.task === "multilabel");
    const labels = [...new Set(about.slides.map((row) => row.label))].filter((one): one is string => one !== null);
    label.fill(named && labels.length <= 40 ? [["", "all"], ...labels.sort(natural.compare).map((one) => [one, one] as const)] : [], "", true);
    const role = new Choice("Part", (value) => {
      this.role = value;
      this.update();
    });
    role.fill(about.runs.length ? [["", "all"], ["test", "test"], ["val", "validation"], ["train", "training"]] : [], "", true);
    const outcome = new Choice("Prediction", (value) => {
      this.outcome = value;
      this.update();
    });
    const classifies = about.runs.some((one) => one.task === "classification");
    outcome.fill(classifies ? [["", "all"], ["wrong", "wrong"], ["right", "right"]] : [], "", true);
    const site = new Choice("Site", (value) => {
      this.site = value;
      this.update();
    });
    const sites = [...new Set(about.slides.map((row) => row.site ?? ""))].sort(natural.compare);
    site.fill(sites.length > 1 ? [["", "all"], ...sites.map((one) => [one || NO_SITE, one || "not stated"] as const)] : [], "", true);
    const group = new Choice("Group", (value) => {
      this.grouped = value === "patient";
      this.update();
    });
    const several = new Set(about.slides.map((row) => row.patient)).size < about.slides.length;
    group.fill(several ? [["", "none"], ["patient", "by patient"]] : [], "", true);
    this.choices = [label, role, outcome, site];
    this.scroller.append(this.sheet);
    this.scroller.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.scroller);
    this.root = element(
      "aside",
      { class: "list", aria: { label: "Slides" } },
      element("div", { class: "list-head" }, this.search, element("div", { class: "filters" }, sort.root, run.root, label.root, role.root, outcome.root, site.root, group.root)),
      this.count,
      this.nothing,
      this.scroller,
    );
    this.update();
  }

  /** Mark a slide as the one that is shown. */
  choose(name: string, reveal = true): void {
    this.chosen = name;
    const top = this.entries.find((entry) => "row" in entry && entry.row.name === name)?.top;
    if (reveal && top !== undefined) {
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop || top + ROW_PX > scrollTop + clientHeight) this.scroller.scrollTop = Math.max(0, top - clientHeight / 3);
    }
    this.draw();
  }

  /** The slide `step` rows away from a slide. */
  neighbor(name: string, step: number): SlideRow | undefined {
    const place = this.rows.findIndex((row) => row.name === name);
    return this.rows[place < 0 ? 0 : place + step];
  }

  private showAll(): void {
    this.search.value = this.label = this.role = this.outcome = this.site = "";
    for (const choice of this.choices) choice.select.value = "";
    this.update();
  }

  private update(): void {
    const wanted = this.search.value.trim().toLowerCase();
    const task = this.about.runs[this.run]?.task ?? "";
    const value = (row: SlideRow): number => row.runs[this.run]?.value ?? Number.NaN;
    this.rows = this.about.slides.filter(
      (row) =>
        (!wanted || row.name.toLowerCase().includes(wanted) || row.patient.toLowerCase().includes(wanted)) &&
        (!this.label || row.label === this.label) &&
        (!this.site || (row.site ?? NO_SITE) === this.site) &&
        (!this.role || row.runs[this.run]?.role === this.role) &&
        (!this.outcome || isRight(row, this.run, task) === (this.outcome === "right")),
    );
    const known = (number: number): number => (Number.isNaN(number) ? 1 : 0);
    const orders: Record<Sort, (a: SlideRow, b: SlideRow) => number> = {
      order: () => 0,
      name: (a, b) => natural.compare(a.name, b.name),
      label: (a, b) => natural.compare(a.label ?? "", b.label ?? ""),
      high: (a, b) => known(value(a)) - known(value(b)) || value(b) - value(a),
      low: (a, b) => known(value(a)) - known(value(b)) || value(a) - value(b),
      wrong: (a, b) => Number(isRight(a, this.run, task) ?? 2) - Number(isRight(b, this.run, task) ?? 2) || value(b) - value(a),
    };
    if (this.sort !== "order") this.rows.sort(orders[this.sort]);
    if (this.grouped) this.rows = [...byPatient(this.rows).values()].flat();
    this.entries = this.placed();
    const all = this.about.slides.length;
    this.count.textContent = this.rows.length === all ? counted(all, "slide") : `${this.rows.length} of ${counted(all, "slide")}`;
    this.nothing.hidden = this.rows.length > 0;
    this.draw();
  }

  private draw(): void {
    const { scrollTop, clientHeight } = this.scroller;
    const inSight = this.entries.filter(({ top }) => top > scrollTop - SPARE_PX && top < scrollTop + clientHeight + SPARE_PX);
    const last = this.entries.at(-1);
    this.sheet.style.height = `${last ? last.top + ROW_PX : 0}px`;
    this.sheet.replaceChildren(...inSight.map((entry) => ("row" in entry ? this.entry(entry.row, entry.top) : heading(entry.heading, entry.slides, entry.top))));
  }

  /** The rows with their places, below the headings of their groups. */
  private placed(): Entry[] {
    const entries: Entry[] = [];
    let top = 0;
    const groups = this.grouped ? byPatient(this.rows) : new Map([["", this.rows]]);
    for (const [patient, rows] of groups) {
      if (this.grouped) {
        entries.push({ top, heading: patient, slides: rows.length });
        top += HEADING_PX;
      }
      for (const row of rows) {
        entries.push({ top, row });
        top += ROW_PX;
      }
    }
    return entries;
  }

  private entry(row: SlideRow, top: number): HTMLElement {
    const task = this.about.runs[this.run]?.task ?? "";
    const said = row.runs[this.run];
    const right = isRight(row, this.run, task);
    const none = (text: string): HTMLElement => element("span", { class: "thumbnail none" }, text);
    const picture: HTMLElement = row.image
      ? element("img", { class: "thumbnail", src: api.thumbnail(row), alt: "", loading: "lazy", onerror: () => picture.replaceWith(none("no image")) })
      : none(row.features ? "tiles" : "no image");
    const prediction =
      said?.prediction === undefined
        ? element("span", { class: "said none" }, said?.role === "train" ? "training slide" : "")
        : element(
            "span",
            { class: `said ${right === null ? "" : right ? "right" : "wrong"}` },
            `${right === null ? "" : right ? "✓ " : "✗ "}${said.prediction} `,
            element("b", {}, said.value === null || said.value === undefined ? "" : task === "classification" || task === "multilabel" ? percent(said.value) : significant(said.value)),
          );
    const entry = element(
      "button",
      { type: "button", class: "slide", title: row.name, onclick: () => this.onChoice(row), aria: { role: "option", selected: String(row.name === this.chosen) } },
      picture,
      element(
        "span",
        { class: "slide-text" },
        // the end of a long name tells slides of a patient apart
        element("span", { class: "slide-name" }, element("span", {}, row.name.slice(0, -NAME_END)), element("span", {}, row.name.slice(-NAME_END))),
        element("span", { class: "slide-facts" }, row.label ? element("span", { class: "chip" }, row.label) : null, row.patient === row.name ? "" : row.patient),
        prediction,
      ),
    );
    entry.classList.toggle("chosen", row.name === this.chosen);
    entry.style.top = `${top}px`;
    return entry;
  }
}

/** The rows of each patient; patients in the order of their first row. */
function byPatient(rows: readonly SlideRow[]): Map<string, SlideRow[]> {
  const groups = new Map<string, SlideRow[]>();
  for (const row of rows) {
    const known = groups.get(row.patient);
    if (known) known.push(row);
    else groups.set(row.patient, [row]);
  }
  return groups;
}

function heading(patient: string, slides: number, top: number): HTMLElement {
  const made = element("div", { class: "group", title: patient, aria: { role: "presentation" } }, element("b", {}, patient), element("span", {}, counted(slides, "slide")));
  made.style.top = `${top}px`;
  return made;
}
