"""Numbers with intervals: evaluate runs, compare them, and every measure and test as a plain function.

The names below are loaded when they are first used, so that none pays for what it does not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asmil.evaluation.calibration import (
        expected_calibration_error,
        fit_temperature,
        reliability,
        scale_probabilities,
    )
    from asmil.evaluation.classification import Evaluation
    from asmil.evaluation.comparison import compare_runs, write_comparison
    from asmil.evaluation.evaluate import evaluate_run
    from asmil.evaluation.localization import (
        FrocOptions,
        FrocSlide,
        dice,
        evaluation_mask,
        froc,
        points_from_tiles,
        rank_tiles,
        regions_found,
        scale_scores,
        specificity,
        tile_mask,
        tile_overlap,
    )
    from asmil.evaluation.report import write_report
    from asmil.evaluation.run_evaluation import RunEvaluation
    from asmil.evaluation.slide_evaluation import ClassSummary, SlideEvaluation
    from asmil.evaluation.statistics import (
        benjamini_hochberg,
        bootstrap_seeds_and_patients,
        combine_p,
        corrected_resampled_t,
        delong,
        fisher_if_independent,
        holm,
        paired_t,
        permutation_f1,
        stouffer_if_independent,
    )
    from asmil.evaluation.survival import evaluate_survival, integrated_brier_score, time_dependent_auc
    from asmil.evaluation.thresholds import choose_threshold
    from asmil.reporting import Estimate, Interval
    from asmil.tasks.concordance import concordance
    from asmil.tasks.metrics import balanced_accuracy, macro_auc, macro_f1
    from asmil.tasks.survival_bins import fit_bins
    from asmil.tasks.survival_curves import mean_survival_time

_HOMES = {
    "asmil.evaluation.calibration": (
        "expected_calibration_error",
        "fit_temperature",
        "reliability",
        "scale_probabilities",
    ),
    "asmil.evaluation.classification": ("Evaluation",),
    "asmil.evaluation.comparison": ("compare_runs", "write_comparison"),
    "asmil.evaluation.evaluate": ("evaluate_run",),
    "asmil.evaluation.localization": (
        "FrocOptions",
        "FrocSlide",
        "dice",
        "evaluation_mask",
        "froc",
        "points_from_tiles",
        "rank_tiles",
        "regions_found",
        "scale_scores",
        "specificity",
        "tile_mask",
        "tile_overlap",
    ),
    "asmil.evaluation.report": ("write_report",),
    "asmil.evaluation.run_evaluation": ("RunEvaluation",),
    "asmil.evaluation.slide_evaluation": ("ClassSummary", "SlideEvaluation"),
    "asmil.evaluation.statistics": (
        "benjamini_hochberg",
        "bootstrap_seeds_and_patients",
        "combine_p",
        "corrected_resampled_t",
        "delong",
        "fisher_if_independent",
        "holm",
        "paired_t",
        "permutation_f1",
        "stouffer_if_independent",
    ),
    "asmil.evaluation.survival": (
        "evaluate_survival",
        "integrated_brier_score",
        "time_dependent_auc",
    ),
    "asmil.evaluation.thresholds": ("choose_threshold",),
    "asmil.reporting": ("Estimate", "Interval"),
    "asmil.tasks.concordance": ("concordance",),
    "asmil.tasks.metrics": (
        "balanced_accuracy",
        "macro_auc",
        "macro_f1",
    ),
    "asmil.tasks.survival_bins": ("fit_bins",),
    "asmil.tasks.survival_curves": ("mean_survival_time",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ClassSummary",
    "Estimate",
    "Evaluation",
    "FrocOptions",
    "FrocSlide",
    "Interval",
    "RunEvaluation",
    "SlideEvaluation",
    "balanced_accuracy",
    "benjamini_hochberg",
    "bootstrap_seeds_and_patients",
    "choose_threshold",
    "combine_p",
    "compare_runs",
    "concordance",
    "corrected_resampled_t",
    "delong",
    "dice",
    "evaluate_run",
    "evaluate_survival",
    "evaluation_mask",
    "expected_calibration_error",
    "fisher_if_independent",
    "fit_bins",
    "fit_temperature",
    "froc",
    "holm",
    "integrated_brier_score",
    "macro_auc",
    "macro_f1",
    "mean_survival_time",
    "paired_t",
    "permutation_f1",
    "points_from_tiles",
    "rank_tiles",
    "regions_found",
    "reliability",
    "scale_probabilities",
    "scale_scores",
    "specificity",
    "stouffer_if_independent",
    "tile_mask",
    "tile_overlap",
    "time_dependent_auc",
    "write_comparison",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'asmil.evaluation' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
