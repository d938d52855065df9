"""Conformal sets of the new patients: how often the true class is inside, by class and subgroup, and who abstains."""

from __future__ import annotations

import numpy as np
import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.uncertainty.conformal import coverage_table, prediction_sets
from asmil.evaluation.uncertainty.disagreement import share_voting_otherwise
from asmil.evaluation.uncertainty.run_calibration import calibration_of
from asmil.evaluation.validation.subgroups import UNKNOWN
from asmil.evaluation.validation.threshold import proportion
from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Block, Row, Section, Table
from asmil.reporting.formats import format_count, format_share
from asmil.tables.arrays import Floats
from asmil.tasks.intervals import proportion_interval

KINDS = {"all": False, "each class": True}
"""What the coverage is promised for, and whether sets are calibrated per class."""


def conformal_sets(validated: ValidatedPredictions) -> Part | None:
    """Coverage and abstentions at the coverage of the request; None for tasks without conformal sets."""
    if validated.run.kind != "classification":
        return None
    asked, title = validated.request.coverage, "Certainty of single patients"
    try:
        calibration = calibration_of(validated.run).by_patient()
        calibration.refuse_too_few(asked)
    except AsmilError as obstacle:
        reason = f"There are no conformal sets: {obstacle}."
        return Part("conformal_sets", Section(title, [reason]), {"reason": str(obstacle)})
    by_fold, disagreeing = _by_fold(validated)
    groups = {"class": [validated.run.classes[target] for target in validated.truth]}
    groups |= {
        variable.name: [group or UNKNOWN for group in validated.group_of(variable)] for variable in validated.request.by
    }
    tables, left_out = {}, ""
    for name, per_class in KINDS.items():
        try:
            calibration.refuse_too_few(asked, per_class)
        except AsmilError as obstacle:
            left_out = f"There are no sets per class: {obstacle}."
            continue
        sets = prediction_sets(calibration.p_values(by_fold, per_class), asked)
        tables[name] = coverage_table(sets, validated.truth, validated.patients["patient"].tolist(), groups)
    whole = tables["all"].iloc[0]
    n, covered = int(whole["patients"]), round(whole["coverage"] * whole["patients"])
    share = proportion(np.arange(n) < covered, np.ones(n, np.bool_))
    interval = f"{format_share(share.interval.low)} to {format_share(share.interval.high)}"
    blocks: list[Block] = [
        f"Sets that should contain the true class of {format_share(asked)} of patients contain it for "
        f"{format_share(share.value)} (95 % interval {interval}). For {format_share(whole['abstained'])} of patients "
        "the set does not have exactly one class, so the model abstains. The models of the run disagree about the "
        f"class of {disagreeing} of {format_count(n, 'patient')}.",
        *_short_classes(tables["all"], asked),
        _table(tables),
        *([left_out] if left_out else []),
    ]
    content = {
        "coverage_asked": asked,
        "coverage": share.to_dict(),
        "abstained": float(whole["abstained"]),
        "models_disagree": disagreeing,
        "groups": {name: table.to_dict("records") for name, table in tables.items()},
    }
    warnings: tuple[str, ...] = ()
    if share.interval.high < asked:
        warnings = (
            f"Conformal sets contain the true class of {format_share(share.value)} of the new patients instead of "
            f"{format_share(asked)}: they are not like the validation patients of the run.",
        )
    return Part("conformal_sets", Section(title, blocks), content, "", warnings)


def _short_classes(table: pd.DataFrame, asked: float) -> list[str]:
    """A sentence for classes whose patients are covered too rarely, which sets for all patients do not prevent."""
    classes = [row for row in table.to_dict("records") if row["by"] == "class" and row["coverage"] < asked]
    short = [
        f"{row['group']} ({format_share(row['coverage'])})"
        for row in classes
        if proportion_interval(round(row["coverage"] * row["patients"]), row["patients"]).high < asked
    ]
    return [f"Covered less than promised for all: {', '.join(short)}; use sets for each class."] if short else []


def _by_fold(validated: ValidatedPredictions) -> tuple[dict[int, Floats], int]:
    """n x C per fold: the mean probabilities of every patient; and for how many patients models vote differently."""
    rows = [
        {"patient": unit.patient, "fold": fold, "seed": seed, **values}
        for unit, prediction in validated.predicted
        for (fold, seed), values in prediction.members.items()
    ]
    columns = list(validated.run.format.prediction_columns)
    of_models = pd.DataFrame(rows).groupby(["fold", "seed", "patient"])[columns].mean()
    patients = validated.patients["patient"].tolist()
    by_fold = {
        int(str(fold)): part.groupby("patient").mean().loc[patients].to_numpy()
        for fold, part in of_models.groupby("fold")
    }
    votes = [
        part.droplevel(["fold", "seed"]).loc[patients].to_numpy() for _, part in of_models.groupby(["fold", "seed"])
    ]
    return by_fold, sum(share_voting_otherwise(np.stack(votes)[:, i]) > 0 for i in range(len(patients)))


def _table(tables: dict[str, pd.DataFrame]) -> Table:
    """One row per group, with coverage and abstentions for both kinds of sets."""
    columns = ["patients", "n", *(f"{what} ({name})" for name in tables for what in ("covered", "abstain"))]
    rows: list[Row] = []
    for i, first in enumerate(tables["all"].to_dict("records")):
        name = "all" if first["by"] == "all" else f"{first['by']} {first['group']}"
        shares = [table.iloc[i][column] for table in tables.values() for column in ("coverage", "abstained")]
        rows.append([name, str(first["patients"]), *map(format_share, shares)])
    return Table(columns, rows, "conformal sets", "In parentheses: for whom the coverage is promised.")
