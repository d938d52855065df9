"""Compare what the images and the covariates of a run predict, together and alone."""

from __future__ import annotations

import pandas as pd

from asmil.evaluation.comparison.compare import scores_and_differences
from asmil.evaluation.comparison.pairing import pair_runs
from asmil.evaluation.run_evaluation import Request
from asmil.evaluation.terms import BOTH, TermComparison
from asmil.runs.covariates import COVARIATES, IMAGE
from asmil.runs.run import Run


def compare_terms(run: Run, table: pd.DataFrame, asked: Request) -> TermComparison:
    """The terms of a run with covariates on its test or validation set.

    table: the predictions of the terms
    """
    terms = {BOTH: run, **{term: run.with_predictions(table[table["term"] == term]) for term in (IMAGE, COVARIATES)}}
    paired = pair_runs(list(terms.values()), asked, list(terms))
    scores, differences = scores_and_differences(paired, [(BOTH, COVARIATES)], asked)
    return TermComparison(
        run.settings.covariates,
        paired.metrics,
        {term: scores[term].metrics for term in terms},
        {difference.metric.name: difference.estimate for difference in differences},
    )
