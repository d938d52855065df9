"""What is measured on a finished run: one set of numbers for each training (fold and seed).

    slides         metrics of the task on test slides (test_auc, test_f1, ...) and validation slides (val_auc, ...)
    attention      how much recorded attention changes and how concentrated it is (jsd_late, effective_share, ...)
    tiles          heat maps of test slides against the truth of the tiles (tile_auc, tile_dice, specificity, ...)
    froc           lesion-level FROC of test slides; needs one seed per run folder
    learning       validation metrics over the epochs: the best epoch, and the drop from the best to the last
    bag_features   silhouette of the classes in recorded bag features, at the first, middle and last recording
    seconds        duration of an epoch
    mixture        share of softmax in a learned mixture (zeta)

`tiles` and `froc` read `tile_truth.parquet` beside the manifest, which synthetic cohorts have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.attention.measures import effective_tiles
from asmil.cohort.tile_truth import TRUTH_FILE, read_tile_truth
from asmil.errors import AsmilError
from asmil.evaluation.localization.localize import LocalizeSettings, localize_run
from asmil.evaluation.localization.scaling import THRESHOLDS, scale_scores
from asmil.evaluation.localization.tile_maps import dice, specificity
from asmil.evaluation.localization.tile_ranking import rank_tiles
from asmil.evaluation.stability import read_stability
from asmil.models.inference import infer
from asmil.runs.epochs import LOG, read_epochs
from asmil.runs.run import Run

Training = tuple[int, int]
"""Fold and seed."""
Numbers = dict[Training, dict[str, float]]
SMALL_FOCUS = 4
"""Foci of at most this many tiles count as small."""


def _epochs(run: Run) -> Mapping[Training, list[dict[str, Any]]]:
    """The log of every training, one record per epoch."""
    return {(fold, seed): read_epochs(path / LOG) for fold, seed, path in run.layout.trainings()}


def _truth_file(run: Run) -> Path:
    """The truth of the tiles, beside the manifest of the run."""
    path = Path(str(run.cohort.manifest)).parent / TRUTH_FILE
    if not path.is_file():
        raise AsmilError(f"{path} is missing: the measures tiles and froc need the truth of the tiles")
    return path


def measure_slides(run: Run) -> Numbers:
    """The metrics of the task on the test and validation set of every training."""
    form = run.format
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
    """The value; nan if it is undefined, for example since all slides have the same class."""
    assert function is not None
    try:
        return float(function(*given)[0])
    except AsmilError:
        return float("nan")


def measure_attention(run: Run) -> Numbers:
    """Means over the recorded slides; see docs/stability.md for the columns."""
    columns = ["jsd_mean", "jsd_late", "jsd_relative", "effective_share", "peak_n", "gini", "top1_mass"]
    by_training: Numbers = {}
    stability = read_stability(run.path)
    for (fold, seed), part in stability.slides.groupby(["fold", "seed"]):
        by_training[_training(fold, seed)] = {name: float(part[name].mean()) for name in columns}
    for (fold, seed), part in stability.times.groupby(["fold", "seed"]):
        last = part[part["epoch"] == part["epoch"].max()]
        by_training[_training(fold, seed)]["ce_end"] = float(last["ce"].mean())
    return by_training


def measure_tiles(run: Run) -> Numbers:
    """Heat maps of test slides against the truth of the tiles: ranking, and masks at 0.5 of the min-max scaled map."""
    tile_truth = read_tile_truth(_truth_file(run), ("tile", "focus"))
    tested = set(run.slides_of_role("test"))
    by_slide = {str(slide): part for slide, part in tile_truth.groupby("slide")}
    values: dict[Training, dict[str, list[float]]] = {}
    for slide in run.cohort.read(run.kind)[0].slides:
        if slide.slide not in tested:
            continue
        truth = by_slide[slide.slide].sort_values("tile")
        bag, _ = run.bag(slide)
        testing = run.roles_of(slide.slide)["test"]
        for training in run.trained:
            if training.fold in testing and training.model.has_tile_map:
                output = infer(training.model, training.model.prepare(bag), run.device)
                heat = training.model.tile_map(output).detach().double().cpu().numpy()
                kept = values.setdefault((training.fold, training.seed), {})
                for name, value in slide_tile_numbers(heat, truth).items():
                    kept.setdefault(name, []).append(value)
    return {training: {name: float(np.mean(v)) for name, v in of.items() if v} for training, of in values.items()}


def slide_tile_numbers(heat: npt.NDArray[np.float64], truth: pd.DataFrame) -> dict[str, float]:
    """The numbers of one slide: those of lesions if it has any, else its specificity.

    heat: N values of the heat map; truth: N rows with tumor and focus (the number of the focus, 0 or below: none)
    """
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


def measure_froc(run: Run) -> Numbers:
    """FROC as `asmil localize` reports it, for a run of one training."""
    if len(run.trained) != 1:
        raise AsmilError("the measure froc needs one seed per run folder; set group_seeds: false and folds: 1")
    training = run.trained[0]
    settings = LocalizeSettings(
        truth=_truth_file(run), cohort=None, features=run.cohort.features_there, resamples=1, device=str(run.device)
    )
    numbers = localize_run(run.path, settings, n_masks=0).summary.scaled["minmax"].numbers
    return {(training.fold, training.seed): {"froc": numbers["froc"].value}}


def measure_learning(run: Run) -> Numbers:
    """For every validation metric: its best value and the epoch of it, and the drop from the best to the last value."""
    by_training: Numbers = {}
    for training, records in _epochs(run).items():
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


def measure_bag_features(run: Run) -> Numbers:
    """The silhouette of the classes in the recorded bag features, by part, at three recordings."""
    # draws figures as well, which machines for training may not be able to
    from asmil.evaluation.stability.bag_features import silhouettes

    by_training: Numbers = {}
    for training in read_stability(run.path).trainings:
        last = len(training.record.epochs) - 1
        recordings = {"first": 0, "middle": last // 2, "last": last}
        by_training[training.fold, training.seed] = {
            f"silhouette_{role}_{when}": value
            for when, recording in recordings.items()
            for role, value in silhouettes(training.record, recording).items()
        }
    return by_training


def measure_seconds(run: Run) -> Numbers:
    """The median duration of an epoch, and the duration of all epochs."""
    return {
        training: {
            "epoch_seconds": float(np.median([record["seconds"] for record in records])),
            "training_seconds": float(sum(record["seconds"] for record in records)),
        }
        for training, records in _epochs(run).items()
    }


def measure_mixture(run: Run) -> Numbers:
    """The share of softmax at the end, for models with a learned mixture; other models have none."""
    by_training: Numbers = {}
    for training, records in _epochs(run).items():
        zeta = records[-1].get("zeta")
        by_training[training] = {} if zeta is None else {"zeta": float(zeta)}
    return by_training


MEASURES: dict[str, Callable[[Run], Numbers]] = {
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
