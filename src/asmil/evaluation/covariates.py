"""What the covariates of a run and its images contribute: predictions with both, and with each of them alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asmil.evaluation.comparison.compare import scores_and_differences
from asmil.evaluation.comparison.pairing import pair_runs
from asmil.evaluation.run_evaluation import Request
from asmil.reporting import Estimate, Table
from asmil.reporting.document import estimate_cell
from asmil.runs.covariates import COVARIATES, IMAGE
from asmil.runs.run import Run
from asmil.tasks.base import Metric

BOTH = "both"
TITLES = {BOTH: "image and covariates", IMAGE: "image term alone", COVARIATES: "covariates alone"}


@dataclass(frozen=True)
class TermComparison:
    """The metrics of a run with covariates, and of each of its terms alone.

    estimates: by term (`both`, `image`, `covariates`) and metric
    gains: by metric, what the image adds: both terms minus the covariates alone, paired
    """

    names: tuple[str, ...]
    metrics: tuple[Metric, ...]
    estimates: Mapping[str, Mapping[str, Estimate]]
    gains: Mapping[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        terms = {
            term: {name: estimate.to_dict() for name, estimate in metrics.items()}
            for term, metrics in self.estimates.items()
        }
        gains = {name: gain.to_dict() for name, gain in self.gains.items()}
        return {"names": list(self.names), "terms": terms, "both_minus_covariates": gains}

    @property
    def table(self) -> Table:
        """One row per term, and the gain of the image."""
        rows = [
            [TITLES[term], *(estimate_cell(metrics[metric.name], scale=metric.scale) for metric in self.metrics)]
            for term, metrics in self.estimates.items()
        ]
        gain = [estimate_cell(self.gains[metric.name]) for metric in self.metrics]
        caption = (
            "Value with its 95 % patient-level bootstrap interval. Image term alone: the same trained models with the "
            "covariate term set to 0, which stands for the average patient of the training set; they were trained "
            "together with the term, so this is not a model trained without covariates (train one and use `asmil "
            "compare`). Covariates alone: a linear model of the covariates, fitted on the training set of each fold. "
            "The last row is the first minus the third, with a paired bootstrap over seeds and patients."
        )
        columns = [f"prediction from ({', '.join(self.names)})", *(metric.title for metric in self.metrics)]
        narrow = frozenset(metric.title for metric in self.metrics if not metric.in_terminal)
        return Table(
            columns,
            [*rows, ["gain of the image", *gain]],
            title="with and without covariates",
            caption=caption,
            in_terminal=True,
            narrow=narrow,
        )


def compare_terms(run: Run, asked: Request) -> TermComparison | None:
    """The terms of a run on its test or validation set; None if the run has no covariates."""
    table = run.term_predictions
    if table is None:
        return None
    terms = {BOTH: run, **{term: run.with_predictions(table[table["term"] == term]) for term in (IMAGE, COVARIATES)}}
    paired = pair_runs(list(terms.values()), asked, list(terms))
    scores, differences = scores_and_differences(paired, [(BOTH, COVARIATES)], asked)
    return TermComparison(
        run.settings.covariates,
        paired.metrics,
        {term: scores[term].metrics for term in terms},
        {difference.metric.name: difference.estimate for difference in differences},
    )
