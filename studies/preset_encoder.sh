#!/usr/bin/env bash
# The cohort with features of the embedded encoder for studies/preset_encoder.yaml, in runs/preset-encoder.
set -euo pipefail
out=${1:-runs/preset-encoder}
asmil synthetic-slides "$out/slides" --slides 72 --side-mm-min 0.8 --side-mm-max 1.2
asmil extract "$out/slides" --out "$out/features"
cp "$out/slides/cohort.csv" "$out/cohort.csv"
