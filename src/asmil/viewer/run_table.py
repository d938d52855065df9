"""What the list of slides says of a run: predictions and roles, without loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from asmil.errors import AsmilError
from asmil.runs.run import Run
from asmil.viewer.collection import ViewedRun

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


def read_run_table(viewed: ViewedRun) -> RunTable:
    """The list's view of a run; one that is unfinished has no predictions, and a note says so."""
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
    return RunTable(
        name=viewed.name,
        method=run.method,
        task=run.settings.task.kind or "classification",
        unit=run.unit,
        classes=run.settings.task.classes,
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
