// A slide for OpenSeadragon: the levels and tiles of the file as they are stored.

import OpenSeadragon from "openseadragon";
import { api, type Level, type SlideAbout, type SlideRow } from "./api";

/** Tiles of the served levels; a slide without an image has none, but the size of its tiles' canvas. */
export class SlideSource extends OpenSeadragon.TileSource {
  private readonly slideLevels: Level[];
  private readonly slideWidth: number;
  private readonly tileAddress: (level: number, column: number, row: number) => string;

  constructor(slide: SlideRow, about: SlideAbout) {
    const [width, height] = about.size;
    const levels = about.image?.levels ?? [];
    super({
      width,
      height,
      tileWidth: levels[0]?.tile_width ?? 512,
      tileHeight: levels[0]?.tile_height ?? 512,
      minLevel: 0,
      maxLevel: Math.max(0, levels.length - 1),
    } as OpenSeadragon.TileSourceOptions);
    this.slideLevels = [...levels].reverse();
    this.slideWidth = width;
    this.tileAddress = (level, column, row) => api.tile(slide, levels.length - 1 - level, column, row);
  }

  override getLevelScale(level: number): number {
    return 1 / (this.slideLevels[level]?.downsample[0] ?? 1);
  }

  override getTileWidth(level: number): number {
    return this.slideLevels[level]?.tile_width ?? 512;
  }

  override getTileHeight(level: number): number {
    return this.slideLevels[level]?.tile_height ?? 512;
  }

  override getNumTiles(level: number): OpenSeadragon.Point {
    const found = this.slideLevels[level];
    return new OpenSeadragon.Point(found?.across ?? 1, found?.down ?? 1);
  }

  // stored tiles reach beyond the slide at its right and lower edge; the source rectangle cuts them
  override getTileBounds(level: number, column: number, row: number, isSource?: boolean): OpenSeadragon.Rect {
    const found = this.slideLevels[level];
    if (!found) return new OpenSeadragon.Rect(0, 0, 1, 1);
    const x = column * found.tile_width;
    const y = row * found.tile_height;
    const width = Math.min(found.tile_width, found.width - x);
    const height = Math.min(found.tile_height, found.height - y);
    if (isSource) return new OpenSeadragon.Rect(0, 0, width, height);
    const [byX, byY] = [found.downsample[0] / this.slideWidth, found.downsample[1] / this.slideWidth];
    return new OpenSeadragon.Rect(x * byX, y * byY, width * byX, height * byY);
  }

  override getTileUrl(level: number, column: number, row: number): string {
    return this.tileAddress(level, column, row);
  }

  override tileExists(level: number, column: number, row: number): boolean {
    const found = this.slideLevels[level];
    return found !== undefined && column >= 0 && row >= 0 && column < found.across && row < found.down;
  }
}
