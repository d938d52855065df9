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
  image: boolean;
  features: boolean;
  annotated: boolean;
  runs: RunOfSlide[];
}

export interface RunAbout {
  id: number;
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
  version?: string;
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

/** Sets what happens when the server does not answer. */
export function whenUnreachable(run: () => void): void {
  onUnreachable = run;
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

const mapParameters = (query: MapQuery): URLSearchParams =>
  new URLSearchParams({ source: query.source, training: query.training, kind: query.kind, part: String(query.part) });

export const api = {
  alive: () => json<{ instance: string }>("api/alive"),
  about: () => json<About>("api/about"),
  slide: (id: number) => json<SlideAbout>(`api/slides/${id}`),
  annotations: async (id: number) => (await json<{ regions: Region[] }>(`api/slides/${id}/annotations`)).regions,
  places: (id: number, run: number | null) => packed<Places>(`api/slides/${id}/places${run === null ? "" : `?run=${run}`}`),
  maps: (id: number, run: number, models: boolean) => json<MapList>(`api/slides/${id}/runs/${run}/maps${models ? "" : "?models=0"}`),
  map: (id: number, run: number, query: MapQuery) => packed<TileMap>(`api/slides/${id}/runs/${run}/map?${mapParameters(query)}`),
  geojson: async (id: number, run: number, query: MapQuery, moment: number, scale: string, threshold: number): Promise<Blob> => {
    const parameters = mapParameters(query);
    parameters.set("moment", String(moment));
    parameters.set("scale", scale);
    parameters.set("threshold", String(threshold));
    return (await ask(`api/slides/${id}/runs/${run}/map.geojson?${parameters}`)).blob();
  },
  thumbnail: (id: number) => `api/slides/${id}/thumbnail.jpg`,
  tile: (id: number, level: number, column: number, row: number, version: string) =>
    `api/slides/${id}/tiles/${level}/${column}_${row}.jpg?v=${version}`,
  region: (id: number, x: number, y: number, side: number, px: number) =>
    `api/slides/${id}/region.jpg?x=${x}&y=${y}&side=${Math.round(side)}&px=${px}`,
};
