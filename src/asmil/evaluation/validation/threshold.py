"""Predicted classes at the threshold that the run fixed beforehand: confusion, sensitivity and predictive values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Block, Cell, Estimate, Row, Section, Table, estimate_cell
from asmil.reporting.formats import format_number
from asmil.tables.arrays import Booleans
from asmil.tasks.intervals import proportion_interval
from asmil.tasks.metrics import confusion_matrix, predicted_classes

OF_SHARES = {
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "positive predictive value": "precision",
    "accuracy": "accuracy",
}
"""The names of shares in `evaluation.json`."""


def decided_classes(validated: ValidatedPredictions) -> npt.NDArray[np.intp]:
    """The predicted class of every patient: at the run's threshold, or the most probable one."""
    point = validated.run.operating_point
    if point is None:
        return predicted_classes(validated.predictions)
    called = validated.predictions[:, validated.positive] >= point.threshold
    return np.where(called, validated.positive, 1 - validated.positive)


def at_threshold(validated: ValidatedPredictions) -> Part | None:
    """The confusion matrix and the shares that follow from it; None for tasks without classes."""
    if validated.run.kind != "classification":
        return None
    classes, decided = validated.run.classes, decided_classes(validated)
    truth, point = validated.truth, validated.run.operating_point
    confusion = confusion_matrix(truth, decided, len(classes))
    shares = class_shares(validated)
    how = "The most probable class is predicted; the run has no threshold (`asmil evaluate RUN` chooses one)."
    if point is not None:
        how = (
            f"A patient is predicted as {point.positive} if the mean probability of the patient's slides is at least "
            f"{format_number(point.threshold)}. This threshold was chosen on validation slides of the run "
            f"({point.rule}), not on these patients."
        )
    counts: list[Row] = [
        [name, *(Cell(str(count), shade=int(count) / max(1, int(row.sum()))) for count in row)]
        for name, row in zip(classes, confusion, strict=True)
    ]
    internal = validated.internal_at_threshold
    rows: list[Row] = []
    for title, share in shares.items():
        own = internal.get(OF_SHARES.get(title.partition(" (")[0], ""))
        cells = ["–" if own is None else estimate_cell(own, scale=(0, 1))] if internal else []
        rows.append([title, estimate_cell(share, scale=(0, 1)), str(share.n), *cells])
    blocks: list[Block] = [
        Table(["true class", *(f"predicted {name}" for name in classes)], counts, caption=f"Patients. {how}"),
        Table(
            ["share", "new patients", "of patients", *(["internal estimate"] if internal else [])],
            rows,
            title="at the threshold of the run" if point is not None else "most probable class",
            caption="New patients with exact 95 % intervals (Clopper and Pearson)."
            + " Internal: the run's test slides at the thresholds of their trainings." * bool(internal),
            in_terminal=True,
            narrow=frozenset({"of patients"}),
        ),
    ]
    content = {
        "threshold": None if point is None else point.threshold,
        "rule": None if point is None else point.rule,
        "positive": classes[validated.positive] if len(classes) == 2 else None,
        "chosen_on": "most probable class" if point is None else "validation slides of the run",
        "classes": list(classes),
        "confusion": confusion.tolist(),
        "shares": {title: {**share.to_dict(), "n": share.n} for title, share in shares.items()},
    }
    title = "At the threshold of the run" if point is not None else "Predicted classes"
    return Part("threshold", Section(title, blocks), content, _sentence(validated, confusion))


def class_shares(validated: ValidatedPredictions) -> dict[str, Estimate]:
    """Sensitivity, specificity and predictive values; for more than two classes, the sensitivity of each."""
    truth, decided, classes = validated.truth, decided_classes(validated), validated.run.classes
    right = truth == decided
    if len(classes) > 2:
        return {
            **{f"sensitivity, {name}": proportion(right, truth == k) for k, name in enumerate(classes)},
            "accuracy": proportion(right, np.ones_like(right)),
        }
    positive = validated.positive
    return {
        f"sensitivity ({classes[positive]} found)": proportion(right, truth == positive),
        f"specificity ({classes[1 - positive]} found)": proportion(right, truth != positive),
        f"positive predictive value ({classes[positive]} predicted)": proportion(right, decided == positive),
        f"negative predictive value ({classes[1 - positive]} predicted)": proportion(right, decided != positive),
        "accuracy": proportion(right, np.ones_like(right)),
    }


def proportion(right: Booleans, among: Booleans) -> Estimate:
    """The share of patients among some, with its exact interval."""
    n, count = int(among.sum()), int((right & among).sum())
    return Estimate(count / n if n else float("nan"), proportion_interval(count, n), n=n, how="exact")


def _sentence(validated: ValidatedPredictions, confusion: npt.NDArray[np.int64]) -> str:
    classes, positive = validated.run.classes, validated.positive
    if len(classes) > 2:
        return f"{int(confusion.trace())} of {int(confusion.sum())} patients are predicted correctly."
    found, alarms = confusion[positive], confusion[1 - positive]
    fixed = "At the threshold fixed by the run" if validated.run.operating_point else "By the most probable class"
    return (
        f"{fixed}, {found[positive]} of {found.sum()} {classes[positive]} patients are found, and {alarms[positive]} "
        f"of {alarms.sum()} {classes[1 - positive]} patients are called {classes[positive]}."
    )
