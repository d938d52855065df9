"""Faithfulness of the maps of a run: patch flipping on its test slides, with controls and localization."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from asmil.cohort.bag import Bag
from asmil.cohort.problems import raise_errors
from asmil.cohort.splits import Roles
from asmil.cohort.tile_truth import TRUTH_FILE, read_tile_truth
from asmil.cohort.units import Unit, units_of
from asmil.engine.inline import InlineEngine
from asmil.engine.jobs import Engine, Place, Progress, made_progress
from asmil.errors import AsmilError, did_you_mean
from asmil.explain.flipping import SHARES, Ask, FlippedSlide, Flipping, flip, read_flipped
from asmil.explain.ingredients import keeps, run_contents, slide_contents
from asmil.explain.kinds import KINDS, kinds_of, logits_after_removal
from asmil.explain.run_explainer import RunExplainer
from asmil.files import remove_abandoned
from asmil.reporting import Estimate
from asmil.runs.bundle import refuse_bundle
from asmil.runs.run import Run
from asmil.runs.trained_models import TrainedModel
from asmil.settings.made_from import DoneBefore, MadeFrom, file_content
from asmil.tables.arrays import Booleans, Floats, Integers
from asmil.tasks.base import TaskKind
from asmil.tasks.classification import normal_labels
from asmil.tasks.intervals import drawn_slides, mean_estimate
from asmil.tasks.prediction_format import prediction_format

RANDOM, ORACLE = "random", "oracle"
CONTROLS = (RANDOM, ORACLE)
RANDOM_ORDERS = 3


@dataclass(frozen=True)
class FaithfulnessSettings:
    """The options of the command.

    kinds: kinds of maps; empty: all kinds of the method
    name: the class to explain; default: the predicted class of each slide
    slides: largest number of slides, the first of the role; None: all
    truth: a table of the tumor tiles, for the oracle; default: the one next to the manifest, if there is one
    method: confirms the run's method if it is the user's own code
    """

    kinds: tuple[str, ...] = ()
    name: str | None = None
    role: Roles = "test"
    slides: int | None = None
    truth: Path | None = None
    features: Path | None = None
    resamples: int = 2000
    seed: int = 0
    device: str = "auto"
    method: str | None = None


@dataclass(frozen=True)
class KindSummary:
    """The numbers of one kind of map, or of a control.

    area, evidence_area: area between the curves, mean over slides
    over_attention: difference from the area of the method's own map; None for that map itself
    tile_auc, froc: localization, if there are annotations
    """

    area: Estimate
    evidence_area: Estimate
    over_attention: Estimate | None = None
    tile_auc: Estimate | None = None
    froc: Estimate | None = None


@dataclass(frozen=True)
class Faithfulness:
    """The result for one run.

    first_kind: the method's own map, with which the others are compared
    curves: for every order the mean over slides at `SHARES`, most and least relevant first
    alarms: of the run; set by the caller
    """

    path: Path
    method: str
    task: TaskKind
    settings: FaithfulnessSettings
    first_kind: str
    kinds: Mapping[str, KindSummary]
    curves: Mapping[str, tuple[Floats, Floats]]
    slides: tuple[FlippedSlide, ...]
    n_patients: int
    n_models: int
    missing: Mapping[str, str]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.resolve().name


Locate = Callable[[str, Path, frozenset[str]], tuple[Estimate, Estimate] | None]
"""Tile AUC and FROC of a kind of map, from the table of tumor tiles and the slides; None if they are undefined."""
MakeEngine = Callable[[int], Engine]
"""Makes the engine for a number of slides."""


def faithfulness_run(
    run: Path | str,
    settings: FaithfulnessSettings | None = None,
    progress: Progress | None = None,
    locate: Locate | None = None,
    engine: MakeEngine | None = None,
    keep: Path | None = None,
    done_before: DoneBefore | None = None,
) -> Faithfulness:
    """Flip the tiles of a run's slides in the order of each kind of map.

    Every slide is explained, and predicted again, by the models that were not trained on it. A slide that cannot be
    used is listed in `problems`.

    locate: measures how well a kind of map finds the tumor, for runs that classify slides with known tumor tiles
    engine: where the slides are computed; default: in this process
    keep: a folder for finished slides, which are not computed again
    done_before: decides about finished slides that were made from something else; default: they are refused
    """
    settings = settings or FaithfulnessSettings()
    explainer = RunExplainer(Run(run, settings.device, settings.method))
    kinds, missing = _kinds(explainer, settings)
    units = _units(explainer, settings)
    truth = _truth_table(explainer, settings)
    if keep is not None:
        remove_abandoned(keep)
    plan = FlippingPlan(explainer.run.path, settings, tuple(kinds), truth, keep and keep.absolute())
    stored = plan.stored(units, done_before or DoneBefore())
    flipped, problems = _flip_slides(units, stored, plan, explainer, engine, progress or (lambda done, total: None))
    if not flipped:
        listed = "".join(f"\n  - {line}" for line in problems)
        raise AsmilError(f"{run}: no slide with the role {settings.role} could be evaluated{listed}")
    summaries = _summaries(flipped, kinds, settings)
    task = explainer.run.kind
    if locate is not None and truth is not None and prediction_format(task).part_name == "class":
        slides = frozenset(slide.slide for unit in units for slide in unit.slides)
        for kind in [kind for kind in summaries if kind not in CONTROLS]:
            if (located := locate(kind, truth, slides)) is not None:
                summaries[kind] = replace(summaries[kind], tile_auc=located[0], froc=located[1])
    return Faithfulness(
        path=explainer.run.path,
        method=explainer.run.method,
        task=task,
        settings=settings,
        first_kind=kinds[0],
        kinds=summaries,
        curves={name: _mean_curves(flipped, name) for name in summaries},
        slides=tuple(flipped),
        n_patients=len({slide.patient for slide in flipped}),
        n_models=len(explainer.run.trained),
        missing=missing,
        problems=tuple(problems),
        notes=tuple(_notes(explainer, settings)),
    )


@dataclass(frozen=True)
class FlippingPlan:
    """Everything that a worker needs to flip the tiles of slides.

    truth: the table of the tumor tiles, if there is one; kept: the folder of finished slides, one JSON file each
    """

    run: Path
    settings: FaithfulnessSettings
    kinds: tuple[str, ...]
    truth: Path | None
    kept: Path | None

    def __call__(self, worker: Place) -> Callable[[Unit], FlippedSlide]:
        device = worker.device if self.settings.device == "auto" else self.settings.device
        return self.worker(RunExplainer(Run(self.run, device, self.settings.method)))

    def worker(self, explainer: RunExplainer) -> Callable[[Unit], FlippedSlide]:
        """A function from a slide to its curves, which it also stores."""
        truth = None
        if self.truth is not None:
            truth = {str(slide): rows for slide, rows in read_tile_truth(self.truth).groupby("slide")}
        made_from = self.made_from()

        def flip_slide(unit: Unit) -> FlippedSlide:
            record = None if self.kept is None else made_from(unit).record()
            flipped = _flip_slide(explainer, unit, self.kinds, self.settings, truth)
            if self.kept is not None:
                replace(flipped, made_from=record).write(self.kept)
            return flipped

        return flip_slide

    def stored(self, units: Sequence[Unit], done: DoneBefore) -> dict[str, FlippedSlide]:
        """The finished slides that are kept."""
        if self.kept is None:
            return {}
        finished, made_from = {}, self.made_from()
        for unit in units:
            stored = read_flipped(self.kept, unit.name)
            if stored is not None and keeps(done, unit.name, stored.made_from, partial(made_from, unit)):
                finished[unit.name] = stored
        done.refuse(self.kept)
        return finished

    def made_from(self) -> Callable[[Unit], MadeFrom]:
        """A function from a slide to everything that its curves are computed from."""
        settings = {
            "kinds": self.kinds,
            "class": self.settings.name,
            "seed": self.settings.seed,
            "shares": [float(share) for share in SHARES],
            "random orders": RANDOM_ORDERS,
        }
        of_run = run_contents([self.run])
        if self.truth is not None:
            of_run["tile truth"] = file_content(self.truth)
        return lambda unit: MadeFrom(settings, {**of_run, **slide_contents(unit.slides[0], unit.slides)})


def _flip_slides(
    units: Sequence[Unit],
    stored: Mapping[str, FlippedSlide],
    plan: FlippingPlan,
    explainer: RunExplainer,
    engine: MakeEngine | None,
    progress: Progress,
) -> tuple[list[FlippedSlide], list[str]]:
    """The slides in their order, and the errors of those that failed; slides in `stored` are not computed again."""
    flipped = dict(stored)
    problems: dict[str, str] = {}
    to_do = [unit for unit in units if unit.name not in stored]
    chosen = InlineEngine() if engine is None else engine(len(to_do))
    # the models are already loaded in this process
    make_worker = (lambda worker: plan.worker(explainer)) if isinstance(chosen, InlineEngine) else plan
    with closing(chosen.run(make_worker, to_do)) as outcomes:
        for done, outcome in enumerate(outcomes, start=len(stored) + 1):
            name = outcome.job.name
            if outcome.result is not None:
                flipped[name] = outcome.result
            else:
                error = str(outcome.error)
                problems[name] = error if name in error else f"{name}: {error}"
            made_progress()
            progress(done, len(units))
    names = [unit.name for unit in units]
    return [flipped[name] for name in names if name in flipped], [problems[name] for name in names if name in problems]


def _kinds(explainer: RunExplainer, settings: FaithfulnessSettings) -> tuple[list[str], dict[str, str]]:
    """The kinds that are flipped, the method's own first, and why the method lacks others."""
    known = kinds_of(explainer.run.models[0])
    missing = {kind: why for kind, why in known.items() if why is not None}
    own = explainer.kinds[0]
    explainer.refuse_unknown(settings.name)
    if not settings.kinds:
        return [own, *(kind for kind in KINDS if known[kind] is None and kind != own)], missing
    for kind in settings.kinds:
        if kind not in known:
            raise AsmilError(f"there is no kind of map {kind!r}; {did_you_mean(kind, known)}")
        if kind in missing:
            raise AsmilError(f"{explainer.run.path}: {explainer.run.method} has no map {kind!r}: {missing[kind]}")
    return list(dict.fromkeys(settings.kinds)), missing


def _units(explainer: RunExplainer, settings: FaithfulnessSettings) -> list[Unit]:
    refuse_bundle(explainer.run.path)
    run, trained_on = explainer.run, explainer.run.cohort
    if not trained_on.is_there:
        raise AsmilError(
            f"{trained_on.manifest}: the manifest of the run was not found; run the command where the run was trained"
        )
    cohort, problems = trained_on.read(features=settings.features)
    raise_errors(problems)
    units = [unit for unit in units_of(cohort.slides, run.unit) if settings.role in run.roles_of(unit.name, run.unit)]
    if not units:
        raise AsmilError(f"{explainer.run.path}: no slide has the role {settings.role}; choose another with --role")
    return units[: settings.slides]


def _flip_slide(
    explainer: RunExplainer,
    unit: Unit,
    kinds: Sequence[str],
    settings: FaithfulnessSettings,
    truth: Mapping[str, pd.DataFrame] | None,
) -> FlippedSlide:
    bag, _ = explainer.run.bag(unit)
    if len(bag) < 2:
        raise AsmilError(f"{unit.name}: it has one tile, so none can be removed")
    trained = explainer.run.trained_for(bag.id)
    name = settings.name or explainer.predicted(bag, trained)
    ask = _ask(explainer, trained, bag, name)
    draw = np.random.default_rng([settings.seed, zlib.crc32(bag.id.encode())])
    orders = {}
    shown = 0.0
    for kind in kinds:
        explanation = explainer.explain(bag, kind, name, trained)
        shown = explanation.shown
        orders[kind] = flip(explanation.values, ask, draw.permutation(len(bag)))
        made_progress()
    tumor = None if truth is None else _tumor_of(unit, bag, truth)
    if tumor is not None and tumor.any() and not tumor.all():
        sign = -1.0 if name in normal_labels(explainer.names) else 1.0
        orders[ORACLE] = flip(sign * tumor, ask, draw.permutation(len(bag)))
    random = tuple(flip(draw.random(len(bag)), ask, draw.permutation(len(bag))) for _ in range(RANDOM_ORDERS))
    return FlippedSlide(unit.name, unit.patient, name, shown, len(bag), orders, random)


def _ask(explainer: RunExplainer, trained: Sequence[TrainedModel], bag: Bag, name: str) -> Ask:
    index, device = explainer.names.index(name), explainer.run.device

    def ask(order: Integers, counts: Sequence[int]) -> Floats:
        by_model = []
        for each in trained:
            logits = logits_after_removal(each.model, bag, torch.from_numpy(order.copy()), counts, device)
            by_model.append([each.task.evidence(logits, index).numpy(), each.task.shown(logits, index).numpy()])
        return np.asarray(np.mean(by_model, axis=0).T)

    return ask


def _truth_table(explainer: RunExplainer, settings: FaithfulnessSettings) -> Path | None:
    """The table of tiles that is given, or the one next to the manifest, if there is one."""
    if settings.truth is not None:
        read_tile_truth(settings.truth)  # so that an error in it is reported once, at the start
        return settings.truth
    beside = Path(str(explainer.run.cohort.manifest)).parent / TRUTH_FILE
    return beside if beside.is_file() else None


def _tumor_of(unit: Unit, bag: Bag, truth: Mapping[str, pd.DataFrame]) -> Booleans | None:
    """N, whether each tile is tumor; None if the table does not have all tiles of the slide."""
    if bag.coords is None:
        return None
    index = np.zeros(len(bag), dtype=int) if bag.slide_index is None else bag.slide_index.numpy()
    is_tumor = np.zeros(len(bag), dtype=bool)
    for number, slide in enumerate(unit.slides):
        rows = truth.get(slide.slide)
        if rows is None:
            return None
        tumor = {(int(x), int(y)): bool(t) for x, y, t in rows[["x", "y", "tumor"]].itertuples(index=False)}
        tiles = np.flatnonzero(index == number)
        corners = [(int(x), int(y)) for x, y in bag.coords[torch.from_numpy(tiles)].tolist()]
        if not all(corner in tumor for corner in corners):
            return None
        is_tumor[tiles] = [tumor[corner] for corner in corners]
    return is_tumor


def _summaries(
    flipped: Sequence[FlippedSlide], kinds: Sequence[str], settings: FaithfulnessSettings
) -> dict[str, KindSummary]:
    """Means over slides, with intervals by resampling patients; all orders use the same resamples."""
    counts = drawn_slides([slide.patient for slide in flipped], settings.resamples, settings.seed)
    areas = {name: _areas(flipped, name, shown=True) for name in (*kinds, *CONTROLS)}
    evidence = {name: _areas(flipped, name, shown=False) for name in areas}
    first = areas[kinds[0]]
    return {
        name: KindSummary(
            mean_estimate(values, counts),
            mean_estimate(evidence[name], counts),
            None if name == kinds[0] else mean_estimate(values - first, counts),
        )
        for name, values in areas.items()
        if not np.isnan(values).all()
    }


def _areas(flipped: Sequence[FlippedSlide], name: str, shown: bool) -> Floats:
    def of(flipping: Flipping) -> float:
        return flipping.area if shown else flipping.evidence_area

    if name == RANDOM:
        return np.array([np.mean([of(flipping) for flipping in slide.random]) for slide in flipped])
    return np.array([of(slide.orders[name]) if name in slide.orders else np.nan for slide in flipped])


def _mean_curves(flipped: Sequence[FlippedSlide], name: str) -> tuple[Floats, Floats]:
    """Most and least relevant first, as shown to readers, at `SHARES`, since slides have different numbers of tiles."""
    if name == RANDOM:
        flippings = [flipping for slide in flipped for flipping in slide.random]
    else:
        flippings = [slide.orders[name] for slide in flipped if name in slide.orders]
    most = [np.interp(SHARES, flipping.removed, flipping.most_first_shown) for flipping in flippings]
    least = [np.interp(SHARES, flipping.removed, flipping.least_first_shown) for flipping in flippings]
    return np.mean(most, axis=0), np.mean(least, axis=0)


def _notes(explainer: RunExplainer, settings: FaithfulnessSettings) -> list[str]:
    notes = []
    if settings.role != "test":
        notes.append(f"these slides are from the {settings.role} part, which the models have seen")
    if explainer.run.n_unfinished:
        notes.append(f"{explainer.run.n_unfinished} trainings of the run are unfinished; their models are not used")
    return notes
