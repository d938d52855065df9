"""Prediction for new slides with the models of a run, averaged over its folds and seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asmil.cohort.bag import COORDS_UM, Bag
from asmil.cohort.covariates import Cells
from asmil.cohort.feature_structure import COMPARED_TILES, compare_features, spaced
from asmil.cohort.hdf5 import new_hdf5
from asmil.cohort.manifest import Slide
from asmil.cohort.source import FeatureInfo, read_extraction
from asmil.cohort.tile_hashes import sketch_of, tile_hashes
from asmil.cohort.units import Unit
from asmil.errors import AsmilError
from asmil.machine.lazy_names import former_name
from asmil.models.base import Output, comparable_maps
from asmil.models.inference import infer
from asmil.runs.predictions import uncertainty_column
from asmil.runs.run import Run
from asmil.runs.trained_models import TrainedModel
from asmil.runs.training_slides import ROLES_SEEN
from asmil.tables.arrays import Floats32
from asmil.tasks.ensemble import average, predictions_of

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
    uncertainty: how certain the models are, by name, averaged over them; empty if the method does not estimate it
    members: the predictions of the single models by column name, by fold and seed
    feature_means: m x D, the mean of the tile features of each of its m slides; empty for a bag without a file
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
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    members: Mapping[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)
    feature_means: Floats32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    heatmap = former_name("heatmap", "tile_map")

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """The probabilities, in the order of the classes; empty for a task without probabilities."""
        return np.array([value for name, value in self.values.items() if name.startswith("prob_")])


def open_models(path: Path | str, device: str = "auto", method: str | None = None) -> Run:
    """A run with its models; see `load_models`.

    method: the run's method as given by the user; required if it is code, `module:Class`
    """
    run = Run(path, device, method)
    load_models(run)
    return run


def load_models(run: Run) -> None:
    """Read everything that predictions need, so that a missing or damaged file is one error, not one per slide."""
    _ = run.trained, run.operating_point, run.training_slides, run.splits


def predict_slide(run: Run, unit: Slide | Unit, attention: bool = False) -> SlidePrediction:
    """Read the features of a slide or patient and predict it with all models of a run; see `Run.bag`."""
    unit = unit if isinstance(unit, Unit) else Unit.of_slide(unit)
    cells = covariates_of(run, unit)
    bag, headers = run.bag(unit)
    notes = [slide_notes(headers), *doubtful_covariates(run, cells)]
    used = _used_in_training(run, unit, bag)
    if not used and _named_like_seen(run, unit):
        notes.append("a training slide has this name, but other tiles")
    other = _other_features(run, bag)
    return replace(
        predict_bag(run, bag, attention, covariates=cells),
        notes="; ".join(filter(None, [*notes, other])),
        used_in_training=used,
        other_features=other,
        feature_means=_feature_means(bag),
    )


def predict_slides(
    run: Run, units: Sequence[Unit], attention: bool = False
) -> Iterator[tuple[Unit, SlidePrediction | AsmilError]]:
    """Every slide or patient with its prediction or, if it cannot be predicted, the error."""
    for unit in units:
        try:
            yield unit, predict_slide(run, unit, attention)
        except AsmilError as error:
            yield unit, error


def predict_bag(
    run: Run,
    bag: Bag,
    attention: bool = False,
    trained: Sequence[TrainedModel] | None = None,
    map_kind: str | None = None,
    covariates: Cells | None = None,
) -> SlidePrediction:
    """Predict one bag with every model of a run (or those given), and average.

    map_kind: one of the `map_kinds` of the models; default: the first
    covariates: of the bag; None: the prediction is that of the image alone
    """
    used = run.trained if trained is None else trained
    outputs = [infer(each.model, _with_offset(each.model.prepare(bag), each, covariates), run.device) for each in used]
    predictions = predictions_of([each.task for each in used], [output.logits for output in outputs])
    heat = None
    if attention:
        drawn = comparable_maps(outputs, [each.task for each in used])
        maps = [each.model.tile_map(output, map_kind) for each, output in zip(used, drawn, strict=True)]
        heat = torch.stack(maps).mean(dim=0).float().numpy()
    return SlidePrediction(
        bag.id,
        len(bag),
        average(predictions),
        heat,
        map_kind or used[0].model.map_kinds[0],
        None if bag.coords is None else bag.coords.numpy(),
        None if bag.slide_index is None else bag.slide_index.numpy(),
        coords_um=bag.extras[COORDS_UM].numpy() if COORDS_UM in bag.extras else None,
        uncertainty=_mean_uncertainty(used, outputs),
        members={(each.fold, each.seed): of_model for each, of_model in zip(used, predictions, strict=True)},
    )


def _feature_means(bag: Bag) -> Floats32:
    """m x D, of each of the m slides of a bag."""
    slides = [bag.features] if bag.slide_index is None else _by_slide(bag.features, bag.slide_index)
    return np.stack([tiles.mean(dim=0, dtype=torch.float32).numpy() for tiles in slides])


def _by_slide(features: Tensor, slide_index: Tensor) -> list[Tensor]:
    return [features[slide_index == slide] for slide in slide_index.unique()]


def _mean_uncertainty(used: Sequence[TrainedModel], outputs: Sequence[Output]) -> dict[str, float]:
    by_model = [each.model.uncertainty(output, each.task) for each, output in zip(used, outputs, strict=True)]
    return {name: float(np.mean([of_model[name] for of_model in by_model])) for name in by_model[0]}


def covariates_of(run: Run, unit: Unit) -> Cells | None:
    """The covariates of a slide or patient; None if the run uses none, and an error if one is unknown."""
    names = run.settings.covariates
    if not names:
        return None
    for name in names:
        known = {slide.covariates.get(name) for slide in unit.slides}
        if None in known:
            raise AsmilError(
                f"{unit.name}: the run needs the covariates {', '.join(names)}, but '{name}' is unknown; give a table "
                "with these columns"
            )
        if len(known) > 1:
            raise AsmilError(
                f"{unit.name}: its slides differ in the covariate '{name}' ({', '.join(sorted(map(str, known)))}); "
                "give all slides of a patient the same value"
            )
    return unit.slides[0].covariates


def _with_offset(bag: Bag, trained: TrainedModel, covariates: Cells | None) -> Bag:
    if trained.covariates is None or covariates is None:
        return bag
    return replace(bag, offset=trained.covariates.offsets([covariates])[0])


def doubtful_covariates(run: Run, covariates: Cells | None) -> list[str]:
    """Covariates that are missing, or that the training did not have, one phrase each."""
    if covariates is None:
        return []
    phrases: dict[str, str] = {}
    for trained in run.trained:
        for doubt in [] if trained.covariates is None else trained.covariates.encoder.doubts(covariates):
            # means, medians and levels differ from fold to fold
            phrases.setdefault(doubt.partition(",")[0].partition(" (mean ")[0], doubt)
    return list(phrases.values())


def _used_in_training(run: Run, unit: Unit, bag: Bag) -> bool | None:
    """Whether the models have seen a slide: its tiles decide, or its name in runs that kept no hashes of tiles."""
    if run.training_slides is not None:
        return run.training_slides.recognize(sketch_of(tile_hashes(bag.features))) is not None
    return None if run.splits is None else _named_like_seen(run, unit)


def _named_like_seen(run: Run, unit: Unit) -> bool:
    return any(not set(ROLES_SEEN).isdisjoint(run.roles_of(slide.slide)) for slide in unit.slides)


def _other_features(run: Run, bag: Bag) -> str:
    structure = None if run.training_slides is None else run.training_slides.structure
    if structure is None:
        return ""
    tiles = bag.features[spaced(len(bag), COMPARED_TILES)].float().numpy()
    return compare_features(structure, tiles).difference


def prediction_row(run: Run, prediction: SlidePrediction, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A prediction as a row of a table; lists (survival curves) are written as JSON.

    more: columns that follow those of the task

    `most_probable_class` has the largest probability; `class_at_threshold` uses the threshold that was chosen on
    validation slides. Their former names, `predicted` and `called`, are repeated at the end of the row.
    """
    values = {
        name: json.dumps(value) if isinstance(value, list) else value for name, value in prediction.values.items()
    }
    if "survival_times" in values:
        values["time_unit"] = run.time_unit
    classes = {}
    if run.kind == "classification":
        classes["most_probable_class"] = run.classes[int(np.argmax(prediction.probabilities))]
    if (point := run.operating_point) is not None:
        (other,) = (name for name in run.classes if name != point.positive)
        positive = prediction.values[f"prob_{point.positive}"] >= point.threshold
        classes["class_at_threshold"] = point.positive if positive else other
    return {
        "slide": prediction.slide,
        **classes,
        **values,
        **{uncertainty_column(name): value for name, value in prediction.uncertainty.items()},
        **(more or {}),
        "n_tiles": prediction.n_tiles,
        "n_models": len(run.trained),
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


def slide_notes(infos: Sequence[FeatureInfo]) -> str:
    """Notes on the slides of one prediction; empty if there are none."""
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
