"""The maps of a run: by its trained models, and as they were recorded during training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from asmil.attention import measures
from asmil.cohort.features import inspect_features
from asmil.cohort.manifest import Slide
from asmil.cohort.units import Unit, units_of
from asmil.errors import AsmilError, did_you_mean
from asmil.training.attention_file import AttentionRecord, read_attention
from asmil.training.finished_run import setting
from asmil.training.layout import RunLayout
from asmil.training.notes import read_kept_epoch
from asmil.viewer.collection import ViewedRun
from asmil.viewer.tile_values import TileValues

if TYPE_CHECKING:
    from asmil.models.base import MILModel, Output
    from asmil.training.prediction import RunPredictor, TrainedModel

ROWS_KIND = "attention row"
TILE_KIND = "tile probability"
MOST_OUTPUTS = 2
MOST_ROWS = 512
AXIS_SIZES = {"token": "tokens", "branch": "branches", "head": "heads"}


@dataclass(frozen=True)
class MapChoice:
    """Which map of a run.

    training: (fold, seed); None: all models that were not trained on the slide, averaged
    recorded: as it was recorded during training
    kind, part: of a trained model's map; the part is a head, token, branch or class
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
    """All maps of one run. Models are loaded when a map first needs them. Safe from several threads."""

    def __init__(self, run: ViewedRun, device: str = "auto") -> None:
        self._run = run
        self._layout = RunLayout(run.path)
        self._config = self._layout.read_values()
        self._device = device
        self._lock = Lock()
        self._predictor: RunPredictor | None = None
        self._outputs: OrderedDict[str, list[tuple[TrainedModel, Output]]] = OrderedDict()

    @property
    def by_patient(self) -> bool:
        """Whether the models read all slides of a patient as one bag."""
        return joins_slides(self._config)

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
                "them. Choose a training or validation slide."
            )
        return (
            f"The attention of {slide} was not recorded. Train again into another folder with "
            "--set record.attention=all --set record.role=both to record every training and validation slide."
        )

    def _roles(self, slide: str) -> set[str]:
        from asmil.cohort.splits import Splits

        try:
            table = Splits.load(self._layout.splits).table
        except (AsmilError, OSError):
            return set()  # the run has just begun
        return set(table.loc[table["slide"] == slide, "role"])

    def kinds(self, slide: str) -> list[dict[str, Any]]:
        """The kinds of map that the trained models have of a slide, with the names of their parts."""
        models = self._described(slide)
        model, output = models[0][0].model, models[0][1]
        kinds: list[dict[str, Any]] = []
        if model.has_heatmap:
            kinds += [{"kind": kind, "parts": []} for kind in model.heatmap_kinds]
        if output.scores is not None and 1 < len(output.scores) <= MOST_ROWS:
            names = row_names(model, len(output.scores), self._classes)
            kinds.append({"kind": ROWS_KIND, "parts": names})
        if output.instance_logits is not None and len(self._classes) == output.instance_logits.shape[1] > 1:
            kinds.append({"kind": TILE_KIND, "parts": list(self._classes)})
        return kinds

    def trainings(self, slide: str) -> tuple[list[tuple[int, int]], str]:
        """Fold and seed of the models that are used for a slide, and a note if they were trained on it."""
        unit, _ = self._place(slide)
        trained, note = self._models_for(unit)
        return [(one.fold, one.seed) for one in trained], note

    def read(self, slide: str, choice: MapChoice) -> TileValues:
        """The values of a map."""
        return self._recorded(slide, choice) if choice.recorded else self._computed(slide, choice)

    @property
    def _classes(self) -> tuple[str, ...]:
        return tuple(str(name) for name in setting(self._config, "task", "classes") or ())

    def _place(self, slide: str) -> tuple[Unit, slice]:
        """The bag that a slide is part of, and where its tiles are in it."""
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
            part.astype(np.float32),
            tuple(record.epochs.tolist()),
            (None, *divergence.tolist()),
            _kept_moment(folder, record),
        )

    def _folder(self, training: tuple[int, int]) -> Path:
        known = {(fold, seed): folder for fold, seed, folder in self._layout.trainings()}
        if training not in known:
            raise AsmilError(f"{self._run.name}: there is no training of fold {training[0]}, seed {training[1]}")
        return known[training]

    def _computed(self, slide: str, choice: MapChoice) -> TileValues:
        unit, here = self._place(slide)
        described = self._described(slide)
        _, note = self._models_for(unit)
        if choice.training is not None:
            described = [pair for pair in self._every(unit) if (pair[0].fold, pair[0].seed) == choice.training]
            if not described:
                raise AsmilError(f"{self._run.name}: no finished training of fold and seed {choice.training}")
        known = [entry["kind"] for entry in self.kinds(slide)]
        kind = choice.kind or (known[0] if known else "attention")
        if kind not in known:
            raise AsmilError(f"{self._run.name}: there is no map '{kind}' of {slide}; {did_you_mean(kind, known)}")
        if kind == ROWS_KIND:
            described = described[:1]  # a head of one seed is not that of another
            note = note or f"fold {described[0][0].fold}, seed {described[0][0].seed}"
        maps = [_drawn(one.model, output, kind, choice.part) for one, output in described]
        mean = np.mean(np.stack(maps), axis=0)[here]
        if not np.isfinite(mean).all():
            raise AsmilError(f"{slide}: the map '{kind}' is not finite; choose another kind")
        return TileValues(kind, mean[None].astype(np.float32), note=note)

    def _described(self, slide: str) -> list[tuple[TrainedModel, Output]]:
        unit, _ = self._place(slide)
        wanted = {id(one) for one in self._models_for(unit)[0]}
        return [pair for pair in self._every(unit) if id(pair[0]) in wanted]

    def _every(self, unit: Unit) -> list[tuple[TrainedModel, Output]]:
        """What every finished model says of a bag; the latest bags are kept."""
        from asmil.cohort.loader import BagLoader
        from asmil.models.inference import infer

        predictor = self._models()
        with self._lock:
            if unit.name in self._outputs:
                self._outputs.move_to_end(unit.name)
                return self._outputs[unit.name]
            for one in unit.slides:
                predictor.description.refuse_other_features(inspect_features(one.source))
            bag = BagLoader([unit], "none", prefetch=0).bag(0)
            said = [(one, infer(one.model, one.model.prepare(bag), predictor.device)) for one in predictor.trained]
            self._outputs[unit.name] = said
            while len(self._outputs) > MOST_OUTPUTS:
                self._outputs.popitem(last=False)
            return said

    def _models(self) -> RunPredictor:
        from asmil.training.prediction import RunPredictor

        with self._lock:
            if self._predictor is None:
                self._predictor = RunPredictor(self._run.path, self._device)
            return self._predictor

    def _models_for(self, unit: Unit) -> tuple[list[TrainedModel], str]:
        from asmil.cohort.splits import Splits

        predictor = self._models()
        table = Splits.load(self._layout.splits).table
        column = "patient" if self.by_patient else "slide"
        seen = set(table.loc[(table[column] == unit.name) & (table["role"] == "train"), "fold"].astype(int))
        unseen = [one for one in predictor.trained if one.fold not in seen]
        if unseen:
            return unseen, ""
        return list(predictor.trained), "the models were trained on this slide"


def _drawn(model: MILModel, output: Output, kind: str, part: int) -> npt.NDArray[np.float64]:
    import torch

    if kind == ROWS_KIND:
        assert output.scores is not None
        return np.asarray(model.normalizer(output.scores)[_within(part, len(output.scores))].double().numpy())
    if kind == TILE_KIND:
        assert output.instance_logits is not None
        probabilities = torch.softmax(output.instance_logits, dim=1)
        return np.asarray(probabilities[:, _within(part, probabilities.shape[1])].double().numpy())
    return np.asarray(model.heatmap(output, kind).double().numpy())


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
