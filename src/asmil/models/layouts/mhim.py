"""Official state dicts of MHIM-MIL: v1 and v2, each with the three bases.

The state dict of one network becomes both the student and the teacher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from asmil.models.official import Config, Converted, OfficialForm, Tensors, renamed

EMBEDDINGS = {1: "patch_to_emb.0", 2: "feature.0"}
_LAYER = {
    "norm": "norm",
    "attention.to_qkv": "attn.to_qkv",
    "attention.to_out": "attn.to_out.0",
    "attention.residual": "attn.res_conv",
}
ENCODERS: Mapping[str, Mapping[str, str]] = {
    "abmil": {
        "attention.value": "online_encoder.attention.attention.0",
        "attention.weight": "online_encoder.attention.attention.2",
        "head": "predictor",
    },
    "transmil": {
        **{
            f"{layer}.{ours}": f"online_encoder.{layer}.{theirs}"
            for layer in ("layer1", "layer2")
            for ours, theirs in _LAYER.items()
        },
        **{
            f"position.convolutions.{i}": f"online_encoder.pos_embedding.{name}"
            for i, name in enumerate(("proj", "proj1", "proj2"))
        },
        "norm": "online_encoder.norm",
        "head": "predictor",
    },
    "dsmil": {
        "streams.instance": "online_encoder.i_classifier.0",
        "streams.query.0": "online_encoder.b_classifier.q.0",
        "streams.query.1": "online_encoder.b_classifier.q.2",
        "streams.value": "online_encoder.b_classifier.v.1",
        "head": "online_encoder.b_classifier.fcc",
    },
}
MERGE = {"norm": "merge.norm", "to_q": "merge.attn.to_q", "to_kv": "merge.attn.to_kv", "to_out": "merge.attn.to_out.0"}
COPIES = ("merge.global_q_mm", "merge.global_q_grad")
"""Further names of `merge.global_q`."""

MASK_WORDS = {
    "mask_ratio": "mask_random",
    "mask_ratio_l": "mask_low",
    "mask_ratio_h": "mask_high",
    "mask_ratio_hr": "high_share",
}
NOTHING_MASKED = {"mask_random": 0.0, "mask_low": 0.0, "mask_high": 0.0, "high_share": 1.0}
OTHER_WORDS = {
    "act": "activation",
    "attention_act": "attention_activation",
    "da_act": "attention_activation",
    "landmarks": "landmarks",
    "num_landmarks": "landmarks",
    "pinv_iterations": "iterations",
    "cl_alpha": "consistency_weight",
    "aux_alpha": "consistency_weight",
    "temp_t": "teacher_temperature",
    "temp_s": "student_temperature",
    "mm": "momentum",
    "merge_ratio": "merge_ratio",
    "merge_mm": "merge_momentum",
    "merge_heads": "merge_heads",
    "merge_test": "merge_test",
}


def _encoder_state(tensors: Tensors, base: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options that follow from the shapes of an encoder, and its state."""
    state = renamed(tensors, ENCODERS[base])
    if base == "abmil":
        return {"attention": len(state["attention.value.weight"])}, state
    if base == "dsmil":
        state["head.weight"] = state["head.weight"].flatten(start_dim=1)
        return {}, state
    state["class_token"] = tensors["online_encoder.cls_token"].flatten(0, 1)
    heads = len(state["layer1.attention.residual.weight"])
    head_width = len(state["layer1.attention.to_qkv.weight"]) // (3 * heads)
    return {"heads": heads, "head_width": head_width}, state


def _merge_state(tensors: Tensors, heads: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if "merge.global_q" not in tensors:
        return {"merge_k": 0}, {}
    state = renamed(tensors, MERGE)
    state["query"] = tensors["merge.global_q"].flatten(0, 1)
    return {"merge_k": len(state["query"]), "merge_head_width": len(state["to_q.weight"]) // heads}, state


def _asked(config: Config) -> dict[str, Any]:
    """Our options for the words of an official configuration; of masking stages it names, the others are off."""
    masks = {MASK_WORDS[word]: config[word] for word in MASK_WORDS if config.get(word) is not None}
    if masks:
        masks = NOTHING_MASKED | masks
        # 0 is the class's default, with which it can only run where nothing high is masked.
        masks["high_share"] = masks["high_share"] or 1.0
    return masks | {OTHER_WORDS[word]: config[word] for word in OTHER_WORDS if config.get(word) is not None}


def _form(version: int, base: str) -> OfficialForm:
    embedding = EMBEDDINGS[version]

    def convert(tensors: Tensors, config: Config) -> Converted:
        asked = _asked(config)
        parts = {"embedding": renamed(tensors, {"layers.0": embedding})}
        options, parts["encoder"] = _encoder_state(tensors, base)
        if version == 2:
            merge_options, parts["merge"] = _merge_state(tensors, asked.get("merge_heads", 8))
            options |= merge_options
        inner, in_features = parts["embedding"]["layers.0.weight"].shape
        n_outputs = len(tensors["online_encoder.i_classifier.0.weight" if base == "dsmil" else "predictor.weight"])
        network = {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}
        state = {f"{role}.{name}": tensor for role in ("network", "teacher") for name, tensor in network.items()}
        return in_features, n_outputs, {"version": version, "base": base, "inner": inner, **options, **asked}, state

    required = {f"{layer}.weight" for layer in (embedding, *ENCODERS[base].values())}
    # the official class owns a predictor that it does not call for DSMIL
    return OfficialForm("mhim", frozenset(required), convert, unused=(*COPIES, "predictor"))


FORMS = [_form(version, base) for version in EMBEDDINGS for base in ENCODERS]
