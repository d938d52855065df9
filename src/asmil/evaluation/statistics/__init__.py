"""Tests and intervals for numbers that are to be published; see docs/statistics.md for which answers what."""

from __future__ import annotations

from asmil.evaluation.statistics.auc_comparison import DeLong, delong
from asmil.evaluation.statistics.combining import (
    CombinationRule,
    combine_p,
    fisher_if_independent,
    stouffer_if_independent,
)
from asmil.evaluation.statistics.f1_permutation import PermutationTest, permutation_f1
from asmil.evaluation.statistics.multiple import benjamini_hochberg, holm
from asmil.evaluation.statistics.resampled import TTest, corrected_resampled_t, paired_t
from asmil.evaluation.statistics.seeds import (
    Draws,
    SeedBootstrap,
    SeedMetric,
    bootstrap_seeds_and_patients,
    draw_seeds_and_patients,
    summarize_seed_bootstrap,
)

__all__ = [
    "CombinationRule",
    "DeLong",
    "Draws",
    "PermutationTest",
    "SeedBootstrap",
    "SeedMetric",
    "TTest",
    "benjamini_hochberg",
    "bootstrap_seeds_and_patients",
    "combine_p",
    "corrected_resampled_t",
    "delong",
    "draw_seeds_and_patients",
    "fisher_if_independent",
    "holm",
    "paired_t",
    "permutation_f1",
    "stouffer_if_independent",
    "summarize_seed_bootstrap",
]
