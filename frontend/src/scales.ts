// Values and the places where they lie on a scale; `asmil.explain.color_scale` defines the same for pictures.

import type { TileMap } from "./api";
import { significant } from "./numbers";

export type Scale = "relative" | "percentile" | "linear";

export const SCALE_NAMES: Record<Scale, string> = {
  relative: "relative to the average tile",
  percentile: "rank of the tile",
  linear: "absolute values",
};

export const isScale = (name: string | null): name is Scale => name !== null && name in SCALE_NAMES;

const HIGHEST = 255;

/** The multiple of the average tile at a place of the relative scale, which is logarithmic. */
export function relativeAt(code: number, [low, high]: [number, number]): number {
  return low * (high / low) ** (code / HIGHEST);
}

/** A tile's value at a moment; exact, or as near as its bytes say. */
export function valueOf(map: TileMap, moment: number, tile: number): number {
  if (map.exact) return map.exact[tile]!;
  const at = moment * map.tiles + tile;
  const code = map.relative?.[at] ?? 0;
  // beyond its ends the relative scale does not tell values apart
  if (map.averages && code > 0 && code < HIGHEST) return map.averages[moment]! * relativeAt(code, map.relative_ends);
  return map.low + ((map.high - map.low) * map.linear[at]!) / HIGHEST;
}

/** The value below which tiles are hidden, in the words of a scale. */
export function thresholdText(code: number, scale: Scale, map: TileMap | null): string {
  if (code === 0) return "off";
  if (scale === "relative" && map) return `${significant(relativeAt(code, map.relative_ends))} × average`;
  return `${((100 * code) / HIGHEST).toFixed(0)} %`;
}
