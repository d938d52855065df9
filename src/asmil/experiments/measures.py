"""What is measured on a finished run: one set of numbers for each training (fold and seed).

    slides         metrics of the task on test slides (test_auc, test_f1, ...) and validation slides (val_auc, ...)
    attention      how recorded attention moves and how wide it is (jsd_late, effective_share, ...)
    tiles          heat maps of test slides against the truth of the tiles (tile_auc, tile_dice, specificity, ...)
    froc           lesion-level FROC of test slides; needs one seed per run folder
    learning       the course of the validation metrics: best epoch, fall from the best to the last
    bag_features   silhouette of the classes in recorded bag features, at the first, middle and last recording
    seconds        seconds of an epoch
    mixture        share of softmax in a trained mixture (zeta)

`tiles` and `froc` read `tile_truth.parquet` beside the manifest, which synthetic cohorts have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asmil.errors import AsmilError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from asmil.cohort.manifest import Cohort
    from asmil.evaluation.stability.analysis import RunStability
    from asmil.runs.run import Run

Training = tuple[int, int]
"""Fold and seed."""
Numbers = dict[Training, dict[str, float]]
SMALL_FOCUS = 4
"""Foci of at most this many tiles count as small."""


@dataclass(frozen=True)
class FinishedRun:
    """A run folder whose trainings have ended, and the cohort behind it; everything is read when it is needed."""

    folder: Path
    manifest: Path
    features: Path | None
    task: str
    device: str = "auto"

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """One row per slide, fold and seed."""
        from asmil.runs.predictions import read_predictions

        return read_predictions(self.folder / "predictions.parquet")

    @cached_property
    def stability(self) -> RunStability:
        """The recorded attention in numbers."""
        from asmil.evaluation.stability import read_stability

        return read_stability(self.folder)

    @cached_property
    def run(self) -> Run:
        """The run with its trained models."""
        from asmil.runs.run import Run

        return Run(self.folder, self.device)

    @cached_property
    def cohort(self) -> Cohort:
        """The slides, without their outcomes."""
        from asmil.cohort.manifest import load_cohort

        return load_cohort(self.manifest, self.features, self.task)  # type: ignore[arg-type]

    @cached_property
    def tile_truth(self) -> pd.DataFrame:
        """slide, tile, tumor, focus of every tile."""
        from asmil.cohort.tile_truth import TRUTH_FILE, read_tile_truth

        path = self.manifest.parent / TRUTH_FILE
        if not path.is_file():
            raise AsmilError(f"{path} is missing: the measures tiles and froc need the truth of the tiles")
        return read_tile_truth(path, ("tile", "focus"))

    def epochs(self) -> Mapping[Training, list[dict[str, Any]]]:
        """The log of every training, one record per epoch."""
        from asmil.runs.epochs import read_epochs
        from asmil.runs.layout import RunLayout

        trainings = RunLayout(self.folder).trainings()
        return {(fold, seed): read_epochs(path / "metrics.jsonl") for fold, seed, path in trainings}


def measure_slides(run: FinishedRun) -> Numbers:
    """The metrics of the task on the test and validation set of every training."""
    import numpy as np

    from asmil.runs.run import read_run
    from asmil.tasks.prediction_format import prediction_format

    read = read_run(run.folder)
    form = prediction_format(read.kind, read.classes)
    by_training: Numbers = {}
    for (fold, seed, role), part in run.predictions.groupby(["fold", "seed", "role"]):
        truth, predicted, weights = form.truth(part), form.predictions(part), np.ones((1, len(part)))
        numbers = by_training.setdefault(_training(fold, seed), {})
        for metric in form.compared:
            name = f"{role}_{SHORT.get(metric.name, metric.name)}"
            numbers[name] = _defined(metric.function, truth, predicted, weights)
    return by_training


SHORT = {"macro_auc": "auc", "macro_f1": "f1"}
"""Short names of metrics in the columns of a table."""


def _training(fold: Any, seed: Any) -> Training:
    return int(fold), int(seed)


def _defined(function: Callable[..., Any] | None, *given: Any) -> float:
    """The value, or nan where slides of a single class leave it undefined."""
    assert function is not None
    try:
        return float(function(*given)[0])
    except AsmilError:
        return float("nan")


def measure_attention(run: FinishedRun) -> Numbers:
    """Means over the recorded slides; see docs/stability.md for the columns."""
    columns = ["jsd_mean", "jsd_late", "jsd_relative", "effective_share", "peak_n", "gini", "top1_mass"]
    by_training: Numbers = {}
    for (fold, seed), part in run.stability.slides.groupby(["fold", "seed"]):
        by_training[_training(fold, seed)] = {name: float(part[name].mean()) for name in columns}
    for (fold, seed), part in run.stability.times.groupby(["fold", "seed"]):
        last = part[part["epoch"] == part["epoch"].max()]
        by_training[_training(fold, seed)]["ce_end"] = float(last["ce"].mean())
    return by_training


def measure_tiles(run: FinishedRun) -> Numbers:
    """Heat maps of test slides against the truth of the tiles: ranking, and masks at 0.5 of the min-max scaled map."""
    import numpy as np

    from asmil.cohort.features import read_bag
    from asmil.models.inference import infer

    tested = set(run.predictions.query("role == 'test'")["slide"].astype(str))
    by_slide = {str(slide): part for slide, part in run.tile_truth.groupby("slide")}
    values: dict[Training, dict[str, list[float]]] = {}
    for slide in run.cohort.slides:
        if slide.slide not in tested and slide.patient not in tested:
            continue
        truth = by_slide[slide.slide].sort_values("tile")
        bag = read_bag(slide.source, slide.slide, slide.mpp)
        for training in run.run.trained:
            if training.model.has_tile_map:
                output = infer(training.model, training.model.prepare(bag), run.run.device)
                heat = training.model.tile_map(output).detach().double().cpu().numpy()
                kept = values.setdefault((training.fold, training.seed), {})
                for name, value in slide_tile_numbers(heat, truth).items():
                    kept.setdefault(name, []).append(value)
    return {training: {name: float(np.mean(v)) for name, v in of.items() if v} for training, of in values.items()}


def slide_tile_numbers(heat: npt.NDArray[np.float64], truth: pd.DataFrame) -> dict[str, float]:
    """The numbers of one slide: those of lesions if it has any, else its specificity.

    heat: N values of the heat map; truth: N rows with tumor and focus (the number of the focus, 0 or below: none)
    """
    import numpy as np

    from asmil.attention.measures import effective_tiles
    from asmil.evaluation.localization.scaling import THRESHOLDS, scale_scores
    from asmil.evaluation.localization.tile_maps import dice, specificity
    from asmil.evaluation.localization.tile_ranking import rank_tiles

    lesion = truth["tumor"].to_numpy(dtype=bool)
    scores = scale_scores(heat, "minmax")
    if not lesion.any():
        return {"specificity": specificity(scores, THRESHOLDS["minmax"])}
    positive = scores >= THRESHOLDS["minmax"]
    share = np.clip(heat, 0, None)
    share = share / share.sum() if share.sum() > 0 else np.full(len(heat), 1 / len(heat))
    focus = truth["focus"].to_numpy()[lesion]
    names, sizes = np.unique(focus, return_counts=True)
    hit = np.array([positive[lesion][focus == name].any() for name in names])
    numbers = {
        "tile_auc": rank_tiles([lesion], [heat]).mean.auc,
        "tile_dice": dice(positive, lesion),
        "map_effective_share": float(effective_tiles(share)) / len(heat),
        "no_missed": float(hit.all()),
    }
    for name, chosen in {"small_foci_found": sizes <= SMALL_FOCUS, "large_foci_found": sizes > SMALL_FOCUS}.items():
        if chosen.any():
            numbers[name] = float(hit[chosen].mean())
    return numbers


def measure_froc(run: FinishedRun) -> Numbers:
    """FROC as `asmil localize` reports it, for a run of one training."""
    from asmil.cohort.tile_truth import TRUTH_FILE
    from asmil.evaluation.localization.localize import LocalizeSettings, localize_run

    if len(run.run.trained) != 1:
        raise AsmilError("the measure froc needs one seed per run folder; set group_seeds: false and folds: 1")
    training = run.run.trained[0]
    settings = LocalizeSettings(
        truth=run.manifest.parent / TRUTH_FILE,
        cohort=None,
        features=run.features,
        resamples=1,
        device=run.device,
    )
    numbers = localize_run(run.folder, settings, n_masks=0).summary.scaled["minmax"].numbers
    return {(training.fold, training.seed): {"froc": numbers["froc"].value}}


def measure_learning(run: FinishedRun) -> Numbers:
    """For every validation metric: its best value, its last, the fall between, and the epoch of the best."""
    by_training: Numbers = {}
    for training, records in run.epochs().items():
        numbers: dict[str, float] = {}
        courses = [record["val"] for record in records if record["val"]]
        for key in ("macro_auc", "macro_f1", "c_index"):
            name = SHORT.get(key, key)
            values = [course[key] for course in courses if course.get(key) is not None]
            if values:
                best = max(values)
                numbers |= {
                    f"val_{name}_best": best,
                    f"val_{name}_fall": best - values[-1],
                    f"val_{name}_best_epoch": float(values.index(best) + 1),
                }
        by_training[training] = numbers
    return by_training


def measure_bag_features(run: FinishedRun) -> Numbers:
    """The silhouette of the classes in the recorded bag features, by part, at three recordings."""
    from asmil.evaluation.stability.bag_features import silhouettes

    by_training: Numbers = {}
    for training in run.stability.trainings:
        last = len(training.record.epochs) - 1
        recordings = {"first": 0, "middle": last // 2, "last": last}
        by_training[training.fold, training.seed] = {
            f"silhouette_{role}_{when}": value
            for when, recording in recordings.items()
            for role, value in silhouettes(training.record, recording).items()
        }
    return by_training


def measure_seconds(run: FinishedRun) -> Numbers:
    """The median of the seconds of an epoch, and those of all epochs."""
    import numpy as np

    return {
        training: {
            "epoch_seconds": float(np.median([record["seconds"] for record in records])),
            "training_seconds": float(sum(record["seconds"] for record in records)),
        }
        for training, records in run.epochs().items()
    }


def measure_mixture(run: FinishedRun) -> Numbers:
    """The share of softmax at the end, for models with a trained mixture; nothing for others."""
    by_training: Numbers = {}
    for training, records in run.epochs().items():
        zeta = records[-1].get("zeta")
        by_training[training] = {} if zeta is None else {"zeta": float(zeta)}
    return by_training


Measure = Callable[[FinishedRun], Numbers]
MEASURES: dict[str, Measure] = {
    "slides": measure_slides,
    "attention": measure_attention,
    "tiles": measure_tiles,
    "froc": measure_froc,
    "learning": measure_learning,
    "bag_features": measure_bag_features,
    "seconds": measure_seconds,
    "mixture": measure_mixture,
}
ONE_SEED = frozenset({"froc"})
"""Measures that need one seed per run folder."""
