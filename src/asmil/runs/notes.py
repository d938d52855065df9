"""Readers of the small JSON files of a run; they do not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat

from asmil.runs.layout import CHOICE_FILE
from asmil.runs.selection import Merit
from asmil.settings.documents import read_json

_REMEDY = "restore it or train again"


class _Kept(BaseModel):
    epoch: Annotated[int, Field(ge=0)]


class _Last(BaseModel):
    epoch: Annotated[int, Field(ge=0)] = 0


class _Choice(BaseModel):
    settings: dict[str, Any]


class _InnerScore(BaseModel):
    score: FiniteFloat
    loss: FiniteFloat | None = None


def read_kept_epoch(training: Path) -> int | None:
    """The epoch whose weights a training kept (`checkpoints/best.json`); None if there is none yet."""
    path = training / "checkpoints" / "best.json"
    return read_json(path, _Kept, _REMEDY).epoch if path.exists() else None


def read_epochs_done(training: Path) -> int:
    """The number of complete epochs of a training when it is resumed (`checkpoints/last.json`)."""
    path = training / "checkpoints" / "last.json"
    return read_json(path, _Last, _REMEDY).epoch if path.exists() else 0


def read_choice(fold: Path) -> dict[str, Any] | None:
    """The settings that nested cross-validation chose for a fold (`choice.json`); None if it has not chosen yet."""
    path = fold / CHOICE_FILE
    return read_json(path, _Choice, _REMEDY).settings if path.exists() else None


def read_inner_score(path: Path) -> Merit | None:
    """The score of an inner training of nested cross-validation (`score.json`); None if it has not ended."""
    if not path.exists():
        return None
    stored = read_json(path, _InnerScore, "delete it to repeat this inner training")
    return Merit(stored.score, stored.loss)
