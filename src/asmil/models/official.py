"""Models from the tensors of official implementations.

`load(tensors)` recognizes the family by the tensor names, takes all sizes from the shapes, and gives our model with
those weights: `load(torch.load("checkpoint.pt", weights_only=True))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.models.registry import build, methods

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class OfficialForm:
    """One published layout of tensors.

    method: the name it is registered under here
    required: the names that tell the layout apart (all must be there)
    convert: (tensors, config) -> (in_features, n_outputs, options, our state dict)
    """

    method: str
    required: frozenset[str]
    convert: Callable[[Tensors, Mapping[str, Any]], tuple[int, int, dict[str, Any], dict[str, Tensor]]]


_FORMS: list[OfficialForm] = []


def register_official(form: OfficialForm) -> None:
    """Make a published layout known to `load`."""
    _FORMS.append(form)


def load(tensors: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> MILModel:
    """Our model with the weights of an official state dict.

    config adds only what shapes cannot tell (heads, activations); its words are those of the official code.
    """
    methods()
    state = {name: torch.as_tensor(value) for name, value in tensors.items()}
    fitting = [form for form in _FORMS if form.required <= state.keys()]
    if not fitting:
        closest = max(_FORMS, key=lambda form: len(form.required & state.keys()))
        missing = sorted(closest.required - state.keys())
        if len(missing) == len(closest.required):
            raise AsmilError(f"these tensors are of no known official model (first: {sorted(state)[:3]})")
        raise AsmilError(f"the state dict looks like {closest.method} but lacks {', '.join(missing)}")
    form = max(fitting, key=lambda form: len(form.required))
    try:
        in_features, n_outputs, options, ours = form.convert(state, config or {})
    except KeyError as error:
        raise AsmilError(f"the state dict looks like {form.method} but lacks {error.args[0]}") from None
    model = build(form.method, in_features, n_outputs, **options)
    model.load_state_dict(ours)
    return model.eval()
