"""Survival runs: C-index, time-dependent AUC, Brier score and risk groups, with intervals."""

from __future__ import annotations

from asmil.evaluation.survival.evaluate import SurvivalEvaluation, TimeCurve, evaluate_survival
from asmil.tasks.risk_groups import RiskGroup, RiskGroups, compare_groups
from asmil.tasks.survival_metrics import (
    StepCurves,
    brier_score,
    censoring_curves,
    integrated_brier_score,
    survival_curves,
    time_dependent_auc,
)

__all__ = [
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
    "survival_curves",
    "time_dependent_auc",
]
