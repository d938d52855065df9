// The panes as one picture, with a caption that says what is shown.

import type { Pane } from "./pane";

const CAPTION_PX = 70;
const LINE_PX = 16;
const CAVEAT_FONT = "12px system-ui, sans-serif";
const GAP_PX = 4;

export async function screenshot(panes: readonly Pane[]): Promise<Blob> {
  const scale = window.devicePixelRatio || 1;
  const pictures = panes.map((pane) => pane.view.snapshot());
  const canvas = document.createElement("canvas");
  canvas.width = pictures.reduce((sum, picture) => sum + picture.width, (pictures.length - 1) * GAP_PX * scale);
  const height = Math.max(...pictures.map((picture) => picture.height));
  const context = canvas.getContext("2d")!;
  const caveats = panes.map((pane, place) => caveatLines(context, pane, pictures[place]!.width / scale));
  const below = CAPTION_PX + LINE_PX * Math.max(...caveats.map((lines) => lines.length));
  canvas.height = height + below * scale;
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  let left = 0;
  panes.forEach((pane, place) => {
    const picture = pictures[place]!;
    context.drawImage(picture, left, 0);
    context.save();
    context.translate(left, height);
    context.scale(scale, scale);
    caption(context, pane, picture.width / scale);
    writeCaveats(context, caveats[place]!);
    context.restore();
    left += picture.width + GAP_PX * scale;
  });
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png"));
}

interface CaveatLine {
  text: string;
  alarm: boolean;
}

/** The alarms of a pane's run and the finding about its slide, in lines that fit. */
function caveatLines(context: CanvasRenderingContext2D, pane: Pane, width: number): CaveatLine[] {
  const { alarms, finding } = pane.caveats;
  context.font = CAVEAT_FONT;
  const fits = (text: string): boolean => context.measureText(text).width <= width - 24;
  const lines: CaveatLine[] = [];
  for (const [text, alarm] of [...alarms.map((one) => [`Alarm: ${one}`, true] as const), ...(finding ? [[`Note: ${finding}.`, false] as const] : [])]) {
    let line = "";
    for (const word of text.split(" ")) {
      const longer = line ? `${line} ${word}` : word;
      if (line && !fits(longer)) {
        lines.push({ text: line, alarm });
        line = word;
      } else {
        line = longer;
      }
    }
    lines.push({ text: line, alarm });
  }
  return lines;
}

function writeCaveats(context: CanvasRenderingContext2D, lines: readonly CaveatLine[]): void {
  context.font = CAVEAT_FONT;
  lines.forEach(({ text, alarm }, place) => {
    context.fillStyle = alarm ? "#b02020" : "#111";
    context.fillText(text, 12, CAPTION_PX + LINE_PX * place + 10);
  });
}

function caption(context: CanvasRenderingContext2D, pane: Pane, width: number): void {
  const [title, low, middle, high] = pane.legendLines();
  context.fillStyle = "#111";
  context.font = "600 14px system-ui, sans-serif";
  context.fillText(pane.state.slide, 12, 22, width * 0.4);
  context.font = "12px system-ui, sans-serif";
  const { map, state } = pane;
  const when = map?.epochs.length ? `, epoch ${map.epochs[pane.moment]}` : "";
  context.fillText(`${state.run}${state.training ? `, fold ${state.training.replace("-", ", seed ")}` : ""}${when}`, 12, 42, width * 0.4);
  if (!title) return;
  const bar = Math.min(240, width * 0.52);
  const left = width - 12 - bar;
  context.fillText(title, left, 14, bar);
  context.globalAlpha = pane.view.mapOpacity;
  context.drawImage(pane.gradientCanvas, left, 20, bar, 12);
  context.globalAlpha = 1;
  context.font = "11px system-ui, sans-serif";
  context.fillText(pane.legendExtent(), left, 60, bar);
  context.fillText(low ?? "", left, 45, bar * 0.5);
  context.textAlign = "center";
  context.fillText(middle ?? "", left + bar / 2, 45);
  context.textAlign = "right";
  context.fillText(high ?? "", width - 12, 45, bar * 0.5);
  context.textAlign = "left";
}
