"""Runs whose recorded slides have everything a picture can need: places, scores, roles, bag features."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from asmil.runs.attention_file import AttentionWriter, RecordedSlides, Recording
from asmil.settings.config import merge
from fake_recordings import CONFIG

PITCH = 256


@dataclass(frozen=True)
class FakeRun:
    """What a fake run recorded.

    restless: how far scores jump from one recording to the next; sharpness: how far they spread
    """

    n_slides: int = 4
    seeds: int = 2
    n_recordings: int = 12
    side: int = 14
    classes: tuple[str, ...] = ("normal", "tumor")
    restless: float = 0.3
    sharpness: float = 2.0
    with_coords: bool = True
    with_scores: bool = True
    with_val: bool = False
    width: int = 6
    epochs_apart: float = 1.0


def tissue(side: int) -> np.ndarray:
    """Places of the tiles of two round pieces of tissue, on a grid."""
    x, y = np.meshgrid(np.arange(2 * side), np.arange(side))
    left = (x - side / 2) ** 2 + (y - side / 2) ** 2 < (side / 2) ** 2
    right = (x - 1.5 * side) ** 2 + (y - side / 2) ** 2 < (side / 3) ** 2
    return PITCH * np.stack([x[left | right], y[left | right]], axis=1).astype(np.int64)


def write_fake_run(path: Path, fake: FakeRun | None = None, config: dict[str, Any] | None = None) -> Path:
    """Write the run folder: settings and, for each seed, the recorded attention and the epoch that was kept."""
    fake = fake or FakeRun()
    for seed in range(fake.seeds):
        _write_training(path / "fold-0" / f"seed-{seed}", fake, seed)
    settings = merge({**CONFIG, "seeds": fake.seeds}, config or {})
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    return path


def _write_training(folder: Path, fake: FakeRun, seed: int) -> None:
    places = tissue(fake.side)
    targets = np.arange(fake.n_slides) % len(fake.classes)
    slides = RecordedSlides(
        every="epoch" if fake.epochs_apart == 1 else "5 steps",
        classes=fake.classes,
        slides=tuple(f"slide-{i}" for i in range(fake.n_slides)),
        targets=targets,
        roles=tuple("val" if fake.with_val and i % 4 == 0 else "train" for i in range(fake.n_slides)),
        n_tiles=np.full(fake.n_slides, len(places)),
    )
    courses = [_scores(fake, seed, slide, places) for slide in range(fake.n_slides)]
    writer = AttentionWriter(folder, slides, dict.fromkeys(range(fake.n_slides), places) if fake.with_coords else {})
    rng = np.random.default_rng(seed)
    for r in range(fake.n_recordings):
        grown = 1 - np.exp(-r / 4)
        weights = [np.exp(course[r]) for course in courses]
        logits = np.where(targets[:, None] == np.arange(len(fake.classes)), 2 * grown, 0) + 0.2 * rng.normal(
            size=(fake.n_slides, len(fake.classes))
        )
        embedding = rng.normal(size=(fake.n_slides, fake.width)) + 3 * grown * targets[:, None]
        attention = [one / one.sum() for one in weights]
        writer.add(Recording(r * fake.epochs_apart, 10 * r, attention, logits, embedding))
    first = {int(np.flatnonzero(targets == target)[0]) for target in np.unique(targets)}
    writer.finish({slide: courses[slide][-1][None].repeat(2, axis=0) for slide in first} if fake.with_scores else {})
    (folder / "predictions.parquet").touch()
    (folder / "checkpoints").mkdir()
    kept = max(0, round(fake.epochs_apart * (fake.n_recordings - 3)))
    (folder / "checkpoints" / "best.json").write_text(json.dumps({"epoch": kept}))


def _scores(fake: FakeRun, seed: int, slide: int, places: np.ndarray) -> np.ndarray:
    """R x N: a lesion that appears in slides of later classes, noise of the slide, and jumps."""
    rng = np.random.default_rng([slide, 17])
    center = PITCH * fake.side * np.array([0.4, 0.5])
    lesion = np.exp(-(((places - center) / (PITCH * fake.side / 6)) ** 2).sum(axis=1)) * (slide % len(fake.classes) > 0)
    wanted = fake.sharpness * (2 * lesion + 0.5 * rng.normal(size=len(places)))
    grown = 1 - np.exp(-np.arange(fake.n_recordings) / 3)
    jumps = np.random.default_rng([seed, slide]).normal(size=(fake.n_recordings, len(places)))
    decay = np.linspace(1, 0.1, fake.n_recordings)[:, None]
    return grown[:, None] * wanted + fake.restless * decay * jumps
