// Single tiles: the strip of the highest or lowest ones, and one at full resolution.

import { api } from "./api";
import { element, icon } from "./dom";
import { percentile } from "./numbers";
import type { Pane } from "./pane";

const STRIP_PX = 112;

export class TileStrip {
  readonly root: HTMLElement;
  onTile: (tile: number) => void = () => undefined;
  private readonly strip = element("div", { class: "strip", aria: { role: "list" } });
  private readonly ends: HTMLButtonElement[];
  private lowest = false;
  private pane: Pane | null = null;

  constructor() {
    this.ends = ["Highest", "Lowest"].map((name, place) => element("button", { type: "button", title: `${name} tiles`, onclick: () => {
      this.lowest = place === 1;
      this.draw();
    } }, name));
    this.root = element("section", { class: "tile-strip", hidden: true, aria: { label: "Tiles" } }, element("div", { class: "strip-ends" }, element("span", {}, "Tiles"), ...this.ends), this.strip);
  }

  show(pane: Pane): void {
    this.pane = pane;
    this.draw();
  }

  private draw(): void {
    const { pane } = this;
    const tiles = pane ? shownTiles(pane, this.lowest) : [];
    // its place is kept while another map is on its way, so that the slide does not move
    this.root.classList.toggle("loading", pane?.loading ?? false);
    if (pane?.loading) return;
    this.root.hidden = tiles.length === 0;
    if (!pane || tiles.length === 0) return;
    this.ends.forEach((button, place) => {
      const chosen = this.lowest === (place === 1);
      button.classList.toggle("chosen", chosen);
      button.setAttribute("aria-pressed", String(chosen));
    });
    this.strip.replaceChildren(...tiles.map((tile, place) => this.tile(pane, tile, place)));
  }

  private tile(pane: Pane, tile: number, place: number): HTMLElement {
    const text = `${place + 1}: ${pane.valueText(tile)}`;
    const button = element(
      "button",
      { type: "button", class: "strip-tile", title: text, onclick: () => this.onTile(tile), aria: { role: "listitem" } },
      element("img", { src: tileAddress(pane, tile, STRIP_PX), alt: text, loading: "lazy" }),
      element("span", {}, String(place + 1)),
    );
    button.addEventListener("pointerenter", () => outline(pane, tile));
    button.addEventListener("pointerleave", () => outline(pane, -1));
    return button;
  }
}

function shownTiles(pane: Pane, lowest: boolean): number[] {
  const { map, slide } = pane;
  if (!map || !slide?.image) return [];
  const list = lowest ? map.bottom : map.top;
  // of few tiles the upper and the lower half, so that none is in both lists
  const half = lowest ? Math.floor(map.tiles / 2) : Math.ceil(map.tiles / 2);
  const first = pane.moment * map.shown;
  return [...list.subarray(first, first + Math.min(map.shown, half))];
}

function outline(pane: Pane, tile: number): void {
  pane.view.overlay.outlined = tile;
  pane.view.draw();
}

function tileAddress(pane: Pane, tile: number, px: number): string {
  const { coords, tile_px: side } = pane.canvas!.places;
  return api.region(pane.row!, coords[tile * 2]!, coords[tile * 2 + 1]!, side, px);
}

/** One tile at full resolution, with what the map says of it. */
export class TileDialog {
  readonly root: HTMLDialogElement;
  private readonly picture = element("img", { class: "tile-picture", alt: "The tile at full resolution" });
  private readonly facts = element("dl", { class: "facts" });
  private readonly ranks: HTMLElement;
  private pane: Pane | null = null;
  private order: Uint32Array | null = null;
  private place = 0;

  constructor() {
    const move = (by: number): void => {
      if (!this.pane || !this.order) return;
      this.place = Math.min(Math.max(this.place + by, 0), this.order.length - 1);
      this.draw(this.order[this.place]!);
    };
    this.ranks = element(
      "div",
      { class: "ranks" },
      element("button", { type: "button", class: "button", title: "Higher tile", onclick: () => move(-1) }, icon("left")),
      element("span"),
      element("button", { type: "button", class: "button", title: "Lower tile", onclick: () => move(1) }, icon("right")),
    );
    this.root = element(
      "dialog",
      { class: "tile-dialog" },
      element("button", { type: "button", class: "button close", title: "Close (Esc)", onclick: () => this.root.close() }, icon("close")),
      this.picture,
      element("div", {}, this.ranks, this.facts),
    );
    this.root.addEventListener("close", () => this.pane && outline(this.pane, -1));
    this.root.addEventListener("click", (event) => event.target === this.root && this.root.close());
  }

  open(pane: Pane, tile: number): void {
    if (!pane.canvas || !pane.row) return;
    this.pane = pane;
    this.order = ranked(pane);
    this.place = this.order ? this.order.indexOf(tile) : 0;
    this.draw(tile);
    if (!this.root.open) this.root.showModal();
  }

  private draw(tile: number): void {
    const pane = this.pane!;
    const { coords, tile_px: side } = pane.canvas!.places;
    outline(pane, tile);
    this.picture.hidden = !pane.slide?.image;
    if (pane.slide?.image) this.picture.src = tileAddress(pane, tile, Math.min(1024, Math.round(side)));
    this.ranks.hidden = this.order === null;
    this.ranks.children[1]!.textContent = `rank ${this.place + 1} of ${pane.canvas!.places.tiles}`;
    const mpp = pane.slide?.mpp;
    const facts: [string, string][] = [
      ["Place", `x ${coords[tile * 2]}, y ${coords[tile * 2 + 1]} px`],
      ["Side", mpp ? `${Math.round(side)} px (${(side * mpp).toFixed(0)} µm)` : `${Math.round(side)} px`],
    ];
    if (pane.map) {
      const code = pane.map.percentile[pane.moment * pane.map.tiles + tile]!;
      facts.unshift(["Value", pane.valueText(tile)], ["Percentile", percentile(code).replace("percentile ", "")]);
    }
    this.facts.replaceChildren(...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }
}

/** All tiles, the highest first. */
function ranked(pane: Pane): Uint32Array | null {
  const { map } = pane;
  if (!map) return null;
  const start = pane.moment * map.tiles;
  const order = new Uint32Array(map.tiles).map((_, tile) => tile);
  const { exact, linear, percentile: rank } = map;
  const value = exact
    ? (tile: number): number => exact[tile]!
    : (tile: number): number => rank[start + tile]! * 256 + linear[start + tile]!;
  return order.sort((a, b) => value(b) - value(a) || a - b);
}
