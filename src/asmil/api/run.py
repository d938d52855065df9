"""A trained run as an object: its predictions, metrics, attention and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import Tensor

from asmil.api.inputs import as_path
from asmil.api.new_slides import PredictionRequest
from asmil.cohort.bag import Bag
from asmil.cohort.manifest import Cohort, Slide, cohort_from_features
from asmil.cohort.problems import raise_errors
from asmil.cohort.source import FeatureSource
from asmil.cohort.table import cell_of
from asmil.cohort.units import Unit, UnitKind, units_of
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.evaluate import evaluate_run, noting_changed_labels
from asmil.evaluation.run_evaluation import Role, RunEvaluation
from asmil.evaluation.uncertainty.predicted_sets import SetRequest
from asmil.explain.run_explainer import RunExplainer, SlideExplanation
from asmil.export.bundle import write_bundle
from asmil.export.hub import download, upload
from asmil.models.base import MILModel
from asmil.models.own_method import method_name
from asmil.reporting import Estimate, Interval
from asmil.runs.attention_file import AttentionRecord, read_attention
from asmil.runs.bundle import read_bundle
from asmil.runs.prediction import SlidePrediction, covariates_of, doubtful_covariates, predict_bag
from asmil.runs.run import Run
from asmil.tasks.base import TaskKind

if TYPE_CHECKING:
    from asmil.explain.heatmaps import HeatmapResult

BagLike = Bag | Tensor | npt.NDArray[Any]
"""The tiles of one slide: a bag, or their features N x D."""
_BAG_TYPES = (Bag, Tensor, np.ndarray)


class PredictOptions(TypedDict, total=False):
    """The options of `TrainedRun.predict`, which explains them."""

    features: Path | str | None
    columns: Mapping[str, str] | None
    out: Path | str | None
    attention: bool
    keep_features: Path | str | None
    mpp: float | None
    weights: Path | str | None
    encoder: str | None
    coverage: float | None
    per_class: bool
    max_missed: float | None
    positive: str | None
    confidence: float | None
    workers: int | None
    item_timeout: float | None
    again: bool
    progress: bool


class TrainedRun:
    """A run folder that `asmil.train` or `asmil train` wrote.

    Files are read when they are first needed: predictions without the models, models without the predictions.

    path: the run folder
    settings: everything that its `config.yaml` holds
    device: where the models are put
    method: the run's method, where it is code; see `load_run`
    """

    def __init__(self, path: Path | str, device: str = "auto", method: str | type[MILModel] | None = None) -> None:
        self._own_method = None if method is None else method_name(method)
        self._run = Run(path, device, self._own_method)
        self.path = self._run.path
        self.settings: Mapping[str, Any] = self._run.values
        self.device = device

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.path)!r}, method={self.method!r}, task={self._run.settings.task.kind!r})"

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.path.resolve().name

    @property
    def method(self) -> str:
        """Name of the trained method."""
        return self._run.method

    @property
    def task(self) -> TaskKind:
        """The task: classification, survival, regression or multilabel."""
        return self._run.kind

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes or labels, in the order of the outputs; empty for survival and regression."""
        return self._run.classes

    @property
    def predictions(self) -> pd.DataFrame:
        """The predictions for every validation and test slide: one row per slide, fold and seed."""
        return self._run.predictions.copy()

    @cached_property
    def metrics(self) -> Mapping[str, Estimate]:
        """Each metric of the test set with its 95 % confidence interval; `evaluate` offers more."""
        if not self._run.is_bundle:
            return self.evaluate().metrics
        stored = read_bundle(self.path).metrics
        return {
            name: Estimate(_or_nan(metric.value), Interval(_or_nan(metric.low), _or_nan(metric.high)))
            for name, metric in stored.items()
        }

    @property
    def models(self) -> dict[tuple[int, int], MILModel]:
        """The trained models by fold and seed, in eval mode."""
        return {(trained.fold, trained.seed): trained.model for trained in self._run.trained}

    @property
    def recorded_attention(self) -> dict[tuple[int, int], AttentionRecord]:
        """The attention that was recorded during training, by fold and seed; empty if none was."""
        records = {(fold, seed): read_attention(path) for fold, seed, path in self._run.layout.trainings()}
        return {training: record for training, record in records.items() if record is not None}

    def evaluate(
        self,
        role: Role = "test",
        *,
        resamples: int = 2000,
        seed: int = 0,
        unit: UnitKind = "slide",
        threshold: str | None = None,
    ) -> RunEvaluation:
        """Compute every metric of the task with a 95 % confidence interval by patient.

        role: the part of the cohort, `test` or `val`
        resamples, seed: of the bootstrap over patients
        unit: `patient` averages the predictions of a patient's slides first
        threshold: two classes: predict at a threshold that this rule chooses on validation slides: youden, f1,
            sensitivity:0.95, specificity:0.95; default: predict the most probable class. `warnings` of the result
            reports a rule that does not apply
        """
        return noting_changed_labels(evaluate_run(self._run, role, resamples, seed, unit, threshold))

    def attention(
        self, slide: BagLike | Path | str, *, kind: str | None = None, features: Path | str | None = None
    ) -> SlidePrediction:
        """The attention of one slide: a prediction whose `tile_map` has one value per tile, at `coords`.

        A slide of the cohort is shown by the models that were not trained on it, or by all if all were. Any other
        slide is shown by all models. Covariates are not used: the prediction is that of the image alone.

        slide: the name of a slide of the cohort (of a patient, where slides are joined), a feature file, a bag or
            an array of features N x D
        kind: one of the `map_kinds` of the models; default: the first, as the method's authors draw it
        features: where the features of the cohort are, if not beside the manifest
        """
        bag = self._bag(slide, features)
        return predict_bag(self._run, bag, attention=True, trained=self._run.trained_for(bag.id), map_kind=kind)

    def explain(
        self,
        slide: BagLike | Path | str,
        *,
        kind: str | None = None,
        name: str | None = None,
        features: Path | str | None = None,
    ) -> SlideExplanation:
        """How much each tile of one slide counted, by the same models as `attention`; see docs/explain.md.

        kind: attention, attention_logit, leave_one_out, gradient, integrated_gradients, or one of the method;
            default: the method's own
        name: the class or label to explain; default: the predicted one
        """
        return self._explainer.explain(self._bag(slide, features), kind, name)

    def heatmap(
        self, slides: Path | str | Sequence[Path | str] = (), out: Path | str = "heatmaps", **options: Any
    ) -> HeatmapResult:
        """Draw heat maps of slides into a folder, in this process; the options are those of `asmil.heatmap`."""
        # training and prediction from features need none of the slide libraries
        from asmil.api.heatmaps import heatmap

        asked = {"workers": 0, "device": self.device, "method": self._own_method, **options}
        return heatmap(self, slides, out, **asked)

    @overload
    def predict(self, slides: BagLike, *, covariates: Mapping[str, Any] | None = None) -> SlidePrediction: ...

    @overload
    def predict(self, slides: Cohort | Path | str, **options: Unpack[PredictOptions]) -> pd.DataFrame: ...

    def predict(
        self,
        slides: BagLike | Cohort | Path | str,
        *,
        features: Path | str | None = None,
        columns: Mapping[str, str] | None = None,
        covariates: Mapping[str, Any] | None = None,
        out: Path | str | None = None,
        attention: bool = False,
        keep_features: Path | str | None = None,
        mpp: float | None = None,
        weights: Path | str | None = None,
        encoder: str | None = None,
        coverage: float | None = None,
        per_class: bool = False,
        max_missed: float | None = None,
        positive: str | None = None,
        confidence: float | None = None,
        workers: int | None = 0,
        item_timeout: float | None = 0.0,
        again: bool = False,
        progress: bool = False,
    ) -> SlidePrediction | pd.DataFrame:
        """Predict new slides with all models of the run, averaged.

        slides: a `Bag` or an array N x D gives one `SlidePrediction`; a folder or file of features, a folder or file
            of slide images, a table or a `Cohort` gives a table with one row per slide
        features, columns: the folder of the features, and which columns to read, for a table
        covariates: of a `Bag` or array, e.g. {"age": 63, "sex": "female"}, if the run uses covariates; a table has
            them as columns
        out: a CSV file to write; attention: also write the attention of every tile, to OUT_attention/SLIDE.h5
        keep_features, mpp, weights, encoder: for slide images, which are extracted first, as those of the training
            were: a folder that keeps their features (default: they are removed), microns per level-0 pixel, the
            encoder's weights, and its name if it is your own code
        coverage: add conformal sets of classes that contain the true class of this share of patients, calibrated on
            validation patients; per_class: of the patients of each class
        max_missed: rule out the class `positive` (default: the second of two) so that at most this share of its
            patients is missed, on average or with a `confidence`; docs/uncertainty.md says when this holds
        workers: processes that extract slide images; default: this one
        item_timeout: give up on a slide after this many seconds; 0: no limit
        again: extract slides again whose kept features were made from something else, instead of refusing
        progress: whether progress bars are shown

        A slide that cannot be predicted is left out, with an `AsmilWarning` that names it. If none can be predicted,
        an `AsmilError` is raised.
        """
        if isinstance(slides, _BAG_TYPES):
            with_map = all(model.has_tile_map for model in self._run.models)
            bag = as_bag(slides)
            used = self._run.settings.covariates
            if unknown := sorted(set(covariates or {}) - set(used)):
                has = f"it uses {', '.join(used)}" if used else "it uses none"
                raise AsmilError(f"the run has no covariate {unknown[0]!r}; {has}; leave {unknown[0]!r} out")
            cells = {name: cell_of(value) for name, value in (covariates or {}).items()}
            unit = Unit.of_slide(Slide(bag.id, bag.id, None, FeatureSource(Path()), covariates=cells))
            known = covariates_of(self._run, unit)
            predicted = predict_bag(self._run, bag, attention=with_map, covariates=known)
            return replace(predicted, notes="; ".join(doubtful_covariates(self._run, known)))
        if covariates is not None:
            raise AsmilError("covariates are given for a single bag; for several slides they are columns of a table")
        if not isinstance(slides, Cohort | Path | str):
            raise AsmilError(
                f"cannot predict a {type(slides).__name__}; give a path, a Cohort, a Bag or an array (tiles x features)"
            )
        request = PredictionRequest(
            slides,
            as_path(features),
            columns,
            as_path(out),
            attention,
            as_path(keep_features),
            mpp,
            as_path(weights),
            encoder,
            workers,
            item_timeout,
            again,
            progress,
            SetRequest(coverage, per_class, max_missed, positive, confidence),
        )
        return request.predict(self._run).table()

    def save_pretrained(self, folder: Path | str) -> Path:
        """Write the models, settings and a model card into a new folder, without names or data of slides and patients.

        Hashes of some training tiles are included, to recognize slides that the models have seen. The folder is a
        bundle: `from_pretrained`, `load_run` and `asmil predict` open it.
        """
        return write_bundle(self.path, folder, self._own_method)

    @classmethod
    def from_pretrained(
        cls,
        name: Path | str,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
        device: str = "auto",
    ) -> TrainedRun:
        """Open a bundle: a local folder, or a repository of the Hugging Face hub, which is downloaded.

        revision, token, cache_dir, local_files_only: as in `huggingface_hub.snapshot_download`
        device: where the models are put
        """
        folder = download(
            str(name), revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only
        )
        return cls(folder, device)

    def push_to_hub(
        self, repo_id: str, *, private: bool = True, token: str | None = None, commit_message: str | None = None
    ) -> str:
        """Upload the run as a bundle to the Hugging Face hub and return the address of the commit.

        repo_id: OWNER/NAME; the repository is created if it does not exist
        private: whether a new repository is private
        """
        return upload(self.path, repo_id, private=private, token=token, message=commit_message, method=self._own_method)

    @cached_property
    def _explainer(self) -> RunExplainer:
        return RunExplainer(self._run)

    def _bag(self, slide: BagLike | Path | str, features: Path | str | None) -> Bag:
        return as_bag(slide) if isinstance(slide, _BAG_TYPES) else self._run.bag(self._unit(slide, features))[0]

    def _unit(self, slide: Path | str, features: Path | str | None) -> Unit:
        unit = self._run.unit
        known = set() if self._run.splits is None else set(self._run.splits.table[unit])
        if str(slide) not in known:
            if not Path(slide).is_file():
                raise AsmilError(
                    f"{self.path}: '{slide}' is neither a {unit} of this run nor a feature file; "
                    f"{did_you_mean(str(slide), known)}"
                )
            (new_slide,) = cohort_from_features(slide).slides
            return Unit.of_slide(new_slide)
        cohort, problems = self._run.cohort.read(features=None if features is None else Path(features))
        raise_errors(problems)
        units = {each.name: each for each in units_of(cohort.slides, unit)}
        if str(slide) not in units:
            raise AsmilError(f"{cohort.path}: '{slide}' is no longer in the manifest; give its feature file instead")
        return units[str(slide)]


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def load_run(
    path: Path | str | TrainedRun, device: str = "auto", *, method: str | type[MILModel] | None = None
) -> TrainedRun:
    """Open the run folder that `asmil.train` or `asmil train` wrote, or a bundle of `asmil export`.

    device: where the models are put: auto, cpu, cuda, ...
    method: the run's method, if it is your own code: the class, `module:Class` or `file.py:Class`. A run that names
        code which you have not named is refused, since the code would be executed.
    """
    return path if isinstance(path, TrainedRun) else TrainedRun(path, device, method)


def as_bag(tiles: BagLike) -> Bag:
    """A bag, also from an array or tensor of tiles x features."""
    if isinstance(tiles, Bag):
        return tiles
    if isinstance(tiles, np.ndarray) and tiles.dtype.kind not in "fiub":
        raise AsmilError(f"an array of {tiles.dtype} is not a bag; give numbers, tiles x features")
    return Bag(tiles)  # type: ignore[arg-type]
