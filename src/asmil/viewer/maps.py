"""The maps of a run: by its trained models, and as they were recorded during training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from asmil.attention import measures
from asmil.cohort.features import inspect_features
from asmil.cohort.manifest import Slide
from asmil.cohort.units import Unit, units_of
from asmil.errors import AsmilError, did_you_mean
from asmil.explain.color_scale import average_weight
from asmil.runs.attention_file import AttentionRecord, read_attention
from asmil.runs.layout import RunLayout
from asmil.runs.notes import read_kept_epoch
from asmil.runs.run import read_fold_names, setting
from asmil.viewer.collection import ViewedRun
from asmil.viewer.content_token import features_state, run_token
from asmil.viewer.tile_values import TileValues

if TYPE_CHECKING:
    from asmil.cohort.bag import Bag
    from asmil.explain.run_explainer import RunExplainer
    from asmil.models.base import MILModel
    from asmil.runs.prediction import TrainedModel

ROWS_KIND = "attention row"
TILE_KIND = "tile probability"
PREDICTED = "predicted"
MOST_MAPS = 8
MOST_ROWS = 512
MOST_NAMED = 8
AXIS_SIZES = {"token": "tokens", "branch": "branches", "head": "heads"}


@dataclass(frozen=True)
class MapChoice:
    """Which map of a run.

    training: (fold, seed); None: all models that were not trained on the slide, averaged
    recorded: as it was recorded during training
    kind, part: of a trained model's map; the part is a class, head, token or branch
    """

    training: tuple[int, int] | None = None
    recorded: bool = False
    kind: str | None = None
    part: int = 0


def joins_slides(config: Mapping[str, Any]) -> bool:
    """Whether the models of a run read all slides of a patient as one bag."""
    unit = setting(config, "data", "unit")
    return unit == "patient" or (unit in (None, "auto") and setting(config, "task", "kind") == "survival")


class RunMaps:
    """All maps of one run. Models are loaded when a map first needs them, and again when the run was trained again.

    Safe from several threads.
    """

    def __init__(self, run: ViewedRun, device: str = "auto") -> None:
        self._run = run
        self._layout = RunLayout(run.path)
        self._config = self._layout.read_values()
        self._device = device
        self._lock = RLock()
        self._explainer: RunExplainer | None = None
        self._kinds: dict[str, list[str]] | None = None
        self._alarms: tuple[str, ...] | None = None
        self._computed: OrderedDict[tuple[object, ...], TileValues] = OrderedDict()
        self._manifest = setting(self._config, "cohort", "manifest")
        self._token = run_token(self._layout)

    @property
    def token(self) -> str:
        """Changes when the run is trained again; what was read of it before is forgotten then."""
        now = run_token(self._layout)
        if now != self._token:
            self._forget(now)
        return now

    def _forget(self, token: str) -> None:
        with self._lock:
            self._explainer = self._kinds = self._alarms = None
            self._computed.clear()
            try:
                self._config = self._layout.read_values()
            except AsmilError:
                return  # being written, or gone: the next request looks again
            self._token = token

    @property
    def by_patient(self) -> bool:
        """Whether the models read all slides of a patient as one bag."""
        return joins_slides(self._config)

    @property
    def alarms(self) -> tuple[str, ...]:
        """What is wrong with the run, one sentence each; found out once."""
        from asmil.evaluation.run_alarms import alarm_findings

        with self._lock:
            if self._alarms is None:
                self._alarms = alarm_findings([self._run.path])
            return self._alarms

    def recorded(self, slide: str) -> list[dict[str, Any]]:
        """The trainings that recorded a slide: fold, seed, and how many moments."""
        unit, _ = self._place(slide)
        found = []
        for fold, seed, folder in self._layout.trainings():
            record = read_attention(folder)
            if record is not None and unit.name in record.slides:
                found.append({"fold": fold, "seed": seed, "moments": len(record.epochs)})
        return found

    def why_not_recorded(self, slide: str) -> str:
        """What to do to see recorded attention, for a slide that has none."""
        if setting(self._config, "record", "attention") in (None, "none", 0):
            return (
                "This run recorded no attention. Train again into another folder with --set record.attention=all "
                "to see how attention evolved."
            )
        if self._roles(slide) == {"test"}:
            return (
                f"{slide} is a test slide, and attention is never recorded on those: a training must not look at "
                f"them. {self._recorded_slides()}"
            )
        return (
            f"The attention of {slide} was not recorded. {self._recorded_slides()} To record every training and "
            "validation slide, train again into another folder with --set record.attention=all --set record.role=both."
        )

    def _recorded_slides(self) -> str:
        """Which slides to choose instead."""
        records = (read_attention(folder) for _, _, folder in self._layout.trainings())
        names = sorted({name for record in records if record is not None for name in record.slides})
        if not names:
            return "No slide was recorded yet."
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"Recorded: {', '.join(names[:MOST_NAMED])}{more}."

    def _roles(self, slide: str) -> set[str]:
        from asmil.cohort.splits import Splits

        try:
            table = Splits.load(self._layout.splits).table
        except (AsmilError, OSError):
            return set()  # the run has just begun
        return set(table.loc[table["slide"] == slide, "role"])

    def kinds(self, slide: str) -> list[dict[str, Any]]:
        """The kinds of map that the trained models have, with the names of their parts."""
        unit, _ = self._place(slide)
        with self._lock:
            if self._kinds is None:
                self._kinds = self._find_kinds(unit)
            return [{"kind": kind, "parts": parts} for kind, parts in self._kinds.items()]

    def trainings(self, slide: str) -> tuple[list[tuple[int, int]], str]:
        """Fold and seed of the models that are used for a slide, and a note if they were trained on it."""
        unit, _ = self._place(slide)
        explainer = self._models()
        note = "the models were trained on this slide" if explainer.saw(unit.name) else ""
        return [(one.fold, one.seed) for one in explainer.trained_for(unit.name)], note

    def read(self, slide: str, choice: MapChoice) -> TileValues:
        """The values of a map."""
        if choice.recorded:
            return self._recorded(slide, choice)
        with self._lock:  # models compute one after another
            unit, _ = self._place(slide)
            key = (slide, choice, *(repr(features_state(one.source)) for one in unit.slides))
            if key not in self._computed:
                self._computed[key] = self._compute(slide, choice)
            self._computed.move_to_end(key)
            while len(self._computed) > MOST_MAPS:
                self._computed.popitem(last=False)
            return self._computed[key]

    def _models(self) -> RunExplainer:
        from asmil.explain.run_explainer import RunExplainer

        with self._lock:
            if self._explainer is None:
                self._explainer = RunExplainer(self._run.path, self._device)
            return self._explainer

    def _find_kinds(self, unit: Unit) -> dict[str, list[str]]:
        """Every kind of map, and its parts: classes to explain, or rows of the attention."""
        explainer = self._models()
        one = explainer.predictor.trained[0]
        own = one.model.map_kinds if one.model.has_tile_map else ()
        classes = list(explainer.names)
        asked = [PREDICTED, *classes] if len(classes) > 1 else []
        kinds = {kind: [] if kind in own else asked for kind in explainer.kinds}
        bag = explainer.read_unit(unit)
        rows = _attention_rows(one, bag, explainer)
        if rows is not None and 1 < len(rows) <= MOST_ROWS:
            kinds[ROWS_KIND] = row_names(one.model, len(rows), tuple(classes))
        if explainer.tile_probabilities(bag):
            kinds[TILE_KIND] = self._tile_classes(classes)
        return kinds

    def _tile_classes(self, classes: list[str]) -> list[str]:
        """The classes of tiles, the one to begin with first: of two the positive one, which is the second."""
        of_two = len(classes) == 2 and setting(self._config, "task", "kind") in (None, "classification")
        return classes[::-1] if of_two else [PREDICTED, *classes]

    def _compute(self, slide: str, choice: MapChoice) -> TileValues:
        unit, here = self._place(slide)
        explainer = self._models()
        known = {entry["kind"]: entry["parts"] for entry in self.kinds(slide)}
        kind = choice.kind or next(iter(known), "attention")
        if kind not in known:
            raise AsmilError(f"{self._run.name}: there is no map '{kind}' of {slide}; {did_you_mean(kind, known)}")
        trained = explainer.trained_for(unit.name)
        if choice.training is not None:
            chosen = [one for one in explainer.predictor.trained if (one.fold, one.seed) == choice.training]
            if not chosen:
                raise AsmilError(f"{self._run.name}: no finished training of fold and seed {choice.training}")
            trained = chosen
        part = _within(choice.part, max(1, len(known[kind])))
        bag = explainer.read_unit(unit)
        notes = ["the models were trained on this slide"] if explainer.saw(unit.name) else []
        explained = ""
        if kind == ROWS_KIND:
            rows = _attention_rows(trained[0], bag, explainer)
            assert rows is not None
            values = rows[part]
            notes.append(f"one model: {read_fold_names(explainer.path)[trained[0].fold]}, seed {trained[0].seed}")
        elif kind == TILE_KIND:
            name = known[kind][part]
            if name == PREDICTED and part == 0:
                name = explained = explainer.predicted(bag, trained)
            values = explainer.tile_probabilities(bag, trained)[f"probability {name}"]
        else:
            found = explainer.explain(bag, kind, known[kind][part] if part else None, trained)
            values, notes = found.values, [*notes, *found.notes]
            explained = found.name if known[kind] else ""
        whole = np.asarray(values, dtype=np.float64)
        average = average_weight(kind, whole)
        return TileValues(
            kind,
            whole[None, here],
            note="; ".join(notes),
            explained=explained,
            averages=None if average is None else (average,),
        )

    def _place(self, slide: str) -> tuple[Unit, slice]:
        """The bag that a slide is part of, and where its tiles are in it."""
        if setting(self._config, "cohort", "manifest") != self._manifest:
            raise AsmilError(f"{self._run.name}: the run was trained again on another cohort; start asmil view again")
        known = self._run.slides.get(slide)
        if known is None:
            raise AsmilError(
                f"{slide}: the run {self._run.name} has no features of this slide; extract them with `asmil extract`, "
                "or name their folder with --features"
            )
        if not self.by_patient:
            return Unit.of_slide(known), slice(None)
        return self._joined(known)

    def _joined(self, known: Slide) -> tuple[Unit, slice]:
        unit = next(
            unit
            for unit in units_of(tuple(self._run.slides.values()), "patient")
            if any(one.slide == known.slide for one in unit.slides)
        )
        start = 0
        for one in unit.slides:
            n_tiles = inspect_features(one.source).n_tiles
            if one.slide == known.slide:
                return unit, slice(start, start + n_tiles)
            start += n_tiles
        raise AssertionError("a slide is part of its patient")

    def _recorded(self, slide: str, choice: MapChoice) -> TileValues:
        unit, here = self._place(slide)
        if choice.training is None:
            raise AsmilError("recorded attention is that of one training; give its fold and seed")
        folder = self._folder(choice.training)
        record = read_attention(folder)
        if record is None or unit.name not in record.slides:
            raise AsmilError(self.why_not_recorded(slide))
        attention = record.attention(record.slides.index(unit.name))
        divergence = measures.in_blocks(measures.jsd, attention[1:], attention[:-1])
        part = attention[:, here]
        n_tiles = inspect_features(self._run.slides[slide].source).n_tiles
        if part.shape[1] != n_tiles:
            raise AsmilError(
                f"{slide}: {part.shape[1]} tiles were recorded, its features have {n_tiles}; the features were "
                "extracted again after the training"
            )
        return TileValues(
            "attention",
            part,
            tuple(record.epochs.tolist()),
            (None, *divergence.tolist()),
            _kept_moment(folder, record),
            averages=tuple(attention.mean(axis=1, dtype=np.float64).tolist()),
        )

    def _folder(self, training: tuple[int, int]) -> Path:
        known = {(fold, seed): folder for fold, seed, folder in self._layout.trainings()}
        if training not in known:
            raise AsmilError(f"{self._run.name}: there is no training of fold {training[0]}, seed {training[1]}")
        return known[training]


def _attention_rows(trained: TrainedModel, bag: Bag, explainer: RunExplainer) -> npt.NDArray[np.float64] | None:
    """The attention of every row (head, token, branch or class) of one model, A x N; None without attention."""
    from asmil.models.inference import infer

    output = infer(trained.model, trained.model.prepare(bag), explainer.predictor.device)
    if output.scores is None:
        return None
    return np.asarray(trained.model.normalizer(output.scores).double().numpy())


def _within(part: int, count: int) -> int:
    if not 0 <= part < count:
        raise AsmilError(f"there is no part {part} of this map; it has {count}")
    return part


def row_names(model: MILModel, count: int, classes: tuple[str, ...]) -> list[str]:
    """Names of the rows of the scores: the axes of the method, outermost first, counted from 1."""
    axes = model.score_axes
    if axes == ("class",) and len(classes) == count:
        return list(classes)
    sizes = _axis_sizes(model, axes, count)
    if sizes is None:
        return [f"{axes[-1] if axes else 'row'} {row + 1}" for row in range(count)]
    places = (np.unravel_index(row, sizes) for row in range(count))
    return [", ".join(f"{axis} {int(at) + 1}" for axis, at in zip(axes, place, strict=True)) for place in places]


def _axis_sizes(model: MILModel, axes: tuple[str, ...], count: int) -> tuple[int, ...] | None:
    if len(axes) != 2:
        return None
    inner = getattr(model.config, AXIS_SIZES.get(axes[1], ""), None)
    return (count // inner, inner) if isinstance(inner, int) and inner > 0 and count % inner == 0 else None


def _kept_moment(folder: Path, record: AttentionRecord) -> int | None:
    epoch = read_kept_epoch(folder)
    return None if epoch is None else int(np.abs(record.epochs - epoch).argmin())


def choice_from(query: Mapping[str, str]) -> MapChoice:
    """The choice that a request names."""
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
