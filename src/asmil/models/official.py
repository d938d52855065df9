"""Models from the tensors of official implementations.

`load(tensors)` recognizes the family by the tensor names, takes all sizes from the shapes, and gives our model with
those weights: `load(torch.load("checkpoint.pt", weights_only=True))`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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
"""What a layout is here: in_features, n_outputs, the options of `build`, and our state dict."""


@dataclass(frozen=True)
class OfficialForm:
    """One published layout of tensors.

    method: the name it is registered under here
    required: the names that identify the layout (all must be present)
    convert: (tensors, config) -> Converted; a tensor it misses is a KeyError with its name, one it does not read is
        unknown
    unused: tensors, or layers, that official files contain and official predictions do not depend on
    applies: whether tensors with these names are of this layout, where names alone do not decide
    build: (in_features, n_outputs, options) -> the model, if it is a part of a method and not registered itself
    """

    method: str
    required: frozenset[str]
    convert: Callable[[Tensors, Config], Converted]
    applies: Callable[[Tensors, Config], bool] | None = None
    build: Callable[[int, int, dict[str, Any]], MILModel] | None = None
    unused: tuple[str, ...] = ()


UNUSED_NORM = "dimreduction.bn"
"""A batch norm that a published class for the embedding owns and never calls."""
_FORMS: list[OfficialForm] = []


def register_official(form: OfficialForm) -> None:
    """Make a published layout known to `load`."""
    _FORMS.append(form)


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

    @property
    def method(self) -> str:
        """The method that they are of."""
        return self.form.method

    @property
    def looks(self) -> str:
        """How an error about them begins."""
        return f"the state dict looks like {self.method} but"


def recognize(tensors: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Recognized:
    """Which method official tensors are of, its sizes, and the tensors by our names; arguments as of `load`."""
    methods()
    config = config or {}
    states = [_Official(_flattened(tensors))]
    if not states[0]:
        raise AsmilError("there are no tensors in this; give a state dict, names with their tensors")
    while not (fitting := _fitting(states[-1], config)) and (bare := _without_prefix(states[-1])):
        states.append(_Official(bare))
    if not fitting:
        raise AsmilError(_why_none(max(states, key=lambda state: _overlap(_closest(state), state))))
    state = states[-1]
    form = max(fitting, key=lambda form: (len(form.required), form.applies is not None))
    looks = f"the state dict looks like {form.method} but"
    if halves := _layers_with_a_bias_alone(state):
        raise AsmilError(f"{looks} lacks {', '.join(f'{layer}.weight' for layer in halves)}")
    try:
        in_features, n_outputs, options, ours = form.convert(state, config)
    except AsmilError:
        raise
    except KeyError:
        missing = [state.official_name(name) for name in _missing(form, state, config)]
        raise AsmilError(f"{looks} lacks {', '.join(missing)}") from None
    except (RuntimeError, ValueError, IndexError) as error:
        raise AsmilError(f"{looks} its tensors do not fit each other: {str(error).splitlines()[0]}") from None
    if unknown := [name for name in state if name not in state.read and not _is_unused(name, form)]:
        raise AsmilError(
            f"{looks} has tensors that {form.method} does not: {listed(unknown)}; it is another model, "
            "or, if its predictions do not depend on them, leave them out of the state dict"
        )
    return Recognized(form, in_features, n_outputs, options, ours, state)


def load(tensors: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> MILModel:
    """Our model with the weights of an official state dict.

    config adds only what shapes do not determine (heads, activations), in the terms of the official code. Of several
    layouts that fit, the one with the most names is used, and among those one with its own condition. Checkpoints
    come as they were saved: the weights may lie under `state_dict` or `model`, in several state dicts side by side
    (DTFD), and all names may begin with the same word (`module.`, `model.`). Tensors that the method does not have are
    an error, except those that its layout lists as unused.
    """
    found = recognize(tensors, config)
    form, state, ours, looks = found.form, found.source, found.tensors, found.looks
    if form.build is None:
        model = build(form.method, found.in_features, found.n_outputs, **found.options)
    else:
        model = form.build(found.in_features, found.n_outputs, found.options)
    own = model.state_dict()
    missing = [state.official_name(name) for name in own if name not in ours]
    misfit = [name for name in ours if name not in own or own[name].shape != ours[name].shape]
    if (missing or misfit) and _overlap(_closest(state), state) > len(form.required):
        raise AsmilError(_why_none(state))
    if missing:
        raise AsmilError(f"{looks} lacks {', '.join(missing)}")
    if misfit:
        name = state.official_name(misfit[0])
        raise AsmilError(f"{looks} {name} {tuple(ours[misfit[0]].shape)} does not fit the other tensors")
    model.load_state_dict(ours)
    if broken := [state.official_name(name) for name, one in model.state_dict().items() if not one.isfinite().all()]:
        raise AsmilError(f"{looks} contains values that are not finite: {listed(broken)}; copy the file again")
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


def _is_unused(name: str, form: OfficialForm) -> bool:
    return any(f"{name}.".startswith(f"{unused}.") for unused in form.unused)


class _Official(dict[str, Tensor]):
    """Official tensors by name, which remember what was read of them, and what `renamed` calls them here."""

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
    """Layers whose weight is gone; a layout in which the layer is optional would do without it unnoticed."""
    leaves: dict[str, set[str]] = {}
    for name in tensors:
        layer, _, leaf = name.rpartition(".")
        leaves.setdefault(layer, set()).add(leaf)
    return [layer for layer, found in leaves.items() if found == {"bias"}]


def _why_none(tensors: Tensors) -> str:
    """Why no layout fits: what the one that most of the names belong to still lacks."""
    closest = _closest(tensors)
    missing = sorted(closest.required - tensors.keys())
    if len(missing) == len(closest.required):
        return f"these tensors are of no known official model (first: {sorted(tensors)[:3]})"
    return f"the state dict looks like {closest.method} but lacks {', '.join(missing)}"


def _closest(tensors: Tensors) -> OfficialForm:
    """The layout, of those that lack something, that most of the names belong to."""
    incomplete = [form for form in _FORMS if form.required - tensors.keys()]
    return max(incomplete, key=lambda form: (_overlap(form, tensors), -len(form.required)))


def _overlap(form: OfficialForm, tensors: Tensors) -> int:
    return len(form.required & tensors.keys())


def _missing(form: OfficialForm, tensors: _Official, config: Config) -> list[str]:
    """The names that a conversion asks for in vain; each is lent by a layer of the same kind to get to the next."""
    state, missing = _Official(tensors), []
    state.names = tensors.names
    while True:
        try:
            form.convert(state, config)
        except KeyError as error:
            missing.append(str(error.args[0]))
            kind = re.sub(r"\d+", "#", missing[-1])
            lender = next((name for name in tensors if re.sub(r"\d+", "#", name) == kind), None)
            if lender is None:
                return missing
            state[missing[-1]] = tensors[lender]
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
