"""Models from the tensors of official implementations.

`load(tensors)` recognizes the family by the tensor names, takes all sizes from the shapes, and gives our model with
those weights: `load(torch.load("checkpoint.pt", weights_only=True))`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
    required: the names that tell the layout apart (all must be there)
    convert: (tensors, config) -> Converted; a tensor it misses is a KeyError with its name
    applies: whether tensors with these names are of this layout, where names alone do not decide
    build: (in_features, n_outputs, options) -> the model, where it is a part of a method and not registered itself
    """

    method: str
    required: frozenset[str]
    convert: Callable[[Tensors, Config], Converted]
    applies: Callable[[Tensors, Config], bool] | None = None
    build: Callable[[int, int, dict[str, Any]], MILModel] | None = None


_FORMS: list[OfficialForm] = []


def register_official(form: OfficialForm) -> None:
    """Make a published layout known to `load`."""
    _FORMS.append(form)


def load(tensors: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> MILModel:
    """Our model with the weights of an official state dict.

    config adds only what shapes cannot tell (heads, activations); its words are those of the official code. Of several
    layouts that fit, the one with the most names is taken, and among those one with a condition of its own.
    """
    methods()
    config = config or {}
    state = {name: torch.as_tensor(value) for name, value in tensors.items()}
    fitting = [
        form
        for form in _FORMS
        if form.required <= state.keys() and (form.applies is None or form.applies(state, config))
    ]
    if not fitting:
        closest = max(_FORMS, key=lambda form: len(form.required & state.keys()))
        missing = sorted(closest.required - state.keys())
        if len(missing) == len(closest.required):
            raise AsmilError(f"these tensors are of no known official model (first: {sorted(state)[:3]})")
        raise AsmilError(f"the state dict looks like {closest.method} but lacks {', '.join(missing)}")
    form = max(fitting, key=lambda form: (len(form.required), form.applies is not None))
    try:
        in_features, n_outputs, options, ours = form.convert(state, config)
    except KeyError:
        missing = _missing(form, state, config)
        raise AsmilError(f"the state dict looks like {form.method} but lacks {', '.join(missing)}") from None
    if form.build is None:
        model = build(form.method, in_features, n_outputs, **options)
    else:
        model = form.build(in_features, n_outputs, options)
    own = model.state_dict()
    wrong = sorted(own.keys() ^ ours.keys()) or [name for name in own if own[name].shape != ours[name].shape]
    if wrong:
        raise AsmilError(f"the state dict looks like {form.method} but its {wrong[0]} does not fit the other tensors")
    model.load_state_dict(ours)
    return model.eval()


def _missing(form: OfficialForm, tensors: Tensors, config: Config) -> list[str]:
    """The names that a conversion asks for in vain; each is lent by a layer of the same kind to get to the next."""
    state, missing = dict(tensors), []
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
    """`ours.leaf` from `theirs.leaf` for every pair of layers; leaves that the official layer lacks are left out,
    unless it lacks the first one, which is a KeyError."""
    state = {}
    for ours, theirs in layers.items():
        state[f"{ours}.{leaves[0]}"] = tensors[f"{theirs}.{leaves[0]}"]
        state |= {f"{ours}.{leaf}": tensors[f"{theirs}.{leaf}"] for leaf in leaves[1:] if f"{theirs}.{leaf}" in tensors}
    return state
