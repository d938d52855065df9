"""The search: choose inside, test outside, choose once more on all patients.

trial     every candidate on a few slides, as many trainings at once as in the first rung, and one alone: what an epoch
          costs, and whether it can be trained at all
choice    successive halving on inner folds, in every outer fold and on all patients
outer     on the patients that a choice has seen: its winner, its best attention method and the simple candidates;
          tested on the patients of the outer fold, which the choice has never seen

The budget holds: a rung is cut when only the time of the tests and of the final model is left, and these are trained
for fewer epochs if even they would take too long. What was cut is part of the plan, so that it is the same after an
interruption.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from asmil.cohort.manifest import Cohort
from asmil.cohort.splits import Splits, inner_splits, make_splits, subjects_of
from asmil.engine import Engine
from asmil.errors import AsmilError
from asmil.experiments.auto.budget import PLAN_FILE, SIMPLE, Budget, Costs, Limit, Plan
from asmil.experiments.auto.halving import (
    FINALISTS,
    INNER_FOLDS,
    Rung,
    fitting_design,
    ranked,
    ranking,
    rungs_of,
)
from asmil.experiments.auto.jobs import OUT_OF_TIME, JobBatch, JobResult, MakeTrainer, SearchJob
from asmil.experiments.auto.ladder import LINEAR, Candidate
from asmil.reporting.formats import format_share
from asmil.settings.documents import read_json
from asmil.tasks.base import TaskKind

JOBS = "jobs"
MOST_OUTER = 5
FEWEST_PATIENTS = 4
"""Patients per class that two outer folds with two inner folds each need."""
TRIAL_SLIDES, TRIAL_EPOCHS = 24, 2
TRIAL_SHARE = 0.15
"""Share of the budget after which a candidate whose trial has not ended is too slow."""
TOO_SLOW = "too slow for the budget; give more `--minutes`, `--workers` or a GPU"
History = list[dict[str, float]]
"""The result of successive halving: in every rung, the mean score of each candidate that reached it."""
Show = Callable[[str, int, int], None]
"""Receives the name of a stage, the jobs that are done and all jobs."""


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

    def __post_init__(self) -> None:
        slides = self.cohort.slides
        by_patient = self.candidates[LINEAR].config(self.common).unit == "patient"
        bags = len({slide.patient for slide in slides}) if by_patient else len(slides)
        workers = getattr(self.engine, "workers", None) or 1
        self._costs = Costs(self.candidates, self.common, len(slides), bags, workers)

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
        tested, methods = self._test(plan, outer, choices, final)
        last = len(final) - 1
        rungs = rungs_of(len(plan.candidates), plan.design)
        finalists = {
            name: self._inner_job("all", groups["all"], name, last, rungs[last]).predictions()
            for name, score in final[-1].items()
            if not np.isnan(score)
        }
        notes = list(self._notes(plan, len(final), len(rungs)))
        return SearchResult(plan, outer, choices, final, finalists, tested, methods, self._seconds(plan), notes)

    def _notes(self, plan: Plan, done: int, rungs: int) -> Iterator[str]:
        """What the budget cut."""
        for number, names in plan.cut.items():
            if 0 < number < done:
                compared = ", ".join(str(self.candidates[name]) for name in names)
                yield f"The budget ended in rung {number + 1} of {rungs} of the choice; it compared only {compared}."
        if done < rungs:
            yield f"The budget ended after rung {done} of {rungs} of the choice."
        if plan.tested_share is not None:
            yield (
                f"To keep the budget, tests and final model were trained for {format_share(plan.share)} of the usual "
                f"epochs instead of {format_share(plan.design.share)}."
            )

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
        together = self._trial("trial", outer + 1)
        left_out = dict(self.left_out) | {name: TOO_SLOW for name in self.candidates if name not in together}
        left_out |= {name: result.error for name, result in together.items() if result.error}
        epoch_s = {name: max(result.epoch_s, 1e-6) for name, result in together.items() if not result.error}
        for name in SIMPLE:
            if name in left_out:
                raise AsmilError(f"{self.candidates[name]} cannot be trained on this cohort: {left_out[name]}")
        of_alone = self._trial("trial-alone", 1, list(epoch_s))
        alone_s = {name: max(of_alone[name].epoch_s, seconds) for name, seconds in epoch_s.items()}
        full, alone = (
            {name: seconds * self._costs.bags * self._costs.epochs(name) for name, seconds in costs.items()}
            for costs in (epoch_s, alone_s)
        )
        # the first job also reads the slides
        fixed_s = max(0.0, min(together[name].seconds for name in epoch_s) / (outer + 1))
        own_folds = any(slide.fold is not None for slide in self.cohort.slides)
        budget = (self.budget.left - self.budget.report_s) * self._costs.workers
        least = self._costs.least_share(epoch_s)
        design, dropped = fitting_design(full, SIMPLE, budget, outer, inner, fixed_s, least, alone)
        if own_folds:
            design = replace(design, outer=outer)
        left_out |= dict.fromkeys(dropped, TOO_SLOW)
        kept = [name for name in epoch_s if name not in dropped]
        plan = Plan(
            design=design, candidates=kept, epoch_s=epoch_s, left_out=left_out, alone_s=alone_s, fixed_s=fixed_s
        )
        plan.save(self.out)
        return plan

    def _trial(self, folder: str, trainings: int, names: Sequence[str] | None = None) -> dict[str, JobResult]:
        """Train candidates (None: all) on a few slides, so many times at once; slow ones are stopped."""
        names = list(self.candidates) if names is None else names
        attending = [name for name in names if self.candidates[name].attends]
        jobs = {
            name: SearchJob(
                f"trial of {self.candidates[name]}",
                self.out.absolute() / JOBS / folder / name,
                self.candidates[name].config({**self.common, "training.epochs": TRIAL_EPOCHS}),
                trial_splits(self.cohort, self.kind, trainings),
            )
            for name in names
        }
        ends_at = time.time() + TRIAL_SHARE * self.budget.seconds
        needed = (*SIMPLE, *attending[:1]) if trainings > 1 else names
        limit = Limit(ends_at, needed, {job.folder: 0.0 for job in jobs.values()})
        return self._run(jobs, "trial", limit)

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
            for name in _best_first(plan.candidates, list(histories.values())):
                for group, history in histories.items():
                    if not history or name in ranked(history[-1])[: rung.candidates]:
                        jobs[group, name] = self._inner_job(group, groups[group], name, number, rung)
            results = self._rung(jobs, number, plan, f"choosing, rung {number + 1} of {len(rungs)}")
            if not results:
                break
            for group, history in histories.items():
                scores = {name: result.score for (of, name), result in results.items() if of == group}
                # ties go to the simplest
                history.append({name: scores[name] for name in plan.candidates if name in scores})
        return list(histories.values())

    def _rung(
        self, jobs: Mapping[tuple[str, str], SearchJob], number: int, plan: Plan, stage: str
    ) -> dict[tuple[str, str], JobResult]:
        """The results of a rung, the best of the last rung first, of the candidates that the budget allows.

        Candidates that are not trained in all groups do not count; if a group has fewer than two, the rung does not.
        """
        if number in plan.cut:
            return self._run({key: job for key, job in jobs.items() if key[1] in plan.cut[number]}, stage)
        limit = Limit(
            time.time() + self._time_to_choose({name for _, name in jobs}, plan),
            self._indispensable(plan) if number == 0 else (),
            {job.folder: self._costs.of_job(job, plan) for job in jobs.values()},
        )
        results = self._run(jobs, stage, limit)
        missing = {key[1] for key in jobs if key not in results}
        if not missing:
            return results
        results = {key: result for key, result in results.items() if key[1] not in missing}
        per_group = Counter(group for group, _ in results)
        if number and any(per_group[group] < FINALISTS for group, _ in jobs):
            results = {}
        if number == 0:
            plan.left_out.update(dict.fromkeys(sorted(missing), TOO_SLOW))
        plan.cut[number] = list(dict.fromkeys(name for _, name in results))
        plan.save(self.out)
        return results

    def _time_to_choose(self, names: Collection[str], plan: Plan) -> float:
        """The seconds that are left for the choice among these candidates."""
        return self.budget.left - self.budget.report_s - self._costs.after_choice(names, plan)

    def _indispensable(self, plan: Plan) -> tuple[str, ...]:
        """The simple candidates and the cheapest attention method, which are compared whatever the budget is."""
        attending = [name for name in plan.candidates if self.candidates[name].attends]
        return (*SIMPLE, *sorted(attending, key=lambda name: plan.epoch_s[name])[:1])

    def _test(
        self, plan: Plan, outer: Splits, choices: Sequence[History], final: History
    ) -> tuple[dict[str, pd.DataFrame], dict[str, list[str]]]:
        """Train what every outer fold chose, its best attention method and the simple candidates; predict the fold."""
        roles: list[dict[str, str]] = []
        for history in choices:
            best = ranking(history)
            attention = next((name for name in best if self.candidates[name].attends), None)
            named = {"procedure": best[0], **{name: name for name in SIMPLE}}
            roles.append(named if attention is None else {**named, "attention": attention})
        jobs = self._test_jobs(plan, outer, roles)
        if plan.tested_share is None and not any(job.result for job in jobs.values()):
            self._shorten_tests(plan, list(jobs.values()), ranking(final)[0])
            jobs = self._test_jobs(plan, outer, roles)
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

    def _test_jobs(
        self, plan: Plan, outer: Splits, roles: Sequence[Mapping[str, str]]
    ) -> dict[tuple[int, str], SearchJob]:
        return {
            (fold, name): SearchJob(
                f"fold-{fold}, test, {self.candidates[name]}",
                self.out.absolute() / JOBS / f"fold-{fold}" / "test" / name,
                self.candidates[name].config(self.common, plan.share),
                Splits(outer.table[outer.table["fold"] == fold].assign(fold=0)),
            )
            for fold, named in enumerate(roles)
            for name in sorted(set(named.values()))
        }

    def _shorten_tests(self, plan: Plan, jobs: Sequence[SearchJob], chosen: str) -> None:
        """Lower the share of the epochs of tests and final model, if they would exceed the budget."""
        needed, left = self._costs.of_tests(jobs, chosen, plan), self.budget.left - self.budget.report_s
        if needed > left:
            share = max(self._costs.least_share(plan.candidates), plan.share * max(0.0, left) / needed)
            if share < plan.share:
                plan.tested_share = share
                plan.save(self.out)

    def _run(self, jobs: Mapping[Any, SearchJob], stage: str, limit: Limit | None = None) -> dict[Any, JobResult]:
        """The results of all jobs that end in time: those that are done are read, and a failed one has an error."""
        known = {key: job.result for key, job in jobs.items()}
        waiting = [jobs[key] for key, result in known.items() if result is None]
        unit = self.candidates[LINEAR].config(self.common).unit
        errors: dict[Path, str] = {}
        self.show(stage, len(jobs) - len(waiting), len(jobs))
        done = len(jobs) - len(waiting)
        batches = self._batches(waiting, limit)
        outcomes = self.engine.run(MakeTrainer(self.cohort, self.kind, unit, self.in_features), batches)
        try:
            for outcome in outcomes:
                if outcome.error is not None:
                    errors |= dict.fromkeys((job.folder for job in outcome.job.jobs), outcome.error)
                done += len(outcome.job.jobs)
                self.show(stage, done, len(jobs))
                self.budget.save()
        finally:
            self.budget.save()
        results = {
            key: result or jobs[key].result or JobResult(error=errors[jobs[key].folder])
            for key, result in known.items()
        }
        results = {key: result for key, result in results.items() if result.error != OUT_OF_TIME}
        for key, result in results.items():
            if result.epoch_s:
                self._costs.measured[jobs[key].folder.name] = result.epoch_s
        return results

    def _batches(self, jobs: Sequence[SearchJob], limit: Limit | None) -> list[JobBatch]:
        """The jobs of each candidate, which train at the same time; in more parts if there are more workers."""
        by_name: dict[str, list[SearchJob]] = {}
        for job in jobs:
            by_name.setdefault(job.folder.name, []).append(job)
        parts = -(-self._costs.workers // max(1, len(by_name)))
        batches = []
        for name, own in by_name.items():
            for part in filter(None, (own[start::parts] for start in range(parts))):
                if limit is None or name in limit.needed:
                    batches.append(JobBatch(tuple(part)))
                else:
                    seconds = sum(limit.seconds[job.folder] for job in part)
                    batches.append(JobBatch(tuple(part), limit.ends_at, seconds))
        return batches

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


def trial_splits(cohort: Cohort, kind: TaskKind, folds: int) -> Splits:
    """A few slides of all groups of outcomes, the same in every fold, for timing; nothing is held out."""
    subjects, _ = subjects_of(cohort, kind)
    draw = np.random.default_rng(0)
    groups = [draw.permutation(np.flatnonzero(subjects.targets == target)) for target in np.unique(subjects.targets)]
    picked = np.concatenate([group[: max(2, TRIAL_SLIDES // len(groups))] for group in groups])
    table = pd.DataFrame({"slide": subjects.names[picked], "patient": subjects.patients[picked], "role": "train"})
    return Splits(pd.concat([table.assign(fold=fold) for fold in range(folds)], ignore_index=True))


def _best_first(names: Sequence[str], histories: Sequence[History]) -> list[str]:
    """The candidates by their mean score in the last rung, the best first; as they are before the first rung."""

    def worst_last(name: str) -> float:
        scores = [history[-1][name] for history in histories if history and name in history[-1]]
        defined = [score for score in scores if not np.isnan(score)]
        return -fmean(defined) if defined else 0.0

    return sorted(names, key=worst_last)
