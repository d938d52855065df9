"""What a comparison found: plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.comparison.measures import Measure
from asmil.evaluation.comparison.pairing import Unit
from asmil.evaluation.run_evaluation import Role


@dataclass(frozen=True)
class Score:
    """One measure of one run: the mean over seeds, its 95 % interval by patient, and what it is the mean of."""

    value: float
    interval: Interval
    per_seed: Mapping[int, float]
    per_fold: Mapping[int, float]

    @property
    def sd_seeds(self) -> float:
        """Standard deviation over the seeds; nan for one."""
        return _sd(list(self.per_seed.values()))

    @property
    def sd_folds(self) -> float:
        """Standard deviation over the folds (each a mean over seeds); nan for one."""
        return _sd(list(self.per_fold.values()))


@dataclass(frozen=True)
class Method:
    """One run of the comparison."""

    name: str
    path: str
    method: str
    preset: str
    seeds: tuple[int, ...]
    scores: Mapping[str, Score]


@dataclass(frozen=True)
class ClassAuc:
    """DeLong's test of one class against the rest; `p_holm`: Holm over the classes of this pair."""

    name: str
    auc: float
    auc_reference: float
    difference: float
    interval: Interval
    z: float
    p: float
    p_holm: float


@dataclass(frozen=True)
class EnsembleTest:
    """One test of the seed ensembles of two runs; p is nan, and `reason` says why, where there is none."""

    test: str
    value: float
    value_reference: float
    p: float
    classes: tuple[ClassAuc, ...] = ()
    reason: str = ""

    @property
    def difference(self) -> float:
        """Run minus reference."""
        return self.value - self.value_reference


@dataclass(frozen=True)
class FoldTest:
    """The corrected resampled t over the folds' differences; t and p are nan, with a reason, where there is none."""

    differences: tuple[float, ...]
    n_train: float
    n_test: float
    t: float
    df: int
    p: float
    reason: str = ""


@dataclass(frozen=True)
class SeedTests:
    """One p a pair of seeds, and one for all by a rule that allows for their dependence."""

    seeds: tuple[tuple[int, int], ...]
    p: tuple[float, ...]
    rule: str
    p_combined: float


@dataclass(frozen=True)
class Difference:
    """Run minus reference in one measure.

    value, interval, sd: difference of the means over seeds, with the bootstrap over seeds and patients
    p_holm: p of the ensemble test, adjusted over all differences of the comparison; nan where there is no test
    """

    run: str
    reference: str
    measure: Measure
    value: float
    interval: Interval
    sd: float
    skipped: int
    ensemble: EnsembleTest | None = None
    folds: FoldTest | None = None
    per_seed: SeedTests | None = None
    p_holm: float = math.nan


@dataclass(frozen=True)
class Comparison:
    """Runs side by side on the same patients, and the differences between them.

    reference: the run that all others are held against; None when all pairs were asked for
    family: how many p-values Holm's correction is over
    problems: runs that could not be read, in a sentence each; they are not among the methods
    """

    kind: str
    role: Role
    unit: Unit
    measures: tuple[Measure, ...]
    methods: tuple[Method, ...]
    differences: tuple[Difference, ...]
    reference: str | None
    n_slides: int
    n_patients: int
    n_folds: int
    folds_joined: bool
    resamples: int
    skipped: int
    bootstrap_seed: int
    family: int
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def best(self, measure: Measure, digits: int = 3) -> frozenset[str]:
        """The runs with the best value, all that share it when shown with so many digits."""
        values = {method.name: round(method.scores[measure.name].value, digits) for method in self.methods}
        wanted = max(values.values()) if measure.larger_is_better else min(values.values())
        return frozenset(name for name, value in values.items() if value == wanted)


def _sd(values: list[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan
