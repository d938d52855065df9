// Numbers as the page writes them.

/** Three significant digits, without an exponent where that is readable. */
export function significant(value: number): string {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e5 && size >= 1e-3) return String(Number(value.toPrecision(3)));
  return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
}

export const percent = (share: number, digits = 0): string => `${(100 * share).toFixed(digits)} %`;

/** A byte from 0 to 255 as a percentile. */
export function percentile(code: number): string {
  const share = (100 * code) / 255;
  return share >= 99 ? "top 1 %" : `percentile ${share.toFixed(0)}`;
}

/** A number of things in words. */
export const counted = (count: number, one: string): string => `${count} ${one}${count === 1 ? "" : "s"}`;

/** Epochs are whole, or parts of one. */
export const epoch = (value: number): string => (Number.isInteger(value) ? String(value) : value.toFixed(2));

const KIND_NAMES: Record<string, string> = {
  attention_logit: "attention × tile logit",
  net_contribution: "contribution less an empty tile's",
  gradient: "gradient × input",
  "attention row": "attention of a head, token or class",
  "tile probability": "tile probability of a class",
};

/** A kind of map in words. */
export const kindName = (kind: string): string => KIND_NAMES[kind] ?? kind.replaceAll("_", " ");
