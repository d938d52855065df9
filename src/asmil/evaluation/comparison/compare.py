"""Comparing runs: a score a run and measure, a difference a pair and measure, and what the differences are worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from asmil.errors import AsmilError
from asmil.evaluation.bootstrap import draw_patients, percentile_interval
from asmil.evaluation.comparison.cautions import cautions_of
from asmil.evaluation.comparison.findings import Comparison, Difference, EnsembleTest, FoldTest, Method, Score
from asmil.evaluation.comparison.measures import Floats, Measure
from asmil.evaluation.comparison.opening import names_of, open_runs, pairs_of, refuse_request
from asmil.evaluation.comparison.pair_tests import auc_test, f1_test, fold_test, part_sizes, seed_tests
from asmil.evaluation.comparison.pairing import Entrant, Unit, pair_runs
from asmil.evaluation.comparison.resampling import Arena, make_arena
from asmil.evaluation.run_evaluation import Role
from asmil.evaluation.statistics import Draws, draw_seeds_and_patients, holm, summarize_seed_bootstrap


def compare_runs(
    runs: Sequence[Path | str],
    role: Role = "test",
    resamples: int = 2000,
    seed: int = 0,
    *,
    reference: Path | str | None = None,
    all_pairs: bool = False,
    unit: Unit = "slide",
) -> Comparison:
    """Compare runs that were evaluated on the same slides of the same cohort.

    reference: the run the others are held against; default: the first; all_pairs: every run against every other
    unit: what is judged; `patient` averages the predictions of a patient's slides before anything else
    A run that cannot be read is told in `problems`, and the others are compared.
    """
    refuse_request(runs, role, resamples, reference, all_pairs, unit)
    opened, problems = open_runs(runs, reference)
    names = names_of(opened)
    rows, entrants = pair_runs(opened, names, role, unit)
    arena = make_arena(rows, entrants)
    methods, skipped = _methods(arena, resamples, seed)
    pairs = pairs_of(opened, names, reference, all_pairs)
    folds = {pair: _part_sizes(arena, pair, role, unit) for pair in pairs}
    differences = [
        replace(found, folds=_over_folds(arena, found, folds[found.run, found.reference]))
        for found in _differences(arena, pairs, resamples, seed)
    ]
    if rows.kind == "classification":
        differences = _with_holm([_with_tests(arena, found, seed) for found in differences])
    return Comparison(
        kind=rows.kind,
        role=role,
        unit=unit,
        measures=arena.measures,
        methods=methods,
        differences=tuple(differences),
        reference=None if all_pairs else pairs[0][1],
        n_slides=len(set(rows.slides)),
        n_patients=arena.n_patients,
        n_folds=len(set(rows.folds)),
        folds_joined=not rows.folds_overlap and all(measure.joins_folds for measure in arena.measures),
        resamples=resamples,
        skipped=skipped,
        bootstrap_seed=seed,
        family=sum(not math.isnan(found.p_holm) for found in differences),
        warnings=tuple(cautions_of(arena, differences)),
        problems=tuple(problems),
    )


def _methods(arena: Arena, resamples: int, seed: int) -> tuple[tuple[Method, ...], int]:
    """Every run with its scores, and how many draws of patients were left out."""
    counts = draw_patients(arena.n_patients, resamples, seed)
    drawn = arena.drawn(counts, list(arena.entrants.values()))
    methods = []
    for entrant in arena.entrants.values():
        scores = {
            measure.name: _score(arena, entrant, measure, drawn[entrant.name, measure.name])
            for measure in arena.measures
        }
        method, preset = (str(entrant.run.setting(key) or "unknown") for key in ("method", "preset"))
        methods.append(Method(entrant.name, str(entrant.run.path), method, preset, entrant.seeds, scores))
    skipped = int(np.isnan(next(iter(drawn.values()))).any(axis=1).sum())
    return tuple(methods), skipped


def _score(arena: Arena, entrant: Entrant, measure: Measure, drawn: Floats) -> Score:
    per_seed = arena.per_seed(entrant, measure)
    return Score(
        value=float(per_seed.mean()),
        interval=percentile_interval(drawn.mean(axis=1)),
        per_seed=dict(zip(entrant.seeds, per_seed.tolist(), strict=True)),
        per_fold=arena.per_fold(entrant, measure),
    )


def _differences(arena: Arena, pairs: Sequence[tuple[str, str]], resamples: int, seed: int) -> Iterator[Difference]:
    """Every pair (run, reference) in every measure, with the bootstrap over seeds and patients.

    Pairs with as many seeds have the same draws, which are judged once.
    """
    known: dict[tuple[int, int], tuple[Draws, dict[tuple[str, str], Floats]]] = {}
    for run, reference in pairs:
        ours, theirs = arena.entrants[run], arena.entrants[reference]
        sizes = len(ours.seeds), len(theirs.seeds)
        if sizes not in known:
            draws = draw_seeds_and_patients(*sizes, arena.n_patients, resamples, seed)
            involved = [entrant for entrant in arena.entrants.values() if len(entrant.seeds) in sizes]
            known[sizes] = draws, arena.drawn(draws.patients, involved)
        draws, values = known[sizes]
        for measure in arena.measures:
            difference = float(arena.per_seed(ours, measure).mean() - arena.per_seed(theirs, measure).mean())
            found = summarize_seed_bootstrap(
                difference, values[run, measure.name], values[reference, measure.name], draws
            )
            yield Difference(run, reference, measure, difference, found.interval, found.sd, found.skipped)


def _with_tests(arena: Arena, found: Difference, seed: int) -> Difference:
    """The difference with the test of the seed ensembles and those of single seeds."""

    def test(ours: Floats, theirs: Floats) -> EnsembleTest:
        if found.measure.name == "macro_auc":
            return auc_test(arena.rows, ours, theirs)
        return f1_test(arena.rows, ours, theirs, seed)

    run, reference = arena.entrants[found.run], arena.entrants[found.reference]
    by_seed = [test(ours, theirs).p for ours, theirs in zip(run.predictions, reference.predictions, strict=False)]
    return replace(
        found,
        ensemble=test(run.predictions.mean(axis=0), reference.predictions.mean(axis=0)),
        per_seed=seed_tests(run.seeds, reference.seeds, by_seed),
    )


def _part_sizes(arena: Arena, pair: tuple[str, str], role: Role, unit: Unit) -> tuple[float, float] | str:
    """Mean sizes of a fold's training part and evaluated part; a sentence where `splits.csv` does not tell them."""
    counted: Unit = "patient" if arena.rows.kind == "survival" else unit
    try:
        # where the training parts differ, the smaller one: it gives the larger p
        return min(part_sizes(arena.entrants[name].run.path, role, counted) for name in pair)
    except AsmilError as error:
        return str(error)


def _over_folds(arena: Arena, found: Difference, sizes: tuple[float, float] | str) -> FoldTest | None:
    ours, theirs = (arena.per_fold(arena.entrants[name], found.measure) for name in (found.run, found.reference))
    if len(ours) < 2:
        return None
    return fold_test([ours[fold] - theirs[fold] for fold in ours], sizes)


def _with_holm(differences: Sequence[Difference]) -> list[Difference]:
    """The differences with the p-values of their ensemble tests adjusted over all that have one."""
    p = {place: one.ensemble.p for place, one in enumerate(differences) if one.ensemble is not None}
    family = [place for place in p if not math.isnan(p[place])]
    adjusted = dict(zip(family, holm([p[place] for place in family]).tolist(), strict=True))
    return [replace(one, p_holm=adjusted.get(place, math.nan)) for place, one in enumerate(differences)]
