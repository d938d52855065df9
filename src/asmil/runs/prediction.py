"""Prediction for new slides with the models of a run, averaged over its folds and seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asmil.cohort.bag import COORDS_UM, Bag
from asmil.cohort.feature_structure import COMPARED_TILES, compare_features, spaced
from asmil.cohort.features import inspect_features
from asmil.cohort.hdf5 import new_hdf5
from asmil.cohort.loader import BagLoader
from asmil.cohort.manifest import Slide
from asmil.cohort.source import FeatureInfo, read_extraction
from asmil.cohort.splits import Splits
from asmil.cohort.tile_hashes import sketch_of, tile_hashes
from asmil.cohort.units import Unit, UnitKind
from asmil.engine.machine import choose_device
from asmil.errors import AsmilError
from asmil.machine.lazy_names import former_name
from asmil.models.base import MILModel
from asmil.models.inference import infer
from asmil.runs import checkpoint
from asmil.runs.bundle import BUNDLE_FILE, is_bundle, read_bundle
from asmil.runs.folder import RunFolder
from asmil.runs.layout import TASK_FILE, is_finished
from asmil.runs.model import build_model
from asmil.runs.operating_point import FILE as OPERATING_POINT_FILE
from asmil.runs.operating_point import OperatingPoint, read_operating_point
from asmil.runs.task import read_task, task_names
from asmil.runs.training_slides import read_training_slides, slides_seen
from asmil.tables.time_units import unit_in_words
from asmil.tasks.base import Task
from asmil.tasks.classification import Classification
from asmil.tasks.ensemble import average

FORMER_COLUMNS = {"predicted": "most_probable_class", "called": "class_at_threshold"}
"""Column names up to version 0.4, which tables of predictions keep until 0.7."""
FEW_TILES = 10
COARSER = 1.2
"""A slide whose pixels are this many times larger than those of its tiles was enlarged."""


@dataclass(frozen=True)
class SlidePrediction:
    """The prediction of a run for one slide, or for one patient whose slides were joined.

    values: the predictions by column name, averaged over the run's models
    tile_map: N, one value per tile: the mean of the maps of its models, if requested
    map_kind: what the map shows: "attention", or another kind for a method without attention
    slide_index: N, the slide of each tile, if several slides were joined
    coords_um: N x 2, tile coordinates in microns, if pixels are unknown (STAMP without a resolution)
    notes: how the slide may differ from the training slides; empty if there is nothing to report
    used_in_training: whether the slide was a training or validation slide of the run; None if that is unknown
    other_features: why the features are probably of another encoder; empty if they may be those of the training
    """

    slide: str
    n_tiles: int
    values: Mapping[str, Any]
    tile_map: npt.NDArray[np.float32] | None
    map_kind: str
    coords: npt.NDArray[np.int64] | None
    slide_index: npt.NDArray[np.int64] | None = None
    notes: str = ""
    coords_um: npt.NDArray[np.float64] | None = None
    used_in_training: bool | None = None
    other_features: str = ""
    heatmap = former_name("heatmap", "tile_map")

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """The probabilities, in the order of the classes; empty for a task without probabilities."""
        return np.array([value for name, value in self.values.items() if name.startswith("prob_")])


@dataclass(frozen=True)
class TrainedModel:
    """The model of one training of a run, and its task."""

    fold: int
    seed: int
    model: MILModel
    task: Task


class RunPredictor:
    """The trained models of a run, ready to predict.

    method: the run's method as given by the user; required if it is code, `module:Class`
    """

    def __init__(self, run: Path | str, device: str = "auto", method: str | None = None) -> None:
        self.folder = RunFolder(run)
        if is_bundle(self.folder.path):
            read_bundle(self.folder.path)
        self.description = self.folder.read(method)
        self.device = choose_device(device)
        trainings = list(self.folder.trainings())
        finished = [(fold, seed, path) for fold, seed, path in trainings if _is_finished(path)]
        self.weight_files = [weights_file(path) for _, _, path in finished]
        self.trained = [self._load(fold, seed, path) for fold, seed, path in finished]
        if not self.trained:
            if trainings and not self.folder.splits.exists():  # which every run begins with
                raise AsmilError(
                    f"{self.folder.path}: neither a run (no {self.folder.splits.name}) nor a whole bundle (no "
                    f"{BUNDLE_FILE}); if it was a bundle, copy it again"
                )
            raise AsmilError(f"{self.folder.path}: no training of this run is finished; finish it with `asmil train`")
        self.unfinished = len(trainings) - len(self.trained)
        self.operating_point = self._operating_point()
        self.training_slides = read_training_slides(self.folder.path)
        known = self.folder.splits.exists()
        self._seen = slides_seen(Splits.load(self.folder.splits)) if known else set[str]()

    @property
    def models(self) -> list[MILModel]:
        """The models of all finished trainings."""
        return [one.model for one in self.trained]

    @property
    def unit(self) -> UnitKind:
        """The unit of prediction: a slide or a patient."""
        return self.description.config.unit

    def _load(self, fold: int, seed: int, training: Path) -> TrainedModel:
        path = weights_file(training)
        tensors, state = checkpoint.load_checkpoint(path)
        config = self.folder.config_of(self.description, fold)
        if state.get("method") != config.method:
            raise AsmilError(
                f"{path}: a checkpoint of {state.get('method')}, but the run uses {config.method}; restore the run"
            )
        task = self._task(training)
        model = build_model(config, self.description.in_features, task.n_outputs, seed)
        checkpoint.restore_model(model, tensors, path)
        return TrainedModel(fold, seed, model.to(self.device).eval(), task)

    def _task(self, training: Path) -> Task:
        note = training / TASK_FILE
        if not note.exists():
            if self.description.config.task.kind != "classification":
                raise AsmilError(f"{note} is missing; restore it or train again")
            return Classification(self.description.classes)  # runs of versions with a single task
        task = read_task(note)
        if task.kind != self.description.config.task.kind or task_names(task) != self.description.classes:
            raise AsmilError(f"{note}: the task or classes differ from {self.folder.config}; restore the run")
        return task

    def _operating_point(self) -> OperatingPoint | None:
        point = read_operating_point(self.folder.path)
        classes = self.description.classes
        if point is not None and (len(classes) != 2 or point.positive not in classes):
            raise AsmilError(
                f"{self.folder.path / OPERATING_POINT_FILE}: {point.positive!r} is not one of two classes of the run; "
                "remove it and evaluate the run again"
            )
        return point

    def predict(self, unit: Slide | Unit, attention: bool = False) -> SlidePrediction:
        """Read the features of a slide or patient and predict; see `read_bag`."""
        unit = unit if isinstance(unit, Unit) else Unit.of_slide(unit)
        bag = self.read_bag(unit)
        notes = [slide_notes([inspect_features(slide.source) for slide in unit.slides])]
        used = self._used_in_training(unit, bag)
        if not used and self._seen & {slide.slide for slide in unit.slides}:
            notes.append("a training slide has this name, but other tiles")
        other = self._other_features(bag)
        found = replace(self.predict_bag(bag, attention), notes="; ".join(filter(None, [*notes, other])))
        return replace(found, used_in_training=used, other_features=other)

    def _used_in_training(self, unit: Unit, bag: Bag) -> bool | None:
        """Whether the models have seen a slide: its tiles decide, or its name in runs that kept no hashes of tiles."""
        if self.training_slides is not None:
            return self.training_slides.recognize(sketch_of(tile_hashes(bag.features))) is not None
        if self.folder.splits.exists():
            return bool(self._seen & {slide.slide for slide in unit.slides})
        return None

    def _other_features(self, bag: Bag) -> str:
        structure = None if self.training_slides is None else self.training_slides.structure
        if structure is None:
            return ""
        tiles = bag.features[spaced(len(bag), COMPARED_TILES)].float().numpy()
        return compare_features(structure, tiles).difference

    def read_bag(self, unit: Slide | Unit) -> Bag:
        """The bag of a slide or patient; an error if its features were extracted differently from the run's."""
        unit = unit if isinstance(unit, Unit) else Unit.of_slide(unit)
        for slide in unit.slides:
            self.description.refuse_other_features(inspect_features(slide.source))
        return BagLoader([unit], "none", prefetch=0).bag(0)

    def predict_bag(
        self,
        bag: Bag,
        attention: bool = False,
        trained: Sequence[TrainedModel] | None = None,
        map_kind: str | None = None,
    ) -> SlidePrediction:
        """Predict one bag with every model (or those given), and average.

        map_kind: one of the `map_kinds` of the models; default: the first
        """
        asked = self.trained if trained is None else trained
        outputs = [infer(one.model, one.model.prepare(bag), self.device) for one in asked]
        values = average([one.task for one in asked], [output.logits for output in outputs])
        heat = None
        if attention:
            maps = [one.model.tile_map(output, map_kind) for one, output in zip(asked, outputs, strict=True)]
            heat = torch.stack(maps).mean(dim=0).float().numpy()
        coords = None if bag.coords is None else bag.coords.numpy()
        of_slide = None if bag.slide_index is None else bag.slide_index.numpy()
        kind = map_kind or asked[0].model.map_kinds[0]
        microns = bag.extras[COORDS_UM].numpy() if COORDS_UM in bag.extras else None
        return SlidePrediction(bag.id, len(bag), values, heat, kind, coords, of_slide, coords_um=microns)

    def predict_all(
        self, units: Sequence[Unit], attention: bool = False
    ) -> Iterator[tuple[Unit, SlidePrediction | AsmilError]]:
        """Every slide or patient with its prediction or, if it cannot be predicted, the error."""
        for unit in units:
            try:
                yield unit, self.predict(unit, attention)
            except AsmilError as error:
                yield unit, error

    def row(self, prediction: SlidePrediction) -> dict[str, Any]:
        """A prediction as a row of a table; lists (survival curves) are written as JSON.

        `most_probable_class` has the largest probability; `class_at_threshold` uses the threshold that was chosen on
        validation slides. Their former names, `predicted` and `called`, are repeated at the end of the row.
        """
        values = {
            name: json.dumps(value) if isinstance(value, list) else value for name, value in prediction.values.items()
        }
        if "survival_times" in values:
            values["time_unit"] = unit_in_words(self.description.config.task.time_unit)
        classes = {}
        if self.description.config.task.kind == "classification":
            classes["most_probable_class"] = self.description.classes[int(np.argmax(prediction.probabilities))]
        if self.operating_point is not None:
            point = self.operating_point
            (other,) = (name for name in self.description.classes if name != point.positive)
            positive = prediction.values[f"prob_{point.positive}"] >= point.threshold
            classes["class_at_threshold"] = point.positive if positive else other
        return {
            "slide": prediction.slide,
            **classes,
            **values,
            "n_tiles": prediction.n_tiles,
            "n_models": len(self.trained),
            "used_in_training": prediction.used_in_training,
            "notes": prediction.notes,
            **{former: classes[name] for former, name in FORMER_COLUMNS.items() if name in classes},
        }


def write_attention(
    path: Path, prediction: SlidePrediction, slides: Sequence[str] = (), alarms: Sequence[str] = ()
) -> None:
    """Write an HDF5 file with `attention` (N, sums to 1) and, if known, `coords` (N x 2, level-0 pixels).

    If only microns are known, they are in `coords_um` instead of `coords`.
    A method without attention stores its own map under its own name instead (pooling: `probability`).

    slides: the names of the slides that were joined, to which `slide_index` (N) points
    alarms: of the run, one sentence each; stored as an attribute, if there are any
    """
    with new_hdf5(path) as file:
        file[prediction.map_kind] = prediction.tile_map
        if prediction.coords is not None:
            file["coords"] = prediction.coords
        if prediction.coords_um is not None:
            file["coords_um"] = prediction.coords_um
        if prediction.slide_index is not None:
            file["slide_index"] = prediction.slide_index
            file.attrs["slides"] = list(slides)
        file.attrs["slide"] = prediction.slide
        if alarms:
            file.attrs["alarms"] = list(alarms)


def weights_file(training: Path) -> Path:
    """The weights of a finished training."""
    return training / "checkpoints" / "best.safetensors"


def _is_finished(training: Path) -> bool:
    """Whether a training is finished; a bundle contains only finished trainings, without their predictions."""
    return is_finished(training) or is_bundle(training.parents[1])


def slide_notes(infos: Sequence[FeatureInfo]) -> str:
    """Notes on the slides of one prediction, one after the other; empty where there is nothing to say."""
    notes = [note for info in infos for note in _notes(info)]
    tiles = sum(info.n_tiles for info in infos)
    if tiles < FEW_TILES and not all(info.may_be_slide_vector for info in infos):
        notes.append(f"only {tiles} tile{'s' * (tiles != 1)}")
    return "; ".join(dict.fromkeys(notes))


def _notes(info: FeatureInfo) -> list[str]:
    notes = []
    if info.mpp is not None and info.tile_mpp is not None and info.mpp > COARSER * info.tile_mpp:
        notes.append(f"enlarged: the slide has {info.mpp:.3g} um/px, its tiles {info.tile_mpp:.3g}")
    if info.mpp_source is not None and "guess" in info.mpp_source:
        notes.append(f"the resolution of the slide ({info.mpp:.3g} um/px) is guessed")
    record = read_extraction(info)
    return [*notes, *(record.tissue.notes if record is not None else ())]
