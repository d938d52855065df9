"""Survival times carry their unit into every table, figure and file; an unknown unit is never guessed."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from asmil.errors import AsmilError
from asmil.evaluation.comparison import compare_runs
from asmil.evaluation.report import evaluation_document, write_report
from asmil.evaluation.survival import evaluate_survival
from asmil.evaluation.survival.report import kaplan_meier_figure, time_figure
from asmil.reporting import print_document
from asmil.tables.time_units import UNKNOWN_UNIT, unit_in_name
from fake_survival_run import write_survival_run
from parsed_page import Page


def of_unit(unit: str | None) -> dict[str, dict[str, str | None]]:
    return {"task": {"kind": "survival", "time_unit": unit}}


@pytest.mark.parametrize("unit", ["days", "weeks", "months", "years", None])
def test_the_unit_of_the_run_is_in_every_output(unit: str | None, tmp_path: Path) -> None:
    write_survival_run(tmp_path / "run", folds=1, seeds=1, config=of_unit(unit) if unit else None)
    evaluation = evaluate_survival(tmp_path / "run", resamples=20)
    shown, others = unit or UNKNOWN_UNIT, {"days", "weeks", "months", "years", UNKNOWN_UNIT} - {unit or UNKNOWN_UNIT}
    printed = StringIO()
    print_document(evaluation_document([evaluation]), Console(file=printed, width=300))
    write_report([evaluation], tmp_path / "out")
    texts = {
        "page": " ".join(Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8")).words),
        "markdown": (tmp_path / "out" / "report.md").read_text(encoding="utf-8"),
        "terminal": printed.getvalue(),
        "groups": kaplan_meier_figure(evaluation.risk_groups, evaluation.run.time_unit),
        "auc": time_figure(evaluation, "auc", "AUC(t)", "AUC") or "",
        "json": (tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"),
    }
    for name, text in texts.items():
        assert (shown.split()[-1] if name == "terminal" else shown) in text, name  # a header may be two lines high
        assert not [word for word in others if word in text], name
    assert json.loads(texts["json"])[0]["time_unit"] == shown


def test_ticks_are_whole_years_only_if_times_are_months(tmp_path: Path) -> None:
    ticks = {}
    for unit in ("days", "months"):
        write_survival_run(tmp_path / unit, folds=1, seeds=1, config=of_unit(unit))
        ticks[unit] = evaluate_survival(tmp_path / unit, resamples=5).risk_groups.at_risk_times
    assert not (ticks["months"] % 12).any()
    assert (ticks["days"] % 12).any()


def test_runs_of_different_units_are_not_compared(tmp_path: Path) -> None:
    for name, unit in {"a": "days", "b": "months", "c": None}.items():
        write_survival_run(tmp_path / name, folds=1, seeds=1, config=of_unit(unit))
    with pytest.raises(AsmilError, match=r"months.*days"):
        compare_runs([tmp_path / "a", tmp_path / "b"], resamples=10)
    assert compare_runs([tmp_path / "a", tmp_path / "c"], resamples=10)


@pytest.mark.parametrize(
    ("column", "unit"),
    {
        "time": None,
        "OS.time": None,
        "time_days": "days",
        "days_to_death": "days",
        "survival_months": "months",
        "survivalMonths": "months",
        "OS_MONTHS": "months",
        "Overall Survival (Months)": "months",
        "follow-up in weeks": "weeks",
        "pfs_year": "years",
        "year_of_diagnosis": None,
        "days_or_months": None,
        "yearsago": None,
    }.items(),
)
def test_the_unit_is_read_from_the_name_of_the_column(column: str, unit: str | None) -> None:
    assert unit_in_name(column) == unit
