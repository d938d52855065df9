"""The search: choose inside, test outside, choose once more on all patients.

trial     every candidate on a few slides: what an epoch costs, and whether it can be trained at all
choice    successive halving on inner folds, in every outer fold and on all patients
outer     on the patients that a choice has seen: its winner, its best attention method and the simple candidates;
          tested on the patients of the outer fold, which the choice has never seen
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from asmil.cohort.manifest import Cohort
from asmil.cohort.splits import Splits, inner_splits, make_splits, subjects_of
from asmil.engine import Engine
from asmil.errors import AsmilError
from asmil.experiments.auto.halving import INNER_FOLDS, Design, Rung, fitting_design, ranked, ranking, rungs_of
from asmil.experiments.auto.jobs import JobResult, MakeTrainer, SearchJob
from asmil.experiments.auto.ladder import LINEAR, MEAN, Candidate
from asmil.files import write_json
from asmil.settings.documents import read_json
from asmil.tasks.base import TaskKind

PLAN_FILE, CLOCK_FILE, JOBS = "plan.json", "clock.json", "jobs"
MOST_OUTER = 5
FEWEST_PATIENTS = 4
"""Patients per class that two outer folds with two inner folds each need."""
TRIAL_SLIDES, TRIAL_EPOCHS = 16, 2
LEAST_EPOCHS = 5
SIMPLE = (LINEAR, MEAN)
TOO_SLOW = "too slow for the budget; give more `--minutes`, `--workers` or a GPU"
History = list[dict[str, float]]
"""The result of successive halving: in every rung, the mean score of each candidate that reached it."""
Show = Callable[[str, int, int], None]
"""Receives the name of a stage, the jobs that are done and all jobs."""


class Plan(BaseModel):
    """What the search trains; written once, so that an interrupted search goes on with the same plan.

    epoch_s: seconds of an epoch per bag, from the trial
    left_out: why candidates are not trained, by name
    """

    design: Design
    candidates: list[str]
    epoch_s: dict[str, float]
    left_out: dict[str, str]


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


@dataclass(frozen=True)
class SearchResult:
    """Everything that was trained.

    outer: the outer folds; choices: that of every outer fold; final: that on all patients
    tested: predictions of the patients of all outer folds, by what made them: `procedure`, `attention` and the simple
        candidates; methods: the candidate behind them in every outer fold
    seconds: spent on every candidate
    notes: what the budget left out
    """

    plan: Plan
    outer: Splits
    choices: list[History]
    final: History
    finalists: dict[str, pd.DataFrame]
    tested: dict[str, pd.DataFrame]
    methods: dict[str, list[str]]
    seconds: dict[str, float]
    notes: list[str] = field(default_factory=list)


@dataclass
class Search:
    """A search in its folder.

    common: settings of all trainings, by dotted name
    facts, warnings: what `asmil plan` says about the cohort
    left_out: why other candidates are not tried, by name
    """

    cohort: Cohort
    kind: TaskKind
    out: Path
    candidates: Mapping[str, Candidate]
    common: Mapping[str, Any]
    in_features: int
    engine: Engine
    budget: Budget
    seed: int = 0
    show: Show = lambda stage, done, total: None
    facts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def run(self) -> SearchResult:
        """Do, or go on with, the whole search; jobs that are done are kept."""
        most_outer, most_inner = self.most_folds()
        plan = self._plan(most_outer, most_inner)
        outer = outer_splits(self.cohort, plan.design.outer, self.seed, self.kind)
        groups = {
            f"fold-{fold}": _held_out(inner_splits(self.cohort, outer, fold, most_inner, self.seed, self.kind))
            for fold in range(outer.n_folds)
        }
        # the patients of a group choose, each held out once; the last group are all patients
        groups["all"] = outer_splits(_unsplit(self.cohort), most_inner, self.seed, self.kind)
        *choices, final = self._choose(groups, plan)
        tested, methods = self._test(plan, outer, choices)
        last = len(final) - 1
        rungs = rungs_of(len(plan.candidates), plan.design)
        finalists = {
            name: self._inner_job("all", groups["all"], name, last, rungs[last]).predictions()
            for name, score in final[-1].items()
            if not np.isnan(score)
        }
        notes = []
        if len(final) < len(rungs):
            notes.append(f"The budget ended after rung {len(final)} of {len(rungs)} of the choice.")
        return SearchResult(plan, outer, choices, final, finalists, tested, methods, self._seconds(plan), notes)

    def most_folds(self) -> tuple[int, int]:
        """How many outer and inner folds the cohort allows; too few patients are an error."""
        subjects, slides = subjects_of(self.cohort, self.kind)
        counts = subjects.patients_per_class(np.arange(len(slides)))
        sizes = {subjects.classes[target]: counts[target] for target in subjects.needed}
        sizes = sizes or {"all patients": len(set(subjects.patients))}
        rarest = min(sizes, key=lambda name: sizes[name])
        if sizes[rarest] < FEWEST_PATIENTS:
            raise AsmilError(
                f"{self.cohort.path}: '{rarest}' has {sizes[rarest]} patients, but nested cross-validation needs at "
                f"least {FEWEST_PATIENTS}; add patients or leave the class out"
            )
        own = {slide.fold for slide in self.cohort.slides if slide.fold is not None}
        outer = len(own) or min(MOST_OUTER, sizes[rarest] // 2)
        remaining = sizes[rarest] - -(-sizes[rarest] // outer)
        return outer, max(2, min(INNER_FOLDS, remaining))

    def _plan(self, outer: int, inner: int) -> Plan:
        path = self.out / PLAN_FILE
        if path.is_file():
            return read_json(path, Plan, "remove it, and the search is planned again")
        sample = trial_splits(self.cohort, self.kind)
        jobs = {
            name: SearchJob(
                f"trial of {candidate}",
                self.out.absolute() / JOBS / "trial" / name,
                candidate.config({**self.common, "training.epochs": TRIAL_EPOCHS}),
                sample,
            )
            for name, candidate in self.candidates.items()
        }
        # the first job also reads the slides; it is timed by its last epoch, as all of them
        results = self._run(jobs, "trial")
        left_out = dict(self.left_out) | {name: result.error for name, result in results.items() if result.error}
        epoch_s = {name: max(result.epoch_s, 1e-6) for name, result in results.items() if not result.error}
        for name in SIMPLE:
            if name in left_out:
                raise AsmilError(f"{self.candidates[name]} cannot be trained on this cohort: {left_out[name]}")
        full = {name: seconds * self._bags() * self._epochs(name) for name, seconds in epoch_s.items()}
        fixed_s = min(results[name].seconds - TRIAL_EPOCHS * len(sample.table) * epoch_s[name] for name in epoch_s)
        own_folds = any(slide.fold is not None for slide in self.cohort.slides)
        budget = self.budget.left * self._workers()
        least = min(1.0, LEAST_EPOCHS / min(self._epochs(name) for name in epoch_s))
        design, dropped = fitting_design(full, SIMPLE, budget, outer, inner, max(0.0, fixed_s), least)
        if own_folds:
            design = replace(design, outer=outer)
        left_out |= dict.fromkeys(dropped, TOO_SLOW)
        kept = [name for name in epoch_s if name not in dropped]
        plan = Plan(design=design, candidates=kept, epoch_s=epoch_s, left_out=left_out)
        write_json(path, plan.model_dump(mode="json"))
        return plan

    def _bags(self) -> int:
        by_patient = self.candidates[LINEAR].config(self.common).unit == "patient"
        return len({slide.patient for slide in self.cohort.slides}) if by_patient else len(self.cohort)

    def _epochs(self, name: str, share: float = 1.0) -> int:
        return self.candidates[name].config(self.common, share).training.epochs

    def _workers(self) -> int:
        return getattr(self.engine, "workers", None) or 1

    def _inner_job(self, group: str, inner: Splits, name: str, number: int, rung: Rung) -> SearchJob:
        """A candidate in one rung of a choice; its folder and its splits have no patient outside the group."""
        return SearchJob(
            f"{group}, rung {number + 1}, {self.candidates[name]}",
            self.out.absolute() / JOBS / group / f"rung-{number}" / name,
            self.candidates[name].config(self.common, rung.share),
            Splits(inner.table[inner.table["fold"] < rung.inner]),
        )

    def _choose(self, groups: Mapping[str, Splits], plan: Plan) -> list[History]:
        """Successive halving in every group; all groups stop at the same rung, so that all choose the same way."""
        rungs = rungs_of(len(plan.candidates), plan.design)
        histories: dict[str, History] = {group: [] for group in groups}
        for number, rung in enumerate(rungs):
            jobs: dict[tuple[str, str], SearchJob] = {}
            for group, history in histories.items():
                names = ranked(history[-1])[: rung.candidates] if history else plan.candidates
                for name in [name for name in plan.candidates if name in names]:  # ties go to the simplest
                    jobs[group, name] = self._inner_job(group, groups[group], name, number, rung)
            begun = any(job.result is not None for job in jobs.values())
            if number and not begun and not self._fits(list(jobs.values()), plan):
                break
            results = self._run(jobs, f"choosing, rung {number + 1} of {len(rungs)}")
            for group, history in histories.items():
                history.append({name: result.score for (of, name), result in results.items() if of == group})
        return list(histories.values())

    def _fits(self, jobs: Sequence[SearchJob], plan: Plan) -> bool:
        """Whether jobs, and the tests that must follow them, end within the budget."""
        seconds = sum(
            plan.epoch_s[job.folder.name] * (job.splits.table["role"] == "train").sum() * job.config.training.epochs
            for job in jobs
        )
        share, bags = plan.design.share, self._bags()
        full = {name: plan.epoch_s[name] * self._epochs(name, share) * bags for name in plan.candidates}
        tests = (plan.design.outer - 1) * (sum(full[name] for name in SIMPLE) + max(full.values())) + max(full.values())
        return bool((seconds + tests) / self._workers() <= self.budget.left)

    def _test(
        self, plan: Plan, outer: Splits, choices: Sequence[History]
    ) -> tuple[dict[str, pd.DataFrame], dict[str, list[str]]]:
        """Train what every outer fold chose, its best attention method and the simple candidates; predict the fold."""
        roles: list[dict[str, str]] = []
        jobs: dict[tuple[int, str], SearchJob] = {}
        for fold, history in enumerate(choices):
            best = ranking(history)
            attention = next((name for name in best if self.candidates[name].attends), None)
            named = {"procedure": best[0], **{name: name for name in SIMPLE}}
            roles.append(named if attention is None else {**named, "attention": attention})
            part = outer.table[outer.table["fold"] == fold].assign(fold=0)
            for name in set(roles[-1].values()):
                jobs[fold, name] = SearchJob(
                    f"fold-{fold}, test, {self.candidates[name]}",
                    self.out.absolute() / JOBS / f"fold-{fold}" / "test" / name,
                    self.candidates[name].config(self.common, plan.design.share),
                    Splits(part),
                )
        for key, result in self._run(jobs, "testing").items():
            if result.error:
                raise AsmilError(f"{jobs[key].name} failed: {result.error}; run the same command again to resume")
        tested = {
            role: pd.concat(
                [jobs[fold, named[role]].predictions().assign(fold=fold) for fold, named in enumerate(roles)],
                ignore_index=True,
            )
            for role in roles[0]
        }
        return tested, {role: [named[role] for named in roles] for role in roles[0]}

    def _run(self, jobs: Mapping[Any, SearchJob], stage: str) -> dict[Any, JobResult]:
        """The results of all jobs; those that are done are only read, and a failed one has an error."""
        known = {key: job.result for key, job in jobs.items()}
        waiting = [jobs[key] for key, result in known.items() if result is None]
        unit = self.candidates[LINEAR].config(self.common).unit
        errors: dict[Path, str] = {}
        self.show(stage, len(jobs) - len(waiting), len(jobs))
        outcomes = self.engine.run(MakeTrainer(self.cohort, self.kind, unit, self.in_features), waiting)
        try:
            for number, outcome in enumerate(outcomes, start=1):
                if outcome.error is not None:
                    errors[outcome.job.folder] = outcome.error
                self.show(stage, len(jobs) - len(waiting) + number, len(jobs))
                self.budget.save()
        finally:
            self.budget.save()
        return {
            key: result or jobs[key].result or JobResult(error=errors[jobs[key].folder])
            for key, result in known.items()
        }

    def _seconds(self, plan: Plan) -> dict[str, float]:
        """The seconds of all jobs of each candidate."""
        spent = dict.fromkeys(plan.candidates, 0.0)
        for path in (self.out.absolute() / JOBS).glob("*/*/*/result.json"):
            if path.parent.name in spent:
                spent[path.parent.name] += read_json(path, JobResult, "remove it").seconds
        return spent


def outer_splits(cohort: Cohort, folds: int, seed: int, kind: TaskKind) -> Splits:
    """Folds without validation slides: those of the manifest if it has any, else generated ones."""
    return make_splits(cohort, folds, seed, val_share=0.0, kind=kind)


def _unsplit(cohort: Cohort) -> Cohort:
    """The cohort without the splits of its manifest."""
    return replace(cohort, slides=tuple(replace(slide, fold=None, split=None) for slide in cohort.slides))


def _held_out(inner: Splits) -> Splits:
    """Inner folds whose held-out part is only predicted, never used to choose an epoch."""
    return Splits(inner.table.assign(role=inner.table["role"].replace("val", "test")))


def trial_splits(cohort: Cohort, kind: TaskKind) -> Splits:
    """A few slides of all groups of outcomes, for timing; nothing is held out."""
    subjects, _ = subjects_of(cohort, kind)
    groups = [np.flatnonzero(subjects.targets == target) for target in np.unique(subjects.targets)]
    picked = np.concatenate([group[: max(2, TRIAL_SLIDES // len(groups))] for group in groups])
    table = {"slide": subjects.names[picked], "patient": subjects.patients[picked], "fold": 0, "role": "train"}
    return Splits(pd.DataFrame(table))
