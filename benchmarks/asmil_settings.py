"""How ASMIL's start, learning rate and anchor weight decide whether it learns, on synthetic cohorts.

    python benchmarks/asmil_settings.py --out results.jsonl [--difficulty easy medium] [--seeds 3] [--workers 12]

The paper does not say how the FEAT tokens start. Every variant is trained as `asmil train` would (epoch chosen on
validation), and its test slides give AUC and F1 of the slides and, on slides with a lesion, the AUC of the attention
against the truth of the tiles and the effective number of tiles as a share of all. One JSON line a training is
written as it ends; trainings that are there already are not repeated. `--summary` prints the table of a results file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asmil.settings.config import parse_assignments
from asmil.synthetic.bags import SyntheticConfig, write_synthetic

STARTS = {"0.02": [], "1": ["model.init_std=1"]}
RATES = {"1e-4": [], "3e-4": ["training.lr=3e-4"]}
ANCHORS = {"none": ["anchor.normalizer=none"], "0.1": ["anchor.weight=0.1"], "1": []}
VARIANTS: dict[str, tuple[str, list[str]]] = {
    **{
        f"asmil, tokens std {start}, lr {rate}, beta {anchor}": ("asmil", [*s, *r, *a])
        for start, s in STARTS.items()
        for rate, r in RATES.items()
        for anchor, a in ANCHORS.items()
    },
    **{f"abmil, lr {rate}": ("abmil", r) for rate, r in RATES.items()},
}


def train_one(job: tuple[Path, Path, str, str, int]) -> dict[str, Any]:
    """Train one variant on one cohort with one seed; returns its numbers."""
    manifest, out, difficulty, variant, seed = job
    import torch

    from asmil.cohort.manifest import load_cohort
    from asmil.runs.config import resolve
    from asmil.runs.prediction import predict_slide
    from asmil.runs.run import Run
    from asmil.tasks import metrics
    from asmil.training.run import train_run

    torch.set_num_threads(1)
    method, assignments = VARIANTS[variant]
    changes = parse_assignments([*assignments, f"training.seed={seed}", "training.checkpoint_seconds=600"])
    name = variant.replace(", ", "-").replace(" ", "_")
    run = train_run(manifest, out / difficulty / f"{name}-{seed}", resolve(method, changes=changes))

    table = pd.read_parquet(run.predictions).query("role == 'test'")
    target = (table["target"] == "tumor").to_numpy().astype(int)
    probabilities = table[["prob_normal", "prob_tumor"]].to_numpy()
    truth = pd.read_parquet(manifest.parent / "tile_truth.parquet")
    lesions = {str(slide): part["tumor"].to_numpy() for slide, part in truth.groupby("slide")}
    trained = Run(run.path)
    tile_auc, effective = [], []
    for slide in load_cohort(manifest).slides:
        if slide.split == "test" and lesions[slide.slide].any():
            attention = predict_slide(trained, slide, attention=True).tile_map
            assert attention is not None
            both = np.stack([-attention, attention], axis=1)
            tile_auc.append(metrics.auc_per_class(lesions[slide.slide].astype(int), both)[1])
            share = attention.astype(np.float64) / attention.sum(dtype=np.float64)
            effective.append(np.exp(-(share * np.log(np.maximum(share, 1e-300))).sum()) / len(share))
    return {
        "difficulty": difficulty,
        "variant": variant,
        "seed": seed,
        "auc": metrics.macro_auc(target, probabilities),
        "f1": metrics.macro_f1(target, metrics.predicted_classes(probabilities), 2),
        "tile_auc": float(np.mean(tile_auc)),
        "effective_tiles": float(np.mean(effective)),
    }


def summary(path: Path) -> str:
    """Mean and standard deviation over the seeds, as Markdown."""
    results = pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
    numbers = ["auc", "f1", "tile_auc", "effective_tiles"]
    lines = [f"| cohort | variant | {' | '.join(numbers)} | seeds |", "| --- " * (len(numbers) + 3) + "|"]
    for difficulty in results["difficulty"].unique():
        for variant in VARIANTS:
            rows = results[(results["difficulty"] == difficulty) & (results["variant"] == variant)]
            if len(rows):
                cells = [f"{rows[n].mean():.3f} ± {rows[n].std():.3f}" for n in numbers]
                lines.append(f"| {difficulty} | {variant} | {' | '.join(cells)} | {len(rows)} |")
    return "\n".join(lines)


def make_cohort(job: tuple[Path, str, int]) -> Path:
    folder, difficulty, slides = job
    return write_synthetic(folder, SyntheticConfig(slides=slides, difficulty=difficulty))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("settings-study"))
    parser.add_argument("--difficulty", nargs="+", default=["easy", "medium"])
    parser.add_argument("--slides", type=int, default=365)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="variants whose name holds this text")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args(arguments)
    if options.summary:
        print(summary(options.out))
        return
    known = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["difficulty"], row["variant"], row["seed"]) for row in known}
    with multiprocessing.get_context("spawn").Pool(options.workers, maxtasksperchild=8) as pool:
        wanted = [(options.work / f"cohort-{word}", word, options.slides) for word in options.difficulty]
        manifests = dict(zip(options.difficulty, pool.map(make_cohort, wanted), strict=True))
        jobs = [
            (manifests[word], options.work, word, variant, seed)
            for word in options.difficulty
            for seed in range(options.seeds)
            for variant in VARIANTS
            if options.only in variant and (word, variant, seed) not in done
        ]
        for row in pool.imap_unordered(train_one, jobs):
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)
    print(summary(options.out))


if __name__ == "__main__":
    main()
