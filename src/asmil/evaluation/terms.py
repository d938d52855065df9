"""The metrics of a run with covariates: of images and covariates together, and of each of them alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asmil.reporting import Estimate, Row, Table
from asmil.reporting.document import estimate_cell
from asmil.runs.covariates import COVARIATES, IMAGE
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
        rows: list[Row] = [
            [TITLES[term], *(estimate_cell(metrics[metric.name], scale=metric.scale) for metric in self.metrics)]
            for term, metrics in self.estimates.items()
        ]
        rows.append(["gain of the image", *(estimate_cell(self.gains[metric.name]) for metric in self.metrics)])
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
            rows,
            title="with and without covariates",
            caption=caption,
            in_terminal=True,
            narrow=narrow,
        )
