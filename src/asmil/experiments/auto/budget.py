"""The time of a search: its budget, what it plans to train, and what that costs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from asmil.experiments.auto.halving import Design
from asmil.experiments.auto.jobs import SearchJob
from asmil.experiments.auto.ladder import LINEAR, MEAN, Candidate
from asmil.files import write_json
from asmil.settings.documents import read_json

PLAN_FILE, CLOCK_FILE = "plan.json", "clock.json"
SIMPLE = (LINEAR, MEAN)
REPORT_S, REPORT_SHARE = 30.0, 0.1
"""Time for the evaluation and the page: so many seconds, but at most this share of the budget."""
LEAST_EPOCHS = 5


class Plan(BaseModel):
    """What the search trains; written once, so that an interrupted search goes on with the same plan.

    epoch_s: seconds of an epoch per bag, from the trial; alone_s: of a training that runs alone
    fixed_s: seconds of a training besides its epochs
    left_out: why candidates are not trained, by name
    cut: rungs that the budget cut, each with the candidates that were trained; none: the rung does not count
    tested_share: of the epochs of tests and final model, if the budget did not allow that of the design
    """

    design: Design
    candidates: list[str]
    epoch_s: dict[str, float]
    left_out: dict[str, str]
    alone_s: dict[str, float] = {}
    fixed_s: float = 0.0
    cut: dict[int, list[str]] = {}
    tested_share: float | None = None

    @property
    def share(self) -> float:
        """The share of the usual epochs that tests and final model are trained for."""
        return self.design.share if self.tested_share is None else self.tested_share

    def save(self, out: Path) -> None:
        """Write the plan into the folder of the search."""
        write_json(out / PLAN_FILE, self.model_dump(mode="json"))


@dataclass(frozen=True)
class Limit:
    """When jobs are cut (`time.time()`), candidates that never are, and the expected seconds of each job by folder."""

    ends_at: float
    needed: Collection[str]
    seconds: Mapping[Path, float]


class _Clock(BaseModel):
    seconds: float


class Budget:
    """The time of a search; what an earlier, interrupted command spent counts."""

    def __init__(self, out: Path, minutes: float) -> None:
        self._path, self.seconds = out / CLOCK_FILE, 60 * minutes
        spent = read_json(self._path, _Clock, "remove it").seconds if self._path.is_file() else 0.0
        self._began = time.monotonic() - spent

    @property
    def spent(self) -> float:
        """Seconds since the search began, without the time between commands."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left; negative if the budget is exceeded."""
        return self.seconds - self.spent

    def save(self) -> None:
        """Note the time that is spent."""
        write_json(self._path, {"seconds": round(self.spent, 1)})

    @property
    def report_s(self) -> float:
        """Seconds for the evaluation and the page."""
        return min(REPORT_S, REPORT_SHARE * self.seconds)


@dataclass
class Costs:
    """Expected seconds of a search, by the trial and by what was trained since.

    common: settings of all trainings; slides, bags: of the cohort
    measured: seconds of an epoch per bag, of the last jobs of each candidate
    """

    candidates: Mapping[str, Candidate]
    common: Mapping[str, Any]
    slides: int
    bags: int
    workers: int
    measured: dict[str, float] = field(default_factory=dict)

    def epochs(self, name: str, share: float = 1.0) -> int:
        """The epochs of a candidate; share: of the usual ones."""
        return self.candidates[name].config(self.common, share).training.epochs

    def least_share(self, names: Iterable[str]) -> float:
        """The smallest share of the epochs that teaches anything."""
        return min(1.0, LEAST_EPOCHS / min(self.epochs(name) for name in names))

    def of_job(self, job: SearchJob, plan: Plan) -> float:
        """A job, trained at the same time as others."""
        bags = (job.splits.table["role"] == "train").sum() * self.bags / self.slides
        epochs = self._epoch_s(job.folder.name, plan) * bags * job.config.training.epochs
        return float(epochs + plan.fixed_s * job.splits.n_folds)

    def of_tests(self, jobs: Iterable[SearchJob], chosen: str, plan: Plan) -> float:
        """The tests, and the final model."""
        return sum(self.of_job(job, plan) for job in jobs) / self.workers + self._of_model(chosen, plan)

    def after_choice(self, names: Collection[str], plan: Plan) -> float:
        """The tests and the final model, if any of these candidates may be chosen."""
        tried = {*names, *SIMPLE}
        full = {name: self._epoch_s(name, plan) * self.epochs(name, plan.share) * self.bags for name in tried}
        tests = (plan.design.outer - 1) * (sum(full[name] for name in SIMPLE) + max(full.values()))
        return tests / self.workers + max(self._of_model(name, plan) for name in tried)

    def _epoch_s(self, name: str, plan: Plan) -> float:
        return self.measured.get(name) or plan.epoch_s[name]

    def _of_model(self, name: str, plan: Plan) -> float:
        epoch_s = plan.alone_s.get(name, plan.epoch_s[name])  # a search of an older version has not measured it
        return epoch_s * self.epochs(name, plan.share) * self.bags
