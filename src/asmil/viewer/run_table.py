"""What the list of slides says of a run: predictions and roles, without loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from asmil.cohort.splits import Splits
from asmil.errors import AsmilError
from asmil.runs.layout import RunLayout
from asmil.runs.run import Run, read_run, setting
from asmil.viewer.collection import ViewedRun
from asmil.viewer.maps import joins_slides

ROLE_ORDER = ("test", "val", "train")


@dataclass(frozen=True)
class RunTable:
    """One run in the list.

    predictions: by slide (or patient): prediction as text, its probability or value, and the role it was made in
    roles: by slide: test, val or train, the first of them that the slide has in a fold
    """

    name: str
    method: str
    task: str
    unit: str
    classes: tuple[str, ...]
    predictions: dict[str, dict[str, Any]]
    roles: dict[str, str]
    notes: tuple[str, ...]


def read_run_table(run: ViewedRun) -> RunTable:
    """The list's view of a run; one that is unfinished has no predictions, and a note says so."""
    layout = RunLayout(run.path)
    config = layout.read_values()
    notes: list[str] = []
    predictions: dict[str, dict[str, Any]] = {}
    classes = tuple(str(name) for name in setting(config, "task", "classes") or ())
    try:
        predictions = _predictions(read_run(run.path))
    except AsmilError as error:
        notes.append(str(error))
    roles: dict[str, str] = {}
    try:
        roles = _roles(Splits.load(layout.splits).table)
    except AsmilError as error:
        notes.append(str(error))
    except OSError:
        notes.append(f"{run.path}: the run has no splits.csv yet")
    return RunTable(
        name=run.name,
        method=str(setting(config, "method") or "unknown"),
        task=str(setting(config, "task", "kind") or "classification"),
        unit="patient" if joins_slides(config) else "slide",
        classes=classes,
        predictions=predictions,
        roles=roles,
        notes=tuple(notes),
    )


def unread_run(run: ViewedRun, why: str) -> RunTable:
    """A run of which nothing can be read."""
    return RunTable(run.name, "unknown", "classification", "slide", (), {}, {}, (why,))


def _predictions(run: Run) -> dict[str, dict[str, Any]]:
    """The mean over folds and seeds of the test predictions of each slide, or of the validation ones."""
    columns = list(run.format.prediction_columns)
    found: dict[str, dict[str, Any]] = {}
    for role in ("test", "val"):
        chosen = run.predictions[run.predictions["role"] == role]
        means = chosen.groupby("slide")[columns].mean()
        for slide, values in zip(means.index, means.to_numpy(dtype=np.float64), strict=True):
            found.setdefault(str(slide), {**_described(run, values), "role": role})
    return found


def _described(run: Run, values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    finite = [float(value) if np.isfinite(value) else None for value in values]
    if run.kind == "classification":
        best = int(np.argmax(values))
        return {"prediction": run.classes[best], "value": finite[best], "probabilities": finite}
    if run.kind == "multilabel":
        likely = [name for name, value in zip(run.classes, values, strict=True) if value >= 0.5]
        return {"prediction": "; ".join(likely) or "none", "value": max(values.tolist()), "probabilities": finite}
    name = run.format.prediction_columns[0]
    return {"prediction": name, "value": finite[0], "probabilities": None}


def _roles(splits: pd.DataFrame) -> dict[str, str]:
    found: dict[str, str] = {}
    for slide, role in zip(splits["slide"], splits["role"], strict=True):
        known = found.get(str(slide))
        if known is None or ROLE_ORDER.index(str(role)) < ROLE_ORDER.index(known):
            found[str(slide)] = str(role)
    return found
