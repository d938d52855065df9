// Bundles the page into src/asmil/viewer/static, from where `asmil view` serves it.
import { copyFile, mkdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.env.ASMIL_VIEWER_OUT ?? join(here, "..", "src", "asmil", "viewer", "static");

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await build({
  entryPoints: { viewer: join(here, "src", "main.ts") },
  outdir: out,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  legalComments: "inline",
  logLevel: "warning",
});
await copyFile(join(here, "src", "index.html"), join(out, "index.html"));
