"""A value with its interval (computed by `asmil.tasks.intervals`), and plain values for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

NAN = float("nan")
TOO_FEW = "too few patients: all resamples agree"
"""Why an estimate has no interval, if every resample gives the same value."""
AT_THE_EDGE = "exact, by the number of patients: all resamples agree"
"""How the interval of a value such as an AUC of 1 was computed."""
Detail = Literal["seeds", "trainings", "folds", "skipped"]


class Interval(NamedTuple):
    """A confidence interval; both limits are nan if it could not be estimated."""

    low: float
    high: float

    @property
    def is_defined(self) -> bool:
        """Whether both limits are defined."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is defined and lies on one side of 0."""
        return self.is_defined and (self.low > 0 or self.high < 0)


UNDEFINED = Interval(NAN, NAN)


@dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty and the numbers behind it.

    n: number of slides or patients it is based on, if known
    level, how: coverage of the interval and how it was computed
    skipped: number of resamples in which the value is undefined
    per_seed: the value of each seed; per_training: the value of each (fold, seed)
    """

    value: float
    interval: Interval = UNDEFINED
    n: int | None = None
    level: float = 0.95
    how: str = "bootstrap over patients"
    skipped: int = 0
    per_seed: Mapping[int, float] = field(default_factory=dict)
    per_training: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @property
    def per_fold(self) -> dict[int, float]:
        """The value of each fold, averaged over its seeds; undefined values are ignored."""
        return means_by((fold, value) for (fold, _), value in self.per_training.items())

    @property
    def sd_seeds(self) -> float:
        """Standard deviation over seeds; nan for a single seed."""
        return standard_deviation(self.per_seed.values())

    @property
    def sd_folds(self) -> float:
        """Standard deviation over folds, each averaged over seeds; nan for a single fold."""
        return standard_deviation(self.per_fold.values())

    @property
    def sd_trainings(self) -> float:
        """Standard deviation over all trainings (fold by seed)."""
        return standard_deviation(self.per_training.values())

    def with_sd(self) -> dict[str, float]:
        """Value, interval and standard deviation over seeds, as a row of a table; undefined numbers are nan."""
        return {"value": self.value, **self.interval._asdict(), "sd_seeds": self.sd_seeds}

    def to_dict(self, *details: Detail) -> dict[str, Any]:
        """Value and interval for JSON, with the requested details; undefined numbers are None."""
        content: dict[str, Any] = {"value": self.value, **self.interval._asdict()}
        if self.how in (TOO_FEW, AT_THE_EDGE):
            content["interval_of"] = self.how
        if "seeds" in details:
            content |= {"sd_seeds": self.sd_seeds, "per_seed": self.per_seed}
        if "trainings" in details:
            trainings = [
                {"fold": fold, "seed": seed, "value": value} for (fold, seed), value in self.per_training.items()
            ]
            content |= {"sd_trainings": self.sd_trainings, "per_training": trainings}
        if "folds" in details:
            content |= {"sd_folds": self.sd_folds, "per_fold": self.per_fold}
        if "skipped" in details:
            content["skipped_resamples"] = self.skipped
        return dict(jsonable(content))


def means_by(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The mean of the defined values of every key, from (key, value) pairs."""
    by_key: dict[int, list[float]] = {}
    for key, value in pairs:
        by_key.setdefault(key, []).append(value)
    return {key: mean_defined(values) for key, values in by_key.items()}


def mean_defined(values: Iterable[float]) -> float:
    """The mean of the values that are not nan; nan if there are none."""
    defined = [value for value in values if not math.isnan(value)]
    return float(np.mean(defined)) if defined else NAN


def standard_deviation(values: Iterable[float]) -> float:
    """Sample standard deviation of the values that are not nan; nan for fewer than two."""
    defined = [value for value in values if not math.isnan(value)]
    return float(np.std(defined, ddof=1)) if len(defined) > 1 else NAN


def jsonable(value: Any) -> Any:
    """Plain values for JSON: non-finite numbers become None, intervals and dataclasses become objects."""
    if isinstance(value, Interval):
        return {"low": jsonable(value.low), "high": jsonable(value.high)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: jsonable(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
