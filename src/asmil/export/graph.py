"""The models of a run as one computation graph, for runtimes without asmil: ONNX and torch.export.

The graph takes the features of one slide, N x D for any N, and returns

    logits          M x C, one row per model (fold and seed) of the run
    probabilities   K, the mean over the models; only for tasks with classes or labels
    heatmap         N, the mean heat map of the models; only for methods that have one
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError, AsmilWarning
from asmil.evaluation.run_alarms import alarm_findings
from asmil.files import replacing
from asmil.models.base import explains_logits, of_one_class
from asmil.runs.prediction import open_models
from asmil.runs.run import Run
from asmil.settings.documents import one_line

EXAMPLE_TILES = 64
CHECKED_TILES = (2, 37, 1500)
TOLERANCE = 1e-4
"""Largest difference between an exported model and the run, as a share of the largest value of an output."""


class RunGraph(nn.Module):
    """All models of a run behind one `forward` on plain tensors."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.trained = run.trained
        self.models = nn.ModuleList(run.models)  # registers their weights
        self.tasks = [trained.task for trained in run.trained]
        # contributions to a risk need a gradient, which an exported graph cannot compute
        is_share = run.models[0].map_kinds[0] == "contribution" and not explains_logits(self.tasks[0])
        self.has_tile_map = all(model.has_tile_map for model in run.models) and not is_share
        example = torch.zeros(1, run.trained[0].task.n_outputs)
        self.has_probabilities = self.tasks[0].probabilities(example) is not None

    @property
    def output_names(self) -> list[str]:
        return ["logits", *["probabilities"] * self.has_probabilities, *["heatmap"] * self.has_tile_map]

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        bag = Bag(features, validated=True)
        outputs = [model(bag) for model in self.models]
        answers = [torch.stack([output.logits for output in outputs])]
        if self.has_probabilities:
            pairs = zip(self.tasks, outputs, strict=True)
            by_model = [task.probabilities(output.logits.unsqueeze(0)) for task, output in pairs]
            answers.append(torch.cat([values for values in by_model if values is not None]).mean(dim=0).float())
        if self.has_tile_map:
            drawn = of_one_class(outputs)
            maps = [trained.model.tile_map(output) for trained, output in zip(self.trained, drawn, strict=True)]
            answers.append(torch.stack(maps).mean(dim=0))
        return tuple(answers)


def export_torch(path: Path | str, out: Path | str, method: str | None = None) -> Path:
    """Write a run as a file of `torch.export` (`torch.export.load(...).module()`), and return its path."""
    _refuse_folder(out)
    run = _open(path, method)
    graph, program = _exported(run)
    with replacing(out) as partial, _quiet():
        torch.export.save(program, str(partial), extra_files={"asmil.json": json.dumps(metadata(run))})
    _compare(graph, lambda features: program.module()(features), Path(out), run)
    return Path(out)


def export_onnx(path: Path | str, out: Path | str, method: str | None = None) -> Path:
    """Write a run as an ONNX file and return its path; its metadata names the classes, the encoder and the resolution.

    The file is compared with the run on bags of several sizes, by onnxruntime.
    """
    _refuse_folder(out)
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 torch writes ONNX with it
    except ModuleNotFoundError as error:
        raise AsmilError(f"ONNX needs the package {error.name}; install asmil[export]") from None
    run = _open(path, method)
    graph, program = _exported(run)
    with _explained(run), _quiet():
        model = torch.onnx.export(
            program, input_names=["features"], output_names=graph.output_names, dynamo=True, verbose=False
        )
    assert model is not None
    proto = model.model_proto
    for key, value in metadata(run).items():
        proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    with replacing(out) as partial:
        onnx.save(proto, str(partial))
    session = onnxruntime.InferenceSession(str(out))
    _compare(
        graph,
        lambda features: [torch.from_numpy(array) for array in session.run(None, {"features": features.numpy()})],
        Path(out),
        run,
    )
    return Path(out)


def _open(path: Path | str, method: str | None) -> Run:
    run = open_models(path, "cpu", method)
    if run.settings.covariates:
        raise AsmilError(
            f"{run.path}: the run uses the covariates {', '.join(run.settings.covariates)}, which a graph of features "
            "does not read; export it as a bundle, which contains their encoding"
        )
    return run


def _refuse_folder(out: Path | str) -> None:
    if Path(out).is_dir():
        raise AsmilError(f"{out} is a folder; give --out the name of a file in it")


def metadata(run: Run) -> dict[str, Any]:
    """The metadata of an exported model."""
    description, point = run.description, run.operating_point
    about: dict[str, Any] = {
        "asmil": description.to_dict()["asmil"],
        "method": run.method,
        "task": run.trained[0].task.kind,
        "classes": list(description.classes),
        "models": [f"{run.fold_names[trained.fold]}, seed {trained.seed}" for trained in run.trained],
        "encoder": description.features.get("encoder") or "",
        "features": {key: value for key, value in description.features.items() if key != "extraction"},
    }
    if alarms := alarm_findings([run.path]):
        about["alarms"] = list(alarms)
    if point is not None:
        about["operating_point"] = {"positive": point.positive, "threshold": point.threshold, "rule": point.rule}
    return about


def _exported(run: Run) -> tuple[RunGraph, torch.export.ExportedProgram]:
    graph = RunGraph(run).eval()
    tiles = torch.export.Dim("tiles", min=2)
    with _explained(run), _quiet(), torch.no_grad():
        example = _bag(EXAMPLE_TILES, run.description.in_features)
        return graph, torch.export.export(graph, (example,), dynamic_shapes=({0: tiles},))


@contextmanager
def _explained(run: Run) -> Iterator[None]:
    """Turn every error of an export into one that names the method."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", AsmilWarning)
            yield
    except (AsmilError, AsmilWarning) as error:
        raise AsmilError(f"{run.method} cannot be exported: {error}") from None
    except Exception as error:  # noqa: BLE001 torch raises many kinds of errors
        raise AsmilError(f"{run.method} cannot be exported: torch reports {one_line(error)[:300]}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and log messages of torch about itself; errors are raised."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.CRITICAL))
    with warnings.catch_warnings():
        for kind in (FutureWarning, DeprecationWarning, UserWarning):
            warnings.simplefilter("ignore", kind)
        warnings.simplefilter("error", AsmilWarning)
        try:
            yield
        finally:
            logging.disable(disabled)


def _bag(tiles: int, width: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(tiles).normal(size=(tiles, width)).astype(np.float32))


def _compare(graph: RunGraph, answer: Any, file: Path, run: Run) -> None:
    """Compare the written model with the run on bags of several sizes; remove it if it differs."""
    for tiles in CHECKED_TILES:
        features = _bag(tiles, run.description.in_features)
        with torch.no_grad():
            expected, answered = graph(features), answer(features)
        for name, wanted, actual in zip(graph.output_names, expected, answered, strict=True):
            scale = float(wanted.abs().max()) or 1.0
            if wanted.shape != actual.shape or float((wanted - actual).abs().max()) > TOLERANCE * scale:
                file.unlink(missing_ok=True)
                raise AsmilError(
                    f"{file}: the {name} of the exported {run.method} differ from those of the run for "
                    f"a bag of {tiles} tiles, so it was removed; please report this"
                )
