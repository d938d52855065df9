"""Models from the tensors of official implementations.

`load(tensors)` recognizes the method by the tensor names, takes all sizes from the shapes, and returns our model with
those weights: `load(torch.load("checkpoint.pt", weights_only=True))`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asmil.cohort.problems import listed
from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.models.registry import build, methods

Tensors = Mapping[str, Tensor]
Config = Mapping[str, Any]
Converted = tuple[int, int, dict[str, Any], dict[str, Tensor]]
"""A layout in our terms: in_features, n_outputs, the options of `build`, and our state dict."""
Convert = Callable[[Tensors, Config], Converted]
Applies = Callable[[Tensors, Config], bool]
Build = Callable[[int, int, dict[str, Any]], MILModel]


@dataclass(frozen=True)
class OfficialForm:
    """One published layout of tensors.

    method: the name it is registered under here
    required: the names that identify the layout (all must be present)
    convert: (tensors, config) -> Converted; a tensor that it lacks is a KeyError with its name, and a tensor that it
        does not read is unknown
    applies: whether tensors with these names have this layout, if the names alone do not decide
    build: (in_features, n_outputs, options) -> the model, if it is a part of a method and not registered itself
    unused: tensors, or layers, that official files contain and official predictions do not depend on
    """

    method: str
    required: frozenset[str]
    convert: Convert
    applies: Applies | None = None
    build: Build | None = None
    unused: tuple[str, ...] = ()

    @property
    def looks(self) -> str:
        """The beginning of an error about tensors of this layout."""
        return f"the state dict looks like {self.method} but"


_FORMS: list[OfficialForm] = []


def register_official(
    method: str,
    layers: Iterable[str],
    convert: Convert,
    applies: Applies | None = None,
    *,
    names: Iterable[str] = (),
    build: Build | None = None,
    unused: tuple[str, ...] = (),
) -> None:
    """Make a published layout known to `load`; the weights of `layers` and the tensors `names` identify it.

    The other arguments are those of `OfficialForm`.
    """
    required = frozenset((*names, *(f"{layer}.weight" for layer in layers)))
    _FORMS.append(OfficialForm(method, required, convert, applies, build, unused))


def converted(
    state: dict[str, Tensor], in_features: int | None = None, n_outputs: int | None = None, **options: Any
) -> Converted:
    """What `OfficialForm.convert` returns, from our state dict and the options of `build`.

    Sizes that are not given are those of the first embedding layer, with the option `inner`, and of the head.
    """
    if in_features is None:
        options["inner"], in_features = state["embedding.layers.0.weight"].shape
    return in_features, n_outputs or len(state["head.weight"]), options, state


def options_of(config: Config, words: Mapping[str, str]) -> dict[str, Any]:
    """Options from the words of an official configuration, by our names; of several words for one, the last counts."""
    return {option: config[word] for word, option in words.items() if config.get(word) is not None}


@dataclass(frozen=True)
class Recognized:
    """Official tensors in our terms.

    tensors: by the names of our model; some may be missing, e.g. the head of weights that are published without one
    form: the layout that was recognized
    source: the tensors by their official names
    """

    form: OfficialForm
    in_features: int
    n_outputs: int
    options: dict[str, Any]
    tensors: dict[str, Tensor]
    source: _Official


def recognize(tensors: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Recognized:
    """The method of official tensors, its sizes, and the tensors by our names; the arguments are those of `load`."""
    methods()
    config = config or {}
    states = [_Official(_flattened(tensors))]
    if not states[0]:
        raise AsmilError("the checkpoint contains no tensors; give a state dict (names and tensors)")
    while not (fitting := _fitting(states[-1], config)) and (bare := _without_prefix(states[-1])):
        states.append(_Official(bare))
    if not fitting:
        raise AsmilError(_why_none(max(states, key=lambda state: _overlap(_closest(state), state))))
    state = states[-1]
    form = max(fitting, key=lambda form: (len(form.required), form.applies is not None))
    if halves := _layers_with_a_bias_alone(state):
        raise AsmilError(f"{form.looks} lacks {', '.join(f'{layer}.weight' for layer in halves)}")
    try:
        in_features, n_outputs, options, ours = form.convert(state, config)
    except AsmilError:
        raise
    except KeyError:
        missing = [state.official_name(name) for name in _missing(form, state, config)]
        raise AsmilError(f"{form.looks} lacks {', '.join(missing)}") from None
    except (RuntimeError, ValueError, IndexError) as error:
        raise AsmilError(f"{form.looks} its tensors do not fit each other: {str(error).splitlines()[0]}") from None
    unused = tuple(f"{name}." for name in form.unused)
    if unknown := [name for name in state if name not in state.read and not f"{name}.".startswith(unused)]:
        raise AsmilError(
            f"{form.looks} has tensors that {form.method} does not: {listed(unknown)}; it is another model, "
            "or, if its predictions do not depend on them, leave them out of the state dict"
        )
    return Recognized(form, in_features, n_outputs, options, ours, state)


def load(tensors: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> MILModel:
    """Our model with the weights of an official state dict.

    config adds only what shapes do not determine (heads, activations), in the terms of the official code. If several
    layouts fit, the one with the most names is used, and among those one with its own condition. Checkpoints are taken
    as they were saved: the weights may be under `state_dict` or `model`, or in several state dicts side by side (DTFD),
    and all names may begin with the same word (`module.`, `model.`). Tensors that the method does not have are an
    error, except those that its layout lists as unused.
    """
    recognized = recognize(tensors, config)
    form, state, ours = recognized.form, recognized.source, recognized.tensors
    sizes, options = (recognized.in_features, recognized.n_outputs), recognized.options
    model = build(form.method, *sizes, **options) if form.build is None else form.build(*sizes, options)
    own = model.state_dict()
    missing = [state.official_name(name) for name in own if name not in ours]
    misfit = [name for name in ours if name not in own or own[name].shape != ours[name].shape]
    if (missing or misfit) and _overlap(_closest(state), state) > len(form.required):
        raise AsmilError(_why_none(state))
    if missing:
        raise AsmilError(f"{form.looks} lacks {', '.join(missing)}")
    if misfit:
        name = state.official_name(misfit[0])
        raise AsmilError(f"{form.looks} {name} {tuple(ours[misfit[0]].shape)} does not fit the other tensors")
    model.load_state_dict(ours)
    loaded = model.state_dict()
    if broken := [state.official_name(name) for name in loaded if not loaded[name].isfinite().all()]:
        raise AsmilError(f"{form.looks} contains values that are not finite: {listed(broken)}; copy the file again")
    return model.eval()


def _fitting(state: Tensors, config: Config) -> list[OfficialForm]:
    return [
        form
        for form in _FORMS
        if form.required <= state.keys() and (form.applies is None or form.applies(state, config))
    ]


def _flattened(tensors: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, without anything else in it (epochs, optimizers)."""
    for key in ("state_dict", "model_state_dict", "model"):
        if not prefix and isinstance(tensors.get(key), Mapping):
            return _flattened(tensors[key])
    state: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if isinstance(value, Mapping):
            if "param_groups" in value:  # an optimizer
                continue
            state |= _flattened(value, f"{prefix}{name}.")
        elif isinstance(value, Tensor | np.ndarray):
            state[f"{prefix}{name}"] = torch.as_tensor(value)
    return state


def _without_prefix(state: Tensors) -> dict[str, Tensor]:
    """The same tensors without a common prefix of all names; empty if there is none."""
    words = {name.partition(".")[0] for name in state}
    if len(words) != 1 or any("." not in name for name in state):
        return {}
    return {name.partition(".")[2]: tensor for name, tensor in state.items()}


class _Official(dict[str, Tensor]):
    """Official tensors by name; records which were read, and what `renamed` calls them here."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.names: dict[str, str] = {}
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        tensor = super().__getitem__(name)
        self.read.add(name)
        return tensor

    def official_name(self, ours: str) -> str:
        """The official name of one of our tensors, if it is known (a model inside another adds a prefix)."""
        fitting = [name for name in self.names if f".{ours}".endswith(f".{name}")]
        return self.names[max(fitting, key=len)] if fitting else ours


def _layers_with_a_bias_alone(tensors: Tensors) -> list[str]:
    """Layers without a weight; a layout in which the layer is optional would silently ignore it."""
    leaves: dict[str, set[str]] = {}
    for name in tensors:
        layer, _, leaf = name.rpartition(".")
        leaves.setdefault(layer, set()).add(leaf)
    return [
        layer
        for layer, present in leaves.items()
        if present == {"bias"} and f"{layer}.parametrizations.weight.original" not in tensors
    ]


def _why_none(tensors: Tensors) -> str:
    """Why no layout fits: what the closest one lacks."""
    closest = _closest(tensors)
    missing = sorted(closest.required - tensors.keys())
    if len(missing) == len(closest.required):
        return f"these tensors belong to no known official model (first: {sorted(tensors)[:3]})"
    return f"{closest.looks} lacks {', '.join(missing)}"


def _closest(tensors: Tensors) -> OfficialForm:
    """The incomplete layout that has the most names in common with the tensors."""
    incomplete = [form for form in _FORMS if form.required - tensors.keys()]
    return max(incomplete, key=lambda form: (_overlap(form, tensors), -len(form.required)))


def _overlap(form: OfficialForm, tensors: Tensors) -> int:
    return len(form.required & tensors.keys())


def _missing(form: OfficialForm, tensors: _Official, config: Config) -> list[str]:
    """The names that a conversion lacks; each is replaced by a tensor of the same kind, to find the next one."""
    state, missing = _Official(tensors), []
    state.names = tensors.names
    while True:
        try:
            form.convert(state, config)
        except KeyError as error:
            missing.append(str(error.args[0]))
            kind = re.sub(r"\d+", "#", missing[-1])
            substitute = next((name for name in tensors if re.sub(r"\d+", "#", name) == kind), None)
            if substitute is None:
                return missing
            state[missing[-1]] = tensors[substitute]
        else:
            return missing


def renamed(
    tensors: Tensors, layers: Mapping[str, str], leaves: tuple[str, ...] = ("weight", "bias")
) -> dict[str, Tensor]:
    """`ours.leaf` from `theirs.leaf` for every pair of layers.

    A layer without the first leaf is a KeyError; other leaves that it lacks are left out.
    """
    state = {}
    for ours, theirs in layers.items():
        names = {f"{ours}.{leaf}": f"{theirs}.{leaf}" for leaf in leaves}
        if isinstance(tensors, _Official):
            tensors.names |= names
        state[f"{ours}.{leaves[0]}"] = tensors[f"{theirs}.{leaves[0]}"]
        state |= {name: tensors[official] for name, official in names.items() if official in tensors}
    return state
