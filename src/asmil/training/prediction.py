"""Prediction for new slides with the models of a run, averaged over its folds and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asmil.cohort.bag import Bag
from asmil.cohort.features import inspect_features, read_bag
from asmil.cohort.manifest import Slide
from asmil.errors import AsmilError
from asmil.hdf5 import new_hdf5
from asmil.models.base import MILModel
from asmil.models.inference import infer
from asmil.tasks.classification import Classification
from asmil.training import checkpoint
from asmil.training.run_folder import RunFolder
from asmil.training.setup import build_model, choose_device


@dataclass(frozen=True)
class SlidePrediction:
    """What a run says of one slide.

    probabilities: K, the mean over the run's models
    heatmap: N, the mean of their heat maps, if asked for
    heatmap_kind: what the map shows: "attention", or for a method without attention the kind that it has
    """

    slide: str
    n_tiles: int
    probabilities: npt.NDArray[np.float64]
    heatmap: npt.NDArray[np.float32] | None
    heatmap_kind: str
    coords: npt.NDArray[np.int64] | None


class RunPredictor:
    """The trained models of a run, ready to predict."""

    def __init__(self, run: Path | str, device: str = "auto") -> None:
        folder = RunFolder(run)
        self.description = folder.read()
        self.task = Classification(self.description.classes)
        self.device = choose_device(device)
        self.models = [self._load(path, seed) for _, seed, path in folder.trainings() if _is_finished(path)]
        if not self.models:
            raise AsmilError(f"{folder.path}: no training of this run has ended; finish it with `asmil train`")
        self.unfinished = sum(not _is_finished(path) for _, _, path in folder.trainings())

    def _load(self, training: Path, seed: int) -> MILModel:
        path = training / "checkpoints" / "best.safetensors"
        tensors, state = checkpoint.load_checkpoint(path)
        method = self.description.config.method
        if state.get("method") != method:
            raise AsmilError(
                f"{path}: a checkpoint of {state.get('method')}, but the run is of {method}; restore the run"
            )
        model = build_model(self.description.config, self.description.in_features, self.task.n_outputs, seed)
        checkpoint.restore_model(model, tensors, path)
        return model.to(self.device).eval()

    def predict(self, slide: Slide, attention: bool = False) -> SlidePrediction:
        """Read a slide's features and predict; features made in another way than the run's are refused."""
        self.description.refuse_other_features(inspect_features(slide.source))
        return self.predict_bag(read_bag(slide.source, slide.slide, slide.mpp), attention)

    def predict_bag(self, bag: Bag, attention: bool = False) -> SlidePrediction:
        """Predict one bag with every model, and average."""
        outputs = [infer(model, model.prepare(bag), self.device) for model in self.models]
        probabilities = self.task.probabilities(torch.stack([output.logits for output in outputs])).mean(dim=0)
        heat = None
        if attention:
            maps = [model.heatmap(output) for model, output in zip(self.models, outputs, strict=True)]
            heat = torch.stack(maps).mean(dim=0).float().numpy()
        coords = None if bag.coords is None else bag.coords.numpy()
        kind = self.models[0].heatmap_kinds[0]
        return SlidePrediction(bag.id, len(bag), probabilities.numpy(), heat, kind, coords)

    def predict_all(
        self, slides: Sequence[Slide], attention: bool = False
    ) -> Iterator[tuple[Slide, SlidePrediction | AsmilError]]:
        """Every slide with its prediction or, for one that cannot be used, the reason."""
        for slide in slides:
            try:
                yield slide, self.predict(slide, attention)
            except AsmilError as error:
                yield slide, error

    def row(self, prediction: SlidePrediction) -> dict[str, Any]:
        """A prediction as a row of a table."""
        classes = self.description.classes
        return {
            "slide": prediction.slide,
            "predicted": classes[int(np.argmax(prediction.probabilities))],
            **{f"prob_{name}": float(p) for name, p in zip(classes, prediction.probabilities, strict=True)},
            "n_tiles": prediction.n_tiles,
            "n_models": len(self.models),
        }


def write_attention(path: Path, prediction: SlidePrediction) -> None:
    """One HDF5 file: `attention` (N, sums to 1) and, where known, `coords` (N x 2, level-0 pixels).

    A method without attention has its own map in place of it, under its own name (pooling: `probability`).
    """
    with new_hdf5(path) as file:
        file[prediction.heatmap_kind] = prediction.heatmap
        if prediction.coords is not None:
            file["coords"] = prediction.coords
        file.attrs["slide"] = prediction.slide


def _is_finished(training: Path) -> bool:
    return (training / "predictions.parquet").exists()
