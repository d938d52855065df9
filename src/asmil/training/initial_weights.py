"""Pretrained weights that a training starts from, `--init`: a checkpoint, run or bundle of asmil, or official weights.

The loaded tensors are copied into the run folder as `init.safetensors` before the first training, so that all folds,
seeds and resumed trainings start from the same weights, even if the original file is gone.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from asmil.cohort.array_files import DAMAGED_TORCH
from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.models.official import recognize
from asmil.models.own_method import method_name
from asmil.runs.bundle import is_bundle, read_bundle
from asmil.runs.checkpoint import load_checkpoint, refuse_not_finite, save_checkpoint
from asmil.runs.config import RunConfig, resolve
from asmil.runs.description import config_of_fold, read_description
from asmil.runs.layout import RunLayout
from asmil.settings.config import merge
from asmil.settings.documents import one_line
from asmil.settings.made_from import sha256
from asmil.training.setup import build_stages

INIT_FILE = "init.safetensors"
"""In the run folder: the tensors that all its trainings start from."""
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
"""File names of weights in folders downloaded from the Hugging Face Hub."""


@dataclass(frozen=True)
class InitialWeights:
    """Pretrained weights by the names of our model.

    path: the source file
    method: the method that trained them; None if unknown
    in_features: width of the features that they were trained on
    model: the known settings of the model
    run, fold: the run or bundle of asmil that they are from, and the fold in it; None if there is none
    """

    path: Path
    sha256: str
    method: str | None
    in_features: int | None
    tensors: Mapping[str, Tensor]
    model: Mapping[str, Any] = field(default_factory=dict)
    run: Path | None = None
    fold: int | None = None


@dataclass(frozen=True)
class Initialization:
    """Which tensors of a model were initialized from pretrained weights.

    loaded: tensors of the model that were loaded
    skipped: tensors of the weights that were not loaded, with the reason
    missing: tensors of the model that the weights do not contain; they keep their random initialization
    """

    loaded: tuple[str, ...]
    skipped: Mapping[str, str]
    missing: tuple[str, ...]

    def lines(self, source: object) -> list[str]:
        """What was loaded, and what was not and why, one line each."""
        total = len(self.loaded) + len(self.missing) + sum("here" in why for why in self.skipped.values())
        told = [f"started from {source}: loaded {len(self.loaded)} of {total} tensors ({', '.join(self.loaded)})"]
        told += [f"not loaded: {name} ({why})" for name, why in self.skipped.items()]
        if self.missing:
            told.append(f"not in the weights, so initialized randomly: {', '.join(self.missing)}")
        return told


def resolve_with_init(
    method: str | type[MILModel] | None, preset: str, changes: Mapping[str, Any], out: Path | str | None = None
) -> RunConfig:
    """`resolve`, with the architecture of `init.weights`; `changes` override it.

    method: None uses the method of the weights, or asmil
    out: the run folder; an existing run there has a copy of the weights, so it can resume without their file
    """
    section = changes.get("init")
    given = section.get("weights") if isinstance(section, Mapping) else None
    if given is None:
        return resolve(method or "asmil", preset, changes)
    path = Path(str(given)).absolute()
    if out is not None and not path.exists() and (noted := _noted(out)) is not None:
        known, model, digest = noted
    else:
        weights = read_initial_weights(path)
        known, model, digest = weights.method, weights.model, weights.sha256
    asked = section.get("sha256") if isinstance(section, Mapping) else None
    if asked not in (None, digest):
        raise AsmilError(
            f"{path}: its SHA-256 is {digest}, but init.sha256 is {asked}; give the matching file of weights"
        )
    chosen = method_name(method or known or "asmil")
    if known is not None and known != chosen:
        raise AsmilError(f"{path}: these are weights of {known}, not of {chosen}; train with --method {known}")
    layers = merge({"model": model}, {**changes, "init": {"weights": str(path), "sha256": digest}})
    return resolve(chosen, preset, layers)


def _noted(out: Path | str) -> tuple[str | None, Mapping[str, Any], str] | None:
    """Method, model settings and hash of the initial weights of the run in a folder."""
    folder = RunLayout(out)
    if not (folder.config.exists() and (folder.path / INIT_FILE).exists()):
        return None
    values = folder.read_values()
    init, model = values.get("init"), values.get("model")
    if not (isinstance(init, Mapping) and isinstance(model, Mapping)):
        return None
    return str(values.get("method")), model, str(init.get("sha256"))


def read_initial_weights(path: Path) -> InitialWeights:
    """Weights from a checkpoint, run or bundle of asmil, or from a file in the layout of an official implementation."""
    if not path.exists():
        raise AsmilError(f"{path}: the file does not exist; check the path of --init")
    if path.is_dir():
        path = _file_in(path)
    tensors = _own(path)
    if tensors is not None:
        return _of_asmil(path, *tensors)
    recognized = _recognized(path, _foreign(path))
    refuse_not_finite(recognized.tensors, path)
    return recognized


def _file_in(folder: Path) -> Path:
    if is_bundle(folder):
        read_bundle(folder)
    layout = RunLayout(folder)
    if not layout.config.is_file():
        for name in HUB_FILES:
            if (folder / name).is_file():
                return folder / name
        raise AsmilError(f"{folder}: the folder contains no run, bundle or {HUB_FILES[0]}; give a file of weights")
    files = [training / "checkpoints" / "best.safetensors" for _, _, training in layout.trainings()]
    files = [file for file in files if file.is_file()]
    if len(files) != 1:
        hint = f"give one of them, e.g. {files[0]}" if files else "finish it with `asmil train`"
        raise AsmilError(f"{folder}: the run has {len(files)} trained models, but --init needs exactly one; {hint}")
    return files[0]


def _own(path: Path) -> tuple[dict[str, Tensor], str | None] | None:
    """Tensors and method of a checkpoint of asmil; None for other files."""
    try:
        with safe_open(str(path), framework="pt") as file:
            if "state" not in (file.metadata() or {}):
                return None
    except (SafetensorError, OSError, ValueError):
        return None
    tensors, state = load_checkpoint(path)
    if path.name == "last.safetensors":
        raise AsmilError(
            f"{path}: this is the state of a training, not a trained model; give best.safetensors next to it"
        )
    refuse_not_finite(tensors, path)
    return tensors, state.get("method")


def _of_asmil(path: Path, tensors: dict[str, Tensor], method: str | None) -> InitialWeights:
    """The weights of a checkpoint, with the model settings from its run folder, if any."""
    width, model, run, number = None, {}, None, None
    folder = RunLayout(path.parents[3]) if len(path.parents) > 3 else None
    if folder is not None and path.parents[0].name == "checkpoints" and folder.config.is_file():
        description = read_description(folder, method)
        fold = path.parents[2].name.removeprefix("fold-")
        run, number = folder.path, int(fold) if fold.isdecimal() else None
        config = description.config if number is None else config_of_fold(folder, description, number)
        width, model = description.in_features, config.model.model_dump(mode="json")
    return InitialWeights(path, sha256(path), method, width, tensors, model, run, number)


def _foreign(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            safe = file.read(9)[8:] == b"{"
        if safe:
            with safe_open(str(path), framework="pt") as opened:
                return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise AsmilError(
            f"{path}: the file contains more than tensors and could run code when opened, so it is not loaded; "
            "save only its state dict (torch.save(model.state_dict(), ...)) or use safetensors"
        ) from None
    except (SafetensorError, *DAMAGED_TORCH) as error:
        raise AsmilError(f"{path}: the weights cannot be read ({one_line(error)}); download or copy it again") from None
    if not isinstance(content, Mapping):
        raise AsmilError(f"{path}: the file contains a {type(content).__name__}, not a state dict; save the state dict")
    return content


def _recognized(path: Path, tensors: Mapping[str, Any]) -> InitialWeights:
    try:
        recognized = recognize(tensors)
    except AsmilError as error:
        raise AsmilError(f"{path}: {error}; --init needs weights of a method that `asmil methods` lists") from None
    return InitialWeights(
        path, sha256(path), recognized.form.method, recognized.in_features, recognized.tensors, recognized.options
    )


def initialize(model: MILModel, tensors: Mapping[str, Tensor]) -> Initialization:
    """Load every tensor whose name and shape match the model."""
    own = model.state_dict()
    skipped = {}
    for name, tensor in tensors.items():
        if name not in own:
            skipped[name] = "this model has no such tensor"
        elif own[name].shape != tensor.shape:
            skipped[name] = f"shape {_shape(tensor)} instead of {_shape(own[name])}"
    loaded = tuple(name for name in own if name in tensors and name not in skipped)
    model.load_state_dict({name: tensors[name] for name in loaded}, strict=False)
    return Initialization(loaded, skipped, tuple(name for name in own if name not in tensors))


def try_initialization(model: MILModel, weights: InitialWeights) -> Initialization:
    """`initialize`, with an error if the weights do not fit the model."""
    path = weights.path
    if weights.in_features not in (None, model.in_features):
        raise AsmilError(
            f"{path}: these weights expect features of width {weights.in_features}, but those of the cohort have width "
            f"{model.in_features}; extract the cohort with the encoder of the weights"
        )
    if len(build_stages(model, 0)) > 1:
        raise AsmilError(f"{path}: {type(model).__name__} trains in several stages, which --init does not support")
    done = initialize(model, weights.tensors)
    if not done.loaded:
        name, why = next(iter(done.skipped.items()))
        raise AsmilError(
            f"{path}: none of its {len(weights.tensors)} tensors fits this {type(model).__name__} (first: {name}, "
            f"{why}); give weights of this method, or the settings of the model that they belong to"
        )
    return done


def store_initial(folder: Path, weights: InitialWeights, done: Initialization) -> None:
    """Write the tensors that were loaded into the run folder."""
    state = {"method": weights.method, "weights": str(weights.path), "sha256": weights.sha256}
    save_checkpoint(folder / INIT_FILE, {name: weights.tensors[name] for name in done.loaded}, state)


def load_initial(folder: Path) -> dict[str, Tensor] | None:
    """The tensors that the trainings of a run start from; None if they start at random."""
    path = folder / INIT_FILE
    return load_checkpoint(path)[0] if path.exists() else None


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"
