// What the server answers, and how it is asked.

import type { Scale } from "./scales";

export interface RunOfSlide {
  role: string | null;
  prediction?: string;
  value?: number | null;
  probabilities?: (number | null)[] | null;
}

export interface SlideRow {
  id: number;
  name: string;
  patient: string;
  label: string | null;
  site: string | null;
  /** changes with anything that is shown of the slide */
  version: string;
  /** changes with the image file; null without one */
  image: string | null;
  features: boolean;
  annotated: boolean;
  runs: RunOfSlide[];
}

export interface RunAbout {
  id: number;
  /** changes when the run is trained again */
  version: string;
  name: string;
  method: string;
  task: string;
  classes: string[];
  slides: number;
}

export interface About {
  instance: string;
  version: string;
  title: string;
  slides: SlideRow[];
  runs: RunAbout[];
  notes: string[];
  color_maps: Record<string, string>;
  /** those for maps whose values have both signs */
  signed_color_maps: string[];
}

export interface Level {
  width: number;
  height: number;
  tile_width: number;
  tile_height: number;
  downsample: [number, number];
  across: number;
  down: number;
}

export interface SlideAbout {
  size: [number, number];
  mpp: number | null;
  image: { levels: Level[]; reader: string; vendor: string | null } | null;
  image_error: string | null;
}

export interface Region {
  group: string | null;
  cut_out: boolean;
  rings: number[][];
}

export interface MapList {
  recorded: { fold: number; seed: number; moments: number }[];
  why_not_recorded: string | null;
  kinds: { kind: string; parts: string[] }[];
  trainings: [number, number][];
  note: string;
  /** what is wrong with the run */
  alarms: string[];
  error: string | null;
  /** whether the models were asked, which takes a while the first time */
  complete: boolean;
}

export interface Places {
  tiles: number;
  tile_px: number;
  x: number;
  y: number;
  /** width and height in level-0 pixels */
  cell: [number, number];
  rows: number;
  columns: number;
  coords: Int32Array;
  cells: Int32Array;
}

export interface TileMap {
  kind: string;
  low: number;
  high: number;
  moments: number;
  tiles: number;
  epochs: number[];
  jsd: (number | null)[];
  kept: number | null;
  note: string;
  /** the class that the map is about, where it is about one */
  explained: string;
  /** those that the map can be drawn with, the one that fits it first */
  scales: Scale[];
  /** of weights, such as attention: the average tile of each moment */
  averages: number[] | null;
  /** the ends of the relative scale, as multiples of the average tile */
  relative_ends: [number, number];
  /** what has to be said of the attention of each moment */
  findings: string[];
  shown: number;
  relative?: Uint8Array;
  percentile: Uint8Array;
  linear: Uint8Array;
  top: Int32Array;
  bottom: Int32Array;
  exact?: Float32Array;
}

export interface MapQuery {
  source: "final" | "recorded";
  training: string;
  kind: string;
  part: number;
}

/** The server said why it cannot answer. */
export class Refusal extends Error {}

/** The server does not answer at all. */
export class Unreachable extends Error {}

export let onUnreachable: () => void = () => undefined;
let onOutdated: () => void = () => undefined;

/** Sets what happens when the server does not answer. */
export function whenUnreachable(run: () => void): void {
  onUnreachable = run;
}

/** Sets what happens when the server has something else than the page knows: another cohort, or a run trained again. */
export function whenOutdated(run: () => void): void {
  onOutdated = run;
}

async function ask(path: string): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, { credentials: "same-origin" });
  } catch {
    onUnreachable();
    throw new Unreachable("The server does not answer.");
  }
  if (answer.ok) return answer;
  if (answer.status === 409) onOutdated();
  let reason = `The server answered ${answer.status} ${answer.statusText}.`;
  try {
    const told = (await answer.json()) as { error?: string };
    if (told.error) reason = told.error;
  } catch {
    // no sentence came with it
  }
  throw new Refusal(reason);
}

async function json<Answer>(path: string): Promise<Answer> {
  return (await (await ask(path)).json()) as Answer;
}

const ARRAYS = { uint8: Uint8Array, int32: Int32Array, float32: Float32Array } as const;

interface Header {
  arrays: { name: string; type: keyof typeof ARRAYS; length: number }[];
}

/** A header and its arrays, as `asmil.viewer.packing` writes them. */
export function unpack<Answer>(content: ArrayBuffer): Answer {
  const start = 4 + new DataView(content).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 4, start - 4))) as Header;
  const { arrays, ...about } = header;
  const found: Record<string, unknown> = { ...about };
  let at = start;
  for (const { name, type, length } of arrays) {
    const kind = ARRAYS[type];
    found[name] = new kind(content, at, length);
    at += Math.ceil((length * kind.BYTES_PER_ELEMENT) / 8) * 8;
  }
  return found as Answer;
}

async function packed<Answer>(path: string): Promise<Answer> {
  return unpack<Answer>(await (await ask(path)).arrayBuffer());
}

/** Addresses carry what the page knows of a slide and a run, so that the server refuses what is no longer so. */
const address = (row: SlideRow, path: string, run: RunAbout | null = null, more: Record<string, string> = {}): string =>
  `api/slides/${row.id}${path}?${new URLSearchParams({ v: row.version, ...(run ? { r: run.version } : {}), ...more })}`;

const picture = (row: SlideRow, path: string, more: Record<string, string> = {}): string =>
  `api/slides/${row.id}/${path}?${new URLSearchParams({ v: row.image ?? "", ...more })}`;

const mapParameters = ({ source, training, kind, part }: MapQuery): Record<string, string> => ({ source, training, kind, part: String(part) });

export const api = {
  alive: () => json<{ instance: string; runs: string[] }>("api/alive"),
  about: () => json<About>("api/about"),
  slide: (row: SlideRow) => json<SlideAbout>(address(row, "")),
  annotations: async (row: SlideRow) => (await json<{ regions: Region[] }>(address(row, "/annotations"))).regions,
  places: (row: SlideRow, run: RunAbout | null) => packed<Places>(address(row, "/places", run, run ? { run: String(run.id) } : {})),
  maps: (row: SlideRow, run: RunAbout, models: boolean) => json<MapList>(address(row, `/runs/${run.id}/maps`, run, models ? {} : { models: "0" })),
  map: (row: SlideRow, run: RunAbout, query: MapQuery) => packed<TileMap>(address(row, `/runs/${run.id}/map`, run, mapParameters(query))),
  geojson: async (row: SlideRow, run: RunAbout, query: MapQuery, moment: number, scale: string, threshold: number): Promise<Blob> => {
    const more = { ...mapParameters(query), moment: String(moment), scale, threshold: String(threshold) };
    return (await ask(address(row, `/runs/${run.id}/map.geojson`, run, more))).blob();
  },
  thumbnail: (row: SlideRow) => picture(row, "thumbnail.jpg"),
  tile: (row: SlideRow, level: number, column: number, at: number) => picture(row, `tiles/${level}/${column}_${at}.jpg`),
  region: (row: SlideRow, x: number, y: number, side: number, px: number) =>
    picture(row, "region.jpg", { x: String(x), y: String(y), side: String(Math.round(side)), px: String(px) }),
};
