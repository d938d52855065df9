"""The maps of a run: of its trained models, and those recorded during training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np

from asmil.attention import measures
from asmil.cohort.bag import Bag
from asmil.cohort.features import inspect_features
from asmil.cohort.units import Unit, units_of
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.run_alarms import alarm_findings
from asmil.explain.color_scale import SIGNED_KINDS, average_weight
from asmil.explain.run_explainer import RunExplainer
from asmil.models.base import MILModel
from asmil.models.inference import infer
from asmil.runs.attention_file import read_attention
from asmil.runs.notes import read_kept_epoch
from asmil.runs.run import Run
from asmil.runs.trained_models import TrainedModel
from asmil.tables.arrays import Floats
from asmil.viewer.collection import ViewedRun
from asmil.viewer.content_token import features_state, run_token
from asmil.viewer.tile_values import TileValues

ROWS_KIND = "attention row"
TILE_KIND = "tile probability"
PREDICTED = "predicted"
TRAINED_ON_IT = "the models were trained on this slide"
MOST_MAPS = 8
MOST_ROWS = 512
MOST_NAMED = 8
AXIS_SIZES = {"token": "tokens", "branch": "branches", "head": "heads"}


@dataclass(frozen=True)
class MapChoice:
    """Which map of a run is shown.

    training: (fold, seed); None: the mean over all models that were not trained on the slide
    recorded: whether to show the attention recorded during training
    kind, part: of the map of a trained model; the part is the index of a class, head, token or branch
    """

    training: tuple[int, int] | None = None
    recorded: bool = False
    kind: str | None = None
    part: int = 0


class RunMaps:
    """All maps of one run. Models are loaded when a map first needs them, and again if the run was trained again.

    Thread-safe.
    """

    def __init__(self, run: ViewedRun, device: str = "auto") -> None:
        self._viewed = run
        self._run = Run(run.path, device)
        self._device = device
        self._lock = RLock()
        self._kinds: dict[str, list[str]] | None = None
        self._alarms: tuple[str, ...] | None = None
        self._computed: OrderedDict[tuple[object, ...], TileValues] = OrderedDict()
        self._manifest = self._run.cohort.manifest
        self._token = run_token(self._run.layout)

    @property
    def token(self) -> str:
        """Changes when the run is trained again; everything that was read from it is then dropped."""
        now = run_token(self._run.layout)
        if now != self._token:
            with self._lock:
                self._kinds = self._alarms = None
                self._computed.clear()
                with suppress(AsmilError):  # being written, or deleted: the next request tries again
                    self._run = Run(self._viewed.path, self._device)
                    self._token = now
        return now

    @property
    def alarms(self) -> tuple[str, ...]:
        """The alarms of the run, one sentence each; computed once."""
        with self._lock:
            if self._alarms is None:
                self._alarms = alarm_findings([self._viewed.path])
            return self._alarms

    def recorded(self, slide: str) -> list[dict[str, Any]]:
        """The trainings that recorded a slide: fold, seed, and number of recordings."""
        unit = self._unit(slide)
        trainings = []
        for fold, seed, folder in self._run.layout.trainings():
            record = read_attention(folder)
            if record is not None and unit.name in record.slides:
                trainings.append({"fold": fold, "seed": seed, "moments": len(record.epochs)})
        return trainings

    def why_not_recorded(self, slide: str) -> str:
        """Why a slide has no recorded attention, and what to do."""
        if self._run.settings.record.attention in (None, "none", 0):
            return (
                "This run recorded no attention. Train again into another folder with --set record.attention=all "
                "to see how attention evolved."
            )
        roles = set[str]()
        with suppress(AsmilError, OSError):  # the run has just begun
            roles = set(self._run.roles_of(slide))
        if roles == {"test"}:
            return (
                f"{slide} is a test slide. Attention is never recorded on test slides, since training must not use "
                f"them. {self._recorded_slides()}"
            )
        return (
            f"The attention of {slide} was not recorded. {self._recorded_slides()} To record every training and "
            "validation slide, train again into another folder with --set record.attention=all --set record.role=both."
        )

    def _recorded_slides(self) -> str:
        """Which slides to choose instead."""
        records = (read_attention(folder) for _, _, folder in self._run.layout.trainings())
        names = sorted({name for record in records if record is not None for name in record.slides})
        if not names:
            return "No slide was recorded yet."
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"Recorded: {', '.join(names[:MOST_NAMED])}{more}."

    def kinds(self, slide: str) -> list[dict[str, Any]]:
        """The kinds of maps of the trained models, with the names of their parts."""
        unit = self._unit(slide)
        with self._lock:
            if self._kinds is None:
                self._kinds = self._find_kinds(unit)
            return [{"kind": kind, "parts": parts} for kind, parts in self._kinds.items()]

    def trainings(self, slide: str) -> tuple[list[tuple[int, int]], str]:
        """Fold and seed of the models that are used for a slide, and a note if they were trained on it."""
        unit = self._unit(slide)
        with self._lock:
            note = TRAINED_ON_IT if self._run.saw(unit.name) else ""
            return [(trained.fold, trained.seed) for trained in self._run.trained_for(unit.name)], note

    def read(self, slide: str, choice: MapChoice) -> TileValues:
        if choice.recorded:
            return self._recorded(slide, choice)
        with self._lock:  # models compute one after the other
            unit = self._unit(slide)
            key = (slide, choice, *(repr(features_state(part.source)) for part in unit.slides))
            if key not in self._computed:
                self._computed[key] = self._compute(slide, choice)
            self._computed.move_to_end(key)
            while len(self._computed) > MOST_MAPS:
                self._computed.popitem(last=False)
            return self._computed[key]

    def _find_kinds(self, unit: Unit) -> dict[str, list[str]]:
        """The parts of every kind of map: classes to explain, or rows of the attention."""
        explainer = RunExplainer(self._run)
        trained = self._run.trained[0]
        own = trained.model.map_kinds if trained.model.has_tile_map else ()
        classes = list(explainer.names)
        asked = [PREDICTED, *classes] if len(classes) > 1 else []
        kinds = {kind: [] if kind in own and kind not in SIGNED_KINDS else asked for kind in explainer.kinds}
        bag, _ = self._run.bag(unit)
        rows = self._attention_rows(trained, bag)
        if rows is not None and 1 < len(rows) <= MOST_ROWS:
            kinds[ROWS_KIND] = row_names(trained.model, len(rows), tuple(classes))
        if explainer.tile_probabilities(bag):
            # the first is the default: of two classes the positive one, which is the second
            of_two = len(classes) == 2 and self._run.settings.task.kind in (None, "classification")
            kinds[TILE_KIND] = classes[::-1] if of_two else [PREDICTED, *classes]
        return kinds

    def _compute(self, slide: str, choice: MapChoice) -> TileValues:
        unit = self._unit(slide)
        explainer = RunExplainer(self._run)
        known = {entry["kind"]: entry["parts"] for entry in self.kinds(slide)}
        kind = choice.kind or next(iter(known), "attention")
        if kind not in known:
            raise AsmilError(f"{self._viewed.name}: there is no map '{kind}' of {slide}; {did_you_mean(kind, known)}")
        trained = self._run.trained_for(unit.name)
        if choice.training is not None:
            trained = [each for each in self._run.trained if (each.fold, each.seed) == choice.training]
            if not trained:
                raise AsmilError(f"{self._viewed.name}: no finished training of fold and seed {choice.training}")
        part, n_parts = choice.part, max(1, len(known[kind]))
        if not 0 <= part < n_parts:
            raise AsmilError(f"there is no part {part} of this map; it has {n_parts}")
        bag, headers = self._run.bag(unit)
        notes = [TRAINED_ON_IT] if self._run.saw(unit.name) else []
        explained = ""
        if kind == ROWS_KIND:
            rows = self._attention_rows(trained[0], bag)
            assert rows is not None
            values = rows[part]
            notes.append(f"one model: {self._run.fold_names[trained[0].fold]}, seed {trained[0].seed}")
        elif kind == TILE_KIND:
            name = known[kind][part]
            if name == PREDICTED and part == 0:
                name = explained = explainer.predicted(bag, trained)
            values = explainer.tile_probabilities(bag, trained)[f"probability {name}"]
        else:
            explanation = explainer.explain(bag, kind, known[kind][part] if part else None, trained)
            values, notes = explanation.values, [*notes, *explanation.notes]
            explained = explanation.name if known[kind] else ""
        whole = np.asarray(values, dtype=np.float64)
        average = average_weight(kind, whole)
        return TileValues(
            kind,
            whole[None, _tiles_of(slide, unit, [header.n_tiles for header in headers])],
            note="; ".join(notes),
            explained=explained,
            averages=None if average is None else (average,),
        )

    def _unit(self, slide: str) -> Unit:
        """The bag that a slide is part of."""
        if self._run.cohort.manifest != self._manifest:
            raise AsmilError(f"{self._viewed.name}: it was trained again on another cohort; restart asmil view")
        known = self._viewed.slides.get(slide)
        if known is None:
            raise AsmilError(
                f"{slide}: the run {self._viewed.name} has no features of this slide; extract them with `asmil "
                "extract`, or name their folder with --features"
            )
        if self._run.unit == "slide":
            return Unit.of_slide(known)
        units = units_of(tuple(self._viewed.slides.values()), "patient")
        return next(unit for unit in units if unit.name == known.patient)

    def _attention_rows(self, trained: TrainedModel, bag: Bag) -> Floats | None:
        """The attention of one model, A x N, one row per head, token, branch or class; None without attention."""
        output = infer(trained.model, trained.model.prepare(bag), self._run.device)
        if output.scores is None:
            return None
        return np.asarray(trained.model.normalizer(output.scores).double().numpy())

    def _recorded(self, slide: str, choice: MapChoice) -> TileValues:
        unit = self._unit(slide)
        if choice.training is None:
            raise AsmilError("recorded attention is that of one training; give its fold and seed")
        folders = {(fold, seed): folder for fold, seed, folder in self._run.layout.trainings()}
        if (folder := folders.get(choice.training)) is None:
            raise AsmilError(f"{self._viewed.name}: there is no training of fold and seed {choice.training}")
        record = read_attention(folder)
        if record is None or unit.name not in record.slides:
            raise AsmilError(self.why_not_recorded(slide))
        attention = record.attention(record.slides.index(unit.name))
        divergence = measures.in_blocks(measures.jsd, attention[1:], attention[:-1])
        tiles = _tiles_of(slide, unit, [inspect_features(part.source).n_tiles for part in unit.slides])
        values, n_tiles = attention[:, tiles], tiles.stop - tiles.start
        if values.shape[1] != n_tiles:
            raise AsmilError(
                f"{slide}: {values.shape[1]} tiles were recorded, its features have {n_tiles}; the features were "
                "extracted again after the training"
            )
        kept_epoch = read_kept_epoch(folder)
        return TileValues(
            "attention",
            values,
            tuple(record.epochs.tolist()),
            (None, *divergence.tolist()),
            None if kept_epoch is None else int(np.abs(record.epochs - kept_epoch).argmin()),
            averages=tuple(attention.mean(axis=1, dtype=np.float64).tolist()),
        )


def _tiles_of(slide: str, unit: Unit, n_tiles: Sequence[int]) -> slice:
    """The tiles of a slide in its bag, from the number of tiles of each slide."""
    index = [part.slide for part in unit.slides].index(slide)
    return slice(sum(n_tiles[:index]), sum(n_tiles[: index + 1]))


def row_names(model: MILModel, count: int, classes: tuple[str, ...]) -> list[str]:
    """Names of the rows of the scores: the axes of the method, outermost first, counted from 1."""
    axes = model.score_axes
    if axes == ("class",) and len(classes) == count:
        return list(classes)
    inner = getattr(model.config, AXIS_SIZES.get(axes[1], ""), None) if len(axes) == 2 else None
    if isinstance(inner, int) and inner > 0 and count % inner == 0:
        return [f"{axes[0]} {row // inner + 1}, {axes[1]} {row % inner + 1}" for row in range(count)]
    return [f"{axes[-1] if axes else 'row'} {row + 1}" for row in range(count)]


def choice_from(query: Mapping[str, str]) -> MapChoice:
    """The choice of a request."""
    training = None
    if query.get("training"):
        fold, _, seed = query["training"].partition("-")
        if not (fold.isdecimal() and seed.isdecimal()):
            raise AsmilError(f"training '{query['training']}' is not a fold and a seed, such as 0-0")
        training = (int(fold), int(seed))
    part = query.get("part", "0")
    if not part.isdecimal():
        raise AsmilError(f"part '{part}' is not a number")
    return MapChoice(training, query.get("source") == "recorded", query.get("kind") or None, int(part))
