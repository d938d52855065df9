"""Compare runs that were evaluated on the same patients: metrics, paired differences, tests, reports."""

from asmil.evaluation.comparison.compare import compare_runs
from asmil.evaluation.comparison.findings import Comparison, Difference, RunScores
from asmil.evaluation.comparison.report import write_comparison

__all__ = ["Comparison", "Difference", "RunScores", "compare_runs", "write_comparison"]
