"""Survival runs: C-index, time-dependent AUC, Brier score and risk groups, with intervals."""

from asmil.evaluation.survival.evaluate import SurvivalEvaluation, TimeCurve, evaluate_survival

__all__ = ["SurvivalEvaluation", "TimeCurve", "evaluate_survival"]
