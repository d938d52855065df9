"""Run folders with recorded attention, as the training room writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from asmil.runs.attention_file import AttentionWriter, RecordedSlides, Recording
from asmil.settings.config import merge

CONFIG: dict[str, Any] = {
    "method": "abmil",
    "preset": "paper",
    "folds": 1,
    "seeds": 1,
    "training": {"schedule": "cosine", "lr": 1e-4, "epochs": 50},
    "anchor": {"normalizer": "none", "weight": 1.0},
    "attention": {"normalizer": "own"},
    "stabilizers": {"entropy": {"weight": 0.0}, "l2": {"weight": 0.0}},
    "record": {"attention": 2, "every": "epoch"},
    "task": {"kind": "classification", "classes": ["normal", "tumor"]},
}


def write_recordings(
    folder: Path,
    courses: Sequence[np.ndarray],
    *,
    names: Sequence[str] | None = None,
    kept_epoch: int | None = None,
    finished: bool = True,
    epochs: Sequence[float] | None = None,
) -> None:
    """Record one training: `courses` holds R x N attentions, one a slide; classes alternate."""
    n_slides, n_recordings = len(courses), len(courses[0])
    times = list(range(n_recordings)) if epochs is None else epochs
    slides = RecordedSlides(
        every="epoch" if epochs is None else "5 steps",
        classes=("normal", "tumor"),
        slides=tuple(names or (f"s{i}" for i in range(n_slides))),
        targets=np.arange(n_slides) % 2,
        roles=("train",) * n_slides,
        n_tiles=np.array([course.shape[1] for course in courses]),
    )
    places = {i: np.stack([np.arange(course.shape[1]) * 256] * 2, axis=1) for i, course in enumerate(courses)}
    writer = AttentionWriter(folder, slides, places)
    for r in range(n_recordings):
        logits = np.stack([np.array([0.1 * r, -0.1 * r]) for _ in courses]).astype(np.float32)
        attention = [course[r].astype(np.float32) for course in courses]
        writer.add(Recording(times[r], 10 * r, attention, logits, np.full((n_slides, 3), r, np.float32)))
    writer.flush()
    if finished:
        writer.finish({})
        (folder / "predictions.parquet").touch()
    if kept_epoch is not None:
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "best.json").write_text(json.dumps({"epoch": kept_epoch}))


def write_recorded_run(
    path: Path,
    trainings: Mapping[tuple[int, int], Sequence[np.ndarray]],
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A run whose trainings (fold, seed) recorded these courses; `options` are those of `write_recordings`."""
    for (fold, seed), courses in trainings.items():
        write_recordings(path / f"fold-{fold}" / f"seed-{seed}", courses, **options)
    sizes = {"folds": len({fold for fold, _ in trainings}), "seeds": len({seed for _, seed in trainings})}
    path.mkdir(exist_ok=True)
    (path / "config.yaml").write_text(yaml.safe_dump(merge({**CONFIG, **sizes}, config or {})))
    return path


def settling(seed: int, n_recordings: int = 25, n_tiles: int = 300, sharpness: float = 2.0) -> np.ndarray:
    """The course of an attention that grows from uniform to its final form, the same tiles for every seed."""
    scores = np.random.default_rng(0).normal(size=n_tiles) + 0.1 * np.random.default_rng(seed).normal(size=n_tiles)
    time = 1 - np.exp(-np.arange(n_recordings) / 3)
    return normalized(np.exp(sharpness * time[:, None] * scores))


def restless(seed: int, n_recordings: int = 25, n_tiles: int = 300) -> np.ndarray:
    """The course of an attention that is drawn anew at every recording."""
    return normalized(np.exp(2 * np.random.default_rng(seed).normal(size=(n_recordings, n_tiles))))


def normalized(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum(axis=1, keepdims=True)
