"""What conformal sets of a run are calibrated on: its validation slides, in a bundle without their names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field

from asmil.errors import AsmilError
from asmil.evaluation.rows import part_of
from asmil.evaluation.uncertainty.conformal import ConformalCalibration
from asmil.evaluation.uncertainty.held_out import in_order_of_appearance
from asmil.files import write_json
from asmil.runs.run import Run
from asmil.settings.documents import read_json

FILE = "calibration.json"
"""In a bundle."""
_NOT_OFFERED = {
    "survival": "conformal lower bounds of survival times are not offered: they are valid only if the censoring time "
    "of every patient is known",
    "regression": "conformal sets are offered for classification, not for regression",
    "multilabel": "conformal sets are offered for classification, not for several labels per slide",
}


def calibration_of(run: Run, role: str = "val") -> ConformalCalibration:
    """The held-out slides of every fold, predicted by the mean of its seeds; an error if there are none.

    role: the part of the run; of a bundle, only the validation part is known
    """
    if run.kind != "classification":
        raise AsmilError(f"{run.path}: {_NOT_OFFERED[run.kind]}; leave the option out")
    if run.is_bundle:
        return _read(run)
    rows = part_of(run, role)
    if rows.empty:
        raise AsmilError(f"{run.path}: there are no predictions of validation slides to calibrate on (data.val_share)")
    columns = list(run.format.prediction_columns)
    kept = dict.fromkeys(columns, "mean") | dict.fromkeys(("patient", *run.format.truth_columns), "first")
    cases = rows.groupby(["fold", "slide"], as_index=False).agg(kept)
    return ConformalCalibration.of(
        run.classes, cases["fold"], run.format.truth(cases), cases["patient"].tolist(), run.format.predictions(cases)
    )


def save_calibration(calibration: ConformalCalibration, folder: Path) -> None:
    """Write the file of a bundle; its order and numbers of patients say nothing about the cohort."""
    order = np.lexsort((calibration.probabilities, calibration.targets, calibration.folds))
    stored = _File(
        classes=calibration.classes,
        folds=calibration.folds[order].tolist(),
        targets=calibration.targets[order].tolist(),
        patients=in_order_of_appearance(calibration.patients[order]).tolist(),
        probabilities=calibration.probabilities[order].tolist(),
    )
    write_json(folder / FILE, stored.model_dump(mode="json"))


def _read(run: Run) -> ConformalCalibration:
    path, remedy = run.path / FILE, "export the run again"
    if not path.exists():
        raise AsmilError(
            f"{run.path}: the bundle has no {FILE}, since the run has no validation slides or asmil was older; {remedy}"
        )
    stored = read_json(path, _File, remedy)
    sizes = {len(values) for values in (stored.folds, stored.targets, stored.patients, stored.probabilities)}
    if stored.classes != run.classes or len(sizes) != 1 or max(stored.targets, default=0) >= len(run.classes):
        raise AsmilError(f"{path}: it does not fit the classes of the run; {remedy}")
    return ConformalCalibration(
        stored.classes,
        np.array(stored.folds, np.int64),
        np.array(stored.targets, np.int64),
        np.array(stored.patients, np.int64),
        np.array(stored.probabilities, np.float64),
    )


class _File(BaseModel):
    classes: tuple[str, ...]
    folds: list[Annotated[int, Field(ge=0)]]
    targets: list[Annotated[int, Field(ge=0)]]
    patients: list[Annotated[int, Field(ge=0)]]
    probabilities: list[Annotated[float, Field(ge=0, le=1)]]
