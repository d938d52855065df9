"""Numbers with intervals: evaluate runs, write reports."""

from __future__ import annotations

from asmil.evaluation.evaluate import evaluate_run
from asmil.evaluation.report import write_report, write_run_report
from asmil.evaluation.summary import ClassSummary, Evaluation, MetricSummary

__all__ = [
    "ClassSummary",
    "Evaluation",
    "MetricSummary",
    "evaluate_run",
    "write_report",
    "write_run_report",
]
