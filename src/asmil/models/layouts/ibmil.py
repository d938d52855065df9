"""The published layouts of IBMIL's tensors, with each base, with and without the dictionary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asmil.errors import AsmilError
from asmil.models.blocks.dual_stream import LINEAR_QUERY, NONLINEAR_QUERY, from_official, official_names
from asmil.models.official import UNUSED_NORM, Config, Converted, OfficialForm, Tensors, renamed
from asmil.models.transmil import LAYERS

_GATED = {
    "embedding.layers.0": "dimreduction.fc1",
    "attention.value": "attention.attention_V.0",
    "attention.gate": "attention.attention_U.0",
    "attention.weight": "attention.attention_weights",
}
_PLAIN = {"attention.value": "attention.0", "attention.weight": "attention.2"}


def _converted(
    base: str, state: dict[str, Tensor], tensors: Tensors, config: Config, prefix: str = "", feat: str = ""
) -> tuple[int, dict[str, Any], dict[str, Tensor]]:
    """The outputs, the options and our state from the base's state (with its head) and the dictionary's tensors.

    prefix: of W_q and W_k; feat: before confounder_feat
    """
    ours = {name if name.startswith("head.") else f"base.{name}": tensor for name, tensor in state.items()}
    options: dict[str, Any] = {"base": base, "prototypes": 0}
    if f"{prefix}W_q.weight" in tensors:
        prototypes = tensors[f"{feat}confounder_feat"]
        ours |= renamed(tensors, {"dictionary.query": f"{prefix}W_q", "dictionary.key": f"{prefix}W_k"})
        ours["dictionary.prototypes"] = prototypes
        ours["dictionary.used"] = torch.ones(len(prototypes), dtype=torch.bool)
        options["prototypes"] = len(prototypes)
        options["joint"] = len(ours["dictionary.query.weight"])
        options["merge"] = config.get("merge") or config.get("c_merge") or "cat"
        options["learn_prototypes"] = bool(config.get("confounder_learn"))
    return len(ours["head.bias"]), options, ours


def _convert_gated(tensors: Tensors, config: Config) -> Converted:
    head = "classifier" if "classifier.weight" in tensors else "classifier.fc"
    state = renamed(tensors, {**_GATED, "head": head})
    n_outputs, options, ours = _converted("gated", state, tensors, config)
    inner, in_features = state["embedding.layers.0.weight"].shape
    return in_features, n_outputs, {**options, "inner": inner, "attention": len(state["attention.value.weight"])}, ours


def _convert_plain(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, {**_PLAIN, "head": "classifier"})
    n_outputs, options, ours = _converted("plain", state, tensors, config)
    attention, in_features = state["attention.value.weight"].shape
    return in_features, n_outputs, {**options, "attention": attention}, ours


def _convert_dsmil(tensors: Tensors, config: Config) -> Converted:
    nonlinear = f"{NONLINEAR_QUERY[0]}.weight" in tensors
    streams, state = from_official(tensors, NONLINEAR_QUERY if nonlinear else LINEAR_QUERY)
    if streams["values"]:
        raise AsmilError("these tensors are of IBMIL's DSMIL with learned values, which ibmil does not have")
    n_outputs, options, ours = _converted("dsmil", state, tensors, config, "b_classifier.confounder_", "b_classifier.")
    options |= {"query": streams["query"], "query_width": streams["query_width"]}
    return state["streams.instance.weight"].shape[1], n_outputs, options, ours


def _convert_transmil(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, LAYERS) | {"class_token": tensors["cls_token"].flatten(0, 1)}
    n_outputs, options, ours = _converted("transmil", state, tensors, config, "confounder_")
    inner, in_features = state["embedding.layers.0.weight"].shape
    return in_features, n_outputs, {**options, "inner": inner}, ours


def _says_ibmil(tensors: Tensors, config: Config) -> bool:
    """Whether tensors of a base, without a dictionary, are those of IBMIL's first training."""
    del tensors
    return "stage" in config or "num_confounders" in config


def _is_plain_alone(tensors: Tensors, config: Config) -> bool:
    layers = {name.rpartition(".")[0] for name in tensors}
    return _says_ibmil(tensors, config) or layers == {*_PLAIN.values(), "classifier"}


def _weights(layers: dict[str, str]) -> frozenset[str]:
    return frozenset(f"{layer}.weight" for layer in layers.values())


_DICTIONARY = {"confounder_feat", "W_q.weight", "W_k.weight", "classifier.weight"}
FORMS = [
    OfficialForm("ibmil", _weights(_GATED) | _DICTIONARY, _convert_gated, unused=(UNUSED_NORM,)),
    OfficialForm(
        "ibmil", _weights(_GATED) | {"classifier.fc.weight"}, _convert_gated, _says_ibmil, unused=(UNUSED_NORM,)
    ),
    OfficialForm("ibmil", _weights(_PLAIN) | _DICTIONARY, _convert_plain),
    OfficialForm("ibmil", _weights(_PLAIN) | {"classifier.weight"}, _convert_plain, _is_plain_alone),
    OfficialForm("ibmil", _weights(LAYERS) | {"cls_token", "confounder_feat"}, _convert_transmil),
    OfficialForm("ibmil", _weights(LAYERS) | {"cls_token"}, _convert_transmil, _says_ibmil),
]
for _query in (LINEAR_QUERY, NONLINEAR_QUERY):
    _names = official_names(_query)
    FORMS.append(OfficialForm("ibmil", _names | {"b_classifier.confounder_feat"}, _convert_dsmil))
    FORMS.append(OfficialForm("ibmil", _names, _convert_dsmil, _says_ibmil))
