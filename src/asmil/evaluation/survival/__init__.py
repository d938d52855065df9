"""Survival runs: C-index, time-dependent AUC, Brier score and risk groups, with intervals."""

from __future__ import annotations

from asmil.evaluation.survival.brier import brier_score, integrated_brier_score
from asmil.evaluation.survival.dynamic_auc import time_dependent_auc
from asmil.evaluation.survival.evaluate import SurvivalEvaluation, TimeCurve, evaluate_survival
from asmil.evaluation.survival.risk_groups import RiskGroup, RiskGroups, compare_groups
from asmil.evaluation.survival.step_curves import StepCurves, censoring_curves, survival_curves

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
