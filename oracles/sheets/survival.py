"""Survival: losses, risks, C-index tables, mean survival times, and the time bins of cohorts and folds.

A part of a file is known by what it is given: times, events and risks (a C-index table), logits and bin edges (mean
times), folds (time bins of the cohort it is named by), or a name among the losses, of the nearest `inputs`.

The time bins of a cohort need its tables, `tcga_<cohort>_survival.csv` and `tcga_<cohort>_folds.csv`; where they are
not at hand, all else is compared, and the line that is printed says which cohorts were not.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asmil.errors import AsmilError
from asmil.tasks.concordance import Ties, concordance, concordance_pairs
from asmil.tasks.survival_bins import BinRule, bin_of, fit_bins
from asmil.tasks.survival_curves import mean_survival_time, risk, survival_from_hazards, survival_from_incidence
from asmil.tasks.survival_losses import cox_nll, hazard_ce, hazard_nll, incidence_nll
from oracles.compare import TOLERANCE, Comparison
from oracles.sheet import Allowance, Content, Kind, is_rows

GIVEN = frozenset({"inputs", "time", "event", "risk", "logits", "bin_edges", "fold"})
SECTIONS = ("losses", "cindex", "mean_time", "binning")
REPOSITORY = Path(__file__).resolve().parents[2]

LOSSES = {
    "ifmle": incidence_nll,
    "hazard_mle": hazard_nll,
    "patchgcn_nll": hazard_nll,
    "patchgcn_ce_surv": hazard_ce,
}
LOSS_NAME = re.compile(rf"^({'|'.join(LOSSES)})_(mean|per_sample)(?:_alpha([\d.]+))?$")
SATURATED = "logits (50, 0, ..., 0) with time_bin (1, last, 0, 0) and event (1, 0, 0, 1)"
"""The rows of `ifmle_saturated`, which are not stored, where no note describes them."""
SATURATED_NOTE = re.compile(r"logits \((.+?), 0, \.\.\., 0\) .*?time_bin \((.+?)\) and event \((.+?)\)")
TIES: dict[str, Ties] = {"None": "none", "Time": "time", "Risk": "risk", "All": "all"}


class NotCompared:
    """Stands for an answer whose tables are not at hand."""


@dataclass(frozen=True)
class Cohort:
    """The n patients of a table; fold: -1 for those in none; missing: how many patients of the folds it lacks."""

    time: NDArray[np.float64]
    event: NDArray[np.int64]
    fold: NDArray[np.int64]
    missing: int


def recognizes(content: Content) -> bool:
    """Whether the file says so, or has a section of survival."""
    return content.get("method") == "survival" or any(isinstance(content.get(name), Mapping) for name in SECTIONS)


def locate(sheet: Content, folder: Path) -> dict[str, Any]:
    """The tables of the cohorts whose bins are asked for, as far as they are at hand."""
    places = [folder.parent / "data", REPOSITORY.parent / "shared" / "data"]
    if "ASMIL_DATA" in os.environ:
        places.insert(0, Path(os.environ["ASMIL_DATA"]))
    cohorts = {}
    for name in _cohort_names(sheet):
        for place in places:
            tables = [place / "survival" / f"tcga_{name}_{table}.csv" for table in ("survival", "folds")]
            if all(table.is_file() for table in tables):
                cohorts[name] = _read_cohort(*tables)
                break
    return {"cohorts": cohorts}


def answer(sheet: Content) -> dict[str, Any]:
    """Every part that is known."""
    asked = {name: part for name, part in sheet.items() if name != "cohorts"}
    return _answer(asked, None, sheet["cohorts"])


def _answer(part: Content, inputs: Content | None, cohorts: Mapping[str, Cohort]) -> dict[str, Any]:
    if part.keys() >= {"time", "event", "risk"}:
        return _concordances(part)
    if part.keys() >= {"logits", "bin_edges"}:
        return _mean_time(part)
    inputs = part.get("inputs", inputs)
    answers: dict[str, Any] = {}
    for name, asked in part.items():
        if _is_folds(asked):
            answers[name] = [_bins(row, cohorts[name]) if name in cohorts else _not_compared(row) for row in asked]
        elif isinstance(asked, Mapping) and asked.keys() >= {"shape", "values"} and inputs is not None:
            loss = _loss(name, inputs)
            answers |= {} if loss is None else {name: _tensor(loss)}
        elif isinstance(asked, Mapping) and name not in GIVEN:
            answers[name] = _answer(asked, inputs, cohorts)
    return answers


def _is_folds(part: Any) -> bool:
    return is_rows(part) and all("fold" in row for row in part)


def _cohort_names(part: Content) -> list[str]:
    below = [name for inner in part.values() if isinstance(inner, Mapping) for name in _cohort_names(inner)]
    return [*(name for name, rows in part.items() if _is_folds(rows)), *below]


def allowance(key: str, official: NDArray[np.float64], beside: Content) -> Allowance:
    """1e-5 of the largest value, or of 1: the official numbers are of single precision."""
    scale = max(1.0, float(np.abs(official[np.isfinite(official)]).max(initial=0.0)))
    return Allowance(TOLERANCE * scale, scale)


def judge(path: str, official: Any, ours: Any) -> Comparison | None:
    """What has no table is left out; whole numbers (counts) must be equal."""
    if isinstance(ours, NotCompared):
        return Comparison(path, 0.0, 1.0, True)
    numbers = official if isinstance(official, list) else [official]
    is_count = bool(numbers) and all(isinstance(number, int) for number in numbers)
    if is_count and isinstance(ours, int | list) and np.shape(official) == np.shape(ours):
        error = float(np.abs(np.asarray(official) - np.asarray(ours)).max())
        return Comparison(path, error, 1.0, error == 0, "" if error == 0 else f"{ours} instead of {official}")
    return None


def report(content: Content, answers: Content) -> str:
    """Which cohorts had no tables."""
    absent = sorted(set(_absent(answers)))
    if not absent:
        return ""
    return f"bins of {', '.join(absent)} not compared: set ASMIL_DATA to the folder that has their survival/tcga_*.csv"


def _absent(answers: Content) -> list[str]:
    names = []
    for name, part in answers.items():
        if isinstance(part, Mapping):
            names += _absent(part)
        elif is_rows(part) and any(isinstance(value, NotCompared) for row in part for value in row.values()):
            names.append(name)
    return names


def _loss(name: str, inputs: Content) -> Tensor | None:
    """The loss or risk of that name; None if no such name is known."""
    logits = torch.tensor(inputs["logits"], dtype=torch.float64)
    bins, event = (torch.tensor(inputs[key]) for key in ("time_bin", "event"))
    if found := LOSS_NAME.match(name):
        loss, form, alpha = found.groups()
        per_patient = LOSSES[loss](logits, bins, event, float(alpha or 0), "none")
        return per_patient.mean() if form == "mean" else per_patient
    if name == "cox_breslow_mean":
        return cox_nll(logits[:, 0], bins + 0.01 * torch.arange(len(bins)), event)
    if name == "ifmle_saturated":
        return _saturated(inputs, max(logits.shape[1], 2))
    survival = {"risk_incidence": survival_from_incidence, "risk_hazard": survival_from_hazards}.get(name)
    return None if survival is None else risk(survival(logits))


def _saturated(inputs: Content, n_bins: int) -> Tensor:
    """The loss of the rows that the note of the file describes."""
    found = next(SATURATED_NOTE.finditer(f"{inputs.get('note')}\n{SATURATED}"))
    top, bins, events = (
        [float(word.strip().replace("last", str(n_bins - 1))) for word in group.split(",")] for group in found.groups()
    )
    logits = torch.zeros(len(bins), n_bins, dtype=torch.float64)
    logits[:, : len(top)] = torch.tensor(top, dtype=torch.float64)
    return incidence_nll(logits, torch.tensor(bins).long(), torch.tensor(events), reduction="none")


def _concordances(case: Content) -> dict[str, Any]:
    data = case["time"], case["event"], case["risk"]
    try:
        pairs = concordance_pairs(*data)
    except AsmilError:  # a case of which no implementation makes a number
        return {"paper_formula": None, **{f"survivaleval_ties_{name}": None for name in TIES}}
    counts = {name: int(getattr(pairs, name)[0]) for name in ("concordant", "discordant", "tied_risk", "tied_time")}
    return {
        "sksurv": counts | {"cindex": _index(data, "harrell")},
        "paper_formula": _index(data, "strict"),
        **{f"survivaleval_ties_{name}": _index(data, ties) for name, ties in TIES.items()},
    }


def _index(data: tuple[Any, Any, Any], ties: Ties) -> float | None:
    try:
        value = concordance(*data, ties=ties)
    except AsmilError:
        return None
    return None if np.isnan(value) else value


def _mean_time(asked: Content) -> dict[str, Any]:
    survival = survival_from_incidence(torch.tensor(asked["logits"], dtype=torch.float64))
    return {
        "survival": _tensor(survival),
        "mean_survival_time": mean_survival_time(survival.numpy(), asked["bin_edges"]).tolist(),
    }


def _bins(asked: Content, cohort: Cohort) -> dict[str, Any]:
    test = cohort.fold == asked["fold"]
    train = ~test & (cohort.fold >= 0)
    time, event = cohort.time[train], cohort.event[train]
    edges = fit_bins(time, event, all_times=cohort.time)
    answers: dict[str, Any] = {
        "max_event_time_train": float(time[event == 1].max()),
        "n_train": int(train.sum()),
        "n_test": int(test.sum()),
        "events_train": int(event.sum()),
        "missing": cohort.missing,
        "num_bins": len(edges) - 1,
        "time_bins": edges.tolist(),
        "patients_per_bin_all": np.bincount(bin_of(cohort.time, edges), minlength=len(edges) - 1).tolist(),
    }
    for key in asked:
        if found := re.match(r"^(quantile|interval)(\d*)_time_bins$", key):
            rule: BinRule = "quantile" if found[1] == "quantile" else "interval"
            count = int(found[2]) if found[2] else None
            answers[key] = fit_bins(time, event, count, rule, all_times=cohort.time).tolist()
    return answers


def _not_compared(asked: Content) -> dict[str, Any]:
    return {key: NotCompared() for key in asked if key not in GIVEN}


def _tensor(value: Tensor) -> dict[str, Any]:
    return {"shape": list(value.shape), "values": value.reshape(-1).tolist()}


def _read_cohort(survival: Path, folds: Path) -> Cohort:
    """The patients of both tables; if a table repeats a patient, the first row gives time and event."""
    outcome: dict[str, tuple[float, int]] = {}
    for row in _rows(survival):
        outcome.setdefault(row["case_id"], (float(row["survival_months"]), int(float(row["event"]))))
    fold_of = {row["case_id"]: int(row["fold"]) for row in _rows(folds)}
    time, event = zip(*outcome.values(), strict=True)
    fold = np.array([fold_of.get(patient, -1) for patient in outcome])
    return Cohort(np.array(time), np.array(event), fold, len(fold_of.keys() - outcome.keys()))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


KIND = Kind("survival", recognizes, GIVEN, answer, allowance, locate, judge, report)
