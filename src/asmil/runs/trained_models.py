"""The models of the finished trainings of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.runs import checkpoint
from asmil.runs.bundle import BUNDLE_FILE, is_bundle
from asmil.runs.covariates import COVARIATES_FILE, CovariateTerm, read_term
from asmil.runs.description import RunDescription, config_of_fold
from asmil.runs.layout import TASK_FILE, RunLayout, is_finished
from asmil.runs.model import build_model
from asmil.runs.task import read_task, task_names
from asmil.tasks.base import Task
from asmil.tasks.classification import Classification


@dataclass(frozen=True)
class TrainedModel:
    """The model of one training of a run, its task, and the term of its covariates, if it has any."""

    fold: int
    seed: int
    model: MILModel
    task: Task
    covariates: CovariateTerm | None = None


def weights_file(training: Path) -> Path:
    """The weights of a finished training."""
    return training / "checkpoints" / "best.safetensors"


def finished_trainings(layout: RunLayout) -> list[tuple[int, int, Path]]:
    """Fold, seed and folder of the trainings with a model; a bundle has no others."""
    return [training for training in layout.trainings() if is_finished(training[2]) or is_bundle(layout.path)]


def load_trained_models(layout: RunLayout, description: RunDescription, device: torch.device) -> list[TrainedModel]:
    """The models of all finished trainings in eval mode; AsmilError if there is none, or if a file does not fit."""
    trained = [
        _load(layout, description, fold, seed, folder, device) for fold, seed, folder in finished_trainings(layout)
    ]
    if not trained:
        if any(layout.trainings()) and not layout.splits.exists():  # which every run begins with
            raise AsmilError(
                f"{layout.path}: neither a run (no {layout.splits.name}) nor a whole bundle (no {BUNDLE_FILE}); if it "
                "was a bundle, copy it again"
            )
        raise AsmilError(f"{layout.path}: no training of this run is finished; finish it with `asmil train`")
    return trained


def _load(
    layout: RunLayout, description: RunDescription, fold: int, seed: int, folder: Path, device: torch.device
) -> TrainedModel:
    path = weights_file(folder)
    tensors, state = checkpoint.load_checkpoint(path)
    config = config_of_fold(layout, description, fold)
    if state.get("method") != config.method:
        raise AsmilError(
            f"{path}: a checkpoint of {state.get('method')}, but the run uses {config.method}; restore the run"
        )
    task = _task(layout, description, folder)
    model = build_model(config, description.in_features, task.n_outputs, seed)
    checkpoint.restore_model(model, tensors, path)
    term = read_term(folder) if config.data.covariates else None
    if term is not None and len(term.bias) != task.n_outputs:
        raise AsmilError(f"{folder / COVARIATES_FILE}: its term has {len(term.bias)} outputs; restore the run")
    return TrainedModel(fold, seed, model.to(device).eval(), task, term)


def _task(layout: RunLayout, description: RunDescription, folder: Path) -> Task:
    file = folder / TASK_FILE
    if not file.exists():
        if description.config.task.kind != "classification":
            raise AsmilError(f"{file} is missing; restore it or train again")
        return Classification(description.classes)  # runs of versions with a single task
    task = read_task(file)
    if task.kind != description.config.task.kind or task_names(task) != description.classes:
        raise AsmilError(f"{file}: the task or classes differ from {layout.config}; restore the run")
    return task
