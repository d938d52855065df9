// The map as one small canvas: a pixel per cell of the tile grid, colored from one byte per tile.

import type { Places } from "./api";

export type ColorTable = Uint32Array;

/** 256 colors as the pixels of a canvas, from RGB bytes in base64. */
export function colorTable(base64: string): ColorTable {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const table = new Uint32Array(256);
  const view = new Uint8Array(table.buffer);
  for (let code = 0; code < 256; code += 1) {
    view.set(bytes.subarray(code * 3, code * 3 + 3), code * 4);
    view[code * 4 + 3] = 255;
  }
  return table;
}

/** Paints the values of one moment; opacity is left to whoever draws the canvas, so that it never encodes a value. */
export class MapCanvas {
  readonly canvas: HTMLCanvasElement;
  private readonly context: CanvasRenderingContext2D;
  private readonly image: ImageData;
  private readonly pixels: Uint32Array;

  constructor(readonly places: Places) {
    this.canvas = document.createElement("canvas");
    this.canvas.width = places.columns;
    this.canvas.height = places.rows;
    this.context = this.canvas.getContext("2d")!;
    this.image = this.context.createImageData(places.columns, places.rows);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** Color every tile by its value; tiles below the threshold are left out. */
  paint(values: Uint8Array, colors: ColorTable, threshold: number): void {
    const { cells } = this.places;
    const { pixels } = this;
    const shown = colors.slice();
    shown.fill(0, 0, threshold);
    for (let cell = 0; cell < cells.length; cell += 1) {
      const tile = cells[cell]!;
      pixels[cell] = tile < 0 ? 0 : shown[values[tile]!]!;
    }
    this.context.putImageData(this.image, 0, 0);
  }

  /** The tile at a level-0 position, or -1. */
  tileAt(x: number, y: number): number {
    const { places } = this;
    const column = Math.floor((x - places.x) / places.cell[0]);
    const row = Math.floor((y - places.y) / places.cell[1]);
    const inside = column >= 0 && row >= 0 && column < places.columns && row < places.rows;
    return inside ? places.cells[row * places.columns + column]! : -1;
  }
}
