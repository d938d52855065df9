"""Fake run folders, as the training room writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml


def write_run(
    path: Path,
    classes: tuple[str, ...] = ("normal", "tumor"),
    *,
    folds: int = 1,
    seeds: int = 2,
    slides: int = 40,
    overlapping: bool = False,
    role: str = "test",
    target: np.ndarray | None = None,
    epochs: int = 4,
    config: dict[str, Any] | None = None,
) -> pd.DataFrame:
    """Write a run with random predictions, two slides a patient; return the predictions."""
    rng = np.random.default_rng(11)
    names = np.array(classes)
    labels = np.repeat(rng.integers(0, len(names), slides // 2), 2) if target is None else target
    rows = []
    for seed in range(seeds):
        for fold in range(folds):
            for slide in range(slides):
                if not overlapping and slide % folds != fold:
                    continue
                scores = rng.normal(size=len(names)).round(1)
                scores[labels[slide]] += 1
                odds = np.exp(scores)
                row = {"slide": f"s{slide}", "patient": f"p{slide // 2}", "fold": fold, "seed": seed}
                row |= {"role": role, "target": str(names[labels[slide]])}
                row |= {f"prob_{name}": p for name, p in zip(names, odds / odds.sum(), strict=True)}
                rows.append(row)
            _write_training(path / f"fold-{fold}" / f"seed-{seed}", epochs, rng)
    table = pd.DataFrame(rows)
    table.to_parquet(path / "predictions.parquet")
    settings = {
        "method": "asmil",
        "preset": "paper",
        "cohort": "cohort.csv",
        "task": {"kind": "classification", "classes": list(classes)},
        "data": {"max_tiles": None},
        "training": {"seed": 0, "select": "f1_auc", "epochs": epochs},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(settings | (config or {})))
    return table


def _write_training(folder: Path, epochs: int, rng: np.random.Generator) -> None:
    (folder / "checkpoints").mkdir(parents=True)
    lines = []
    for epoch in range(1, epochs + 1):
        loss = float(rng.random())
        val = {"loss": loss, "macro_f1": 0.5, "macro_auc": 0.6, "accuracy": 0.5}
        train = {"loss": loss, "ce": loss / 2, "anchor": loss / 2}
        line = {"epoch": epoch, "lr": 1e-4, "train": train, "val": val if epoch > 1 else None, "seconds": 0.1}
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "checkpoints" / "best.json").write_text(json.dumps({"epoch": epochs - 1}))
