"""Facts about an external validation; those that a run has, too, start with `new`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asmil.evaluation.checklists.facts import fact
from asmil.evaluation.checklists.known import VALIDATION_FILE, Known, at
from asmil.evaluation.checklists.phrases import cross_table, intervals_of, joined, number, numbers, slides_of
from asmil.reporting.formats import format_count, format_p


@fact(VALIDATION_FILE)
def _new_patients(known: Known) -> str | None:
    stored = at(known.validation, "cohort") or {}
    if stored.get("patients") is None:
        return None
    outcomes = ", ".join(f"{name} {count}" for name, count in (stored.get("outcomes") or {}).items())
    size = slides_of(stored.get("slides"), stored["patients"])
    return f"External evaluation: {size}{f' ({outcomes})' if outcomes else ''}."


@fact(VALIDATION_FILE)
def _newness(known: Known) -> str | None:
    overlap = at(known.validation, "overlap") or {}
    if not overlap.get("known"):
        return None
    shared = overlap.get("slides") or []
    if shared:
        return f"{format_count(len(shared), 'slide')} of the external evaluation overlap with the training."
    return (
        "No slide or patient of the training is in the external evaluation (names, TCGA barcodes, features compared)."
    )


@fact(VALIDATION_FILE)
def _new_predictions(known: Known) -> str | None:
    n = at(known.validation, "model", "models")
    return f"The mean of {format_count(n, 'model')}, applied to the new patients as it was." if n else None


@fact(VALIDATION_FILE)
def _not_updated(known: Known) -> str | None:
    return "The model was not updated: nothing was fitted or chosen on the new patients." if known.validation else None


@fact(VALIDATION_FILE)
def _not_predicted(known: Known) -> str | None:
    failed = at(known.validation, "cohort", "not_predicted")
    if failed is None:
        return None
    if not failed:
        return "All slides of the external evaluation were predicted."
    return f"External evaluation: {format_count(len(failed), 'slide')} could not be predicted and were left out."


@fact(VALIDATION_FILE)
def _new_measures(known: Known) -> str | None:
    stored = at(known.validation, "performance", "metrics") or {}
    titles = [metric.get("title", name) for name, metric in stored.items()]
    more = {
        "threshold": "accuracy at the threshold of the run",
        "calibration": "calibration",
        "decision_curve": "decision curve",
        "subgroups": "performance in subgroups",
    }
    titles += [text for key, text in more.items() if known.validation.get(key)]
    return f"External evaluation: {joined(titles)}, {intervals_of(known.validation)}" if titles else None


@fact(VALIDATION_FILE)
def _new_performance(known: Known) -> str | None:
    stored = at(known.validation, "performance", "metrics") or {}
    shown = ", ".join(f"{metric.get('title', name)} {number(metric)}" for name, metric in stored.items())
    return f"New patients: {shown}." if shown else None


@fact(VALIDATION_FILE)
def _new_threshold_origin(known: Known) -> str | None:
    chosen = at(known.validation, "threshold", "chosen_on")
    return f"The external evaluation used the threshold chosen on {chosen}; none was chosen there." if chosen else None


@fact(VALIDATION_FILE)
def _new_threshold(known: Known) -> str | None:
    shares = at(known.validation, "threshold", "shares")
    return f"New patients, at the threshold of the run: {numbers(shares)}." if shares else None


@fact(VALIDATION_FILE)
def _new_confusion(known: Known) -> str | None:
    counts = at(known.validation, "threshold", "confusion")
    return f"New patients, at the threshold of the run: {cross_table(known.run.classes, counts)}." if counts else None


@fact(VALIDATION_FILE)
def _new_calibration(known: Known) -> str | None:
    stored = at(known.validation, "calibration") or {}
    parts = {name: found for name, found in stored.items() if isinstance(found, dict)}  # by class
    unit = stored.get("time_unit", "")
    parts |= {f"at {found['time']:g} {unit}": found for found in stored.get("times") or ()}  # survival
    said = []
    for name, found in parts.items():
        shown = {key: at(found, key) for key in ("predicted", "observed", "intercept", "slope", "brier")}
        text = numbers({key: value for key, value in shown.items() if at(value, "value") is not None})
        said += [f"{name}: {text}"] if text else []
    return f"Calibration of new patients: {'; '.join(said)}." if said else None


@fact(VALIDATION_FILE)
def _decision_curve(known: Known) -> str | None:
    return (
        "Decision curve of the new patients: see the page of the validation."
        if at(known.validation, "decision_curve", "curves")
        else None
    )


@fact(VALIDATION_FILE)
def _subgroups(known: Known) -> str | None:
    tested = at(known.validation, "subgroups", "interactions") or []
    rows = [row for row in tested if isinstance(row, dict)]
    said = [f"{' by '.join(filter(None, (row.get('metric'), row.get('variable'))))} ({_p_value(row)})" for row in rows]
    return f"New patients: {joined(said)}; table and forest plot on the page of the validation." if said else None


@fact(VALIDATION_FILE)
def _sample_size(known: Known) -> str | None:
    test = at(known.validation, "performance", "non_inferiority") or {}
    if not test.get("needed"):
        return None
    return (
        f"To show non-inferiority with a margin of {test.get('margin')} and a power of {test.get('power')}, about "
        f"{test['needed']} patients like these are needed."
    )


@fact(VALIDATION_FILE)
def _new_warnings(known: Known) -> str | None:
    return " ".join(known.validation.get("warnings") or []) or None


def _p_value(row: Mapping[str, Any]) -> str:
    p = row.get("p_holm")
    return "not tested" if p is None else f"interaction p {format_p(p)} after Holm"
