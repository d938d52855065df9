"""Survival runs: C-index, time-dependent AUC, Brier score and risk groups, with intervals and a report."""

from __future__ import annotations

from asmil.evaluation.survival.brier import brier_score, integrated_brier_score
from asmil.evaluation.survival.dynamic_auc import time_dependent_auc
from asmil.evaluation.survival.evaluate import evaluate_survival
from asmil.evaluation.survival.report import summary_table, write_survival_report
from asmil.evaluation.survival.risk_groups import RiskGroup, RiskGroups, compare_groups
from asmil.evaluation.survival.step_curves import StepCurves, censoring_curves, survival_curves
from asmil.evaluation.survival.summary import FoldMetric, SurvivalEvaluation, TimeCurve

__all__ = [
    "FoldMetric",
    "RiskGroup",
    "RiskGroups",
    "StepCurves",
    "SurvivalEvaluation",
    "TimeCurve",
    "brier_score",
    "censoring_curves",
    "compare_groups",
    "evaluate_survival",
    "integrated_brier_score",
    "summary_table",
    "survival_curves",
    "time_dependent_auc",
    "write_survival_report",
]
