"""The predictions and roles of a run for the list of slides, without loading a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asmil.errors import AsmilError
from asmil.runs.run import Run
from asmil.viewer.collection import ViewedRun

ROLE_ORDER = ("test", "val", "train")


@dataclass(frozen=True)
class RunTable:
    """One run in the list.

    predictions: by slide (or patient): the prediction as text, its probability or value, and the role of the slide
    roles: by slide: the first of test, val and train that it has in any fold
    """

    name: str
    method: str = "unknown"
    task: str = "classification"
    unit: str = "slide"
    classes: tuple[str, ...] = ()
    predictions: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_run_table(viewed: ViewedRun) -> RunTable:
    """The table of a run; an unfinished run has no predictions, but a note."""
    run = Run(viewed.path)
    notes: list[str] = []
    predictions: dict[str, dict[str, Any]] = {}
    roles: dict[str, str] = {}
    try:
        predictions = _predictions(run)
    except AsmilError as error:
        notes.append(str(error))
    try:
        for name in run.slides_of_role("all"):
            roles[name] = min(run.roles_of(name), key=ROLE_ORDER.index)
        if run.splits is None:
            notes.append(f"{viewed.path}: the run has no splits.csv yet")
    except AsmilError as error:
        notes.append(str(error))
    task = run.settings.task
    kind = task.kind or "classification"
    return RunTable(viewed.name, run.method, kind, run.unit, task.classes, predictions, roles, tuple(notes))


def _predictions(run: Run) -> dict[str, dict[str, Any]]:
    """The mean test prediction of each slide over folds and seeds; the validation prediction if there is none."""
    columns = list(run.format.prediction_columns)
    by_slide: dict[str, dict[str, Any]] = {}
    for role in ("test", "val"):
        chosen = run.predictions[run.predictions["role"] == role]
        means = chosen.groupby("slide")[columns].mean()
        for slide, values in zip(means.index, means.to_numpy(dtype=np.float64), strict=True):
            by_slide.setdefault(str(slide), {**_described(run, values), "role": role})
    return by_slide


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
