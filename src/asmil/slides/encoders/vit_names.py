"""Convert parameter names of other libraries to those of `VisionTransformer`, which are timm's.

Parameters of parts that are not used (text towers, poolers, heads) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from asmil.slides.encoders.base import State

_SAME = {name: name for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")}
_SELF_ATTENTION = {
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.proj",
}
_HUGGING_FACE_VIT = {
    **_SAME,
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.register_tokens": "reg_token",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    **{f"attention.attention.{part}": f"attn.{part}" for part in ("query", "key", "value")},
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "mlp.weights_in": "mlp.fc1",
    "mlp.weights_out": "mlp.fc2",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
}
_HUGGING_FACE_CLIP = {
    **_SELF_ATTENTION,
    "embeddings.patch_embedding": "patch_embed.proj",
    "pre_layrnorm": "norm_pre",
    "post_layernorm": "norm",
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_OPEN_CLIP = {
    "conv1": "patch_embed.proj",
    "ln_pre": "norm_pre",
    "ln_post": "norm",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "attn.out_proj": "attn.proj",
    "attn.in_proj_weight": "attn.qkv.weight",
    "attn.in_proj_bias": "attn.qkv.bias",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_BEIT3 = {
    **_SELF_ATTENTION,
    "self_attn.inner_attn_ln": "attn.norm",
    "self_attn_layer_norm": "norm1",
    "final_layer_norm": "norm2",
    "ffn.fc1": "mlp.fc1",
    "ffn.ffn_layernorm": "mlp.norm",
    "ffn.fc2": "mlp.fc2",
    "layer_norm": "norm",
}


def from_hugging_face_vit(published: Mapping[str, Tensor]) -> State:
    """The state of a transformers `ViTModel` or `Dinov2Model`."""
    return _with_one_product(_renamed(published, _HUGGING_FACE_VIT, "encoder.layer."))


def from_hugging_face_registers(published: Mapping[str, Tensor]) -> State:
    """The state of a transformers `Dinov2WithRegistersModel`; the position of the class token is added to the token."""
    state = from_hugging_face_vit(published)
    state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
    state["pos_embed"] = state["pos_embed"][:, 1:].contiguous()
    return state


def from_beit3(published: Mapping[str, Tensor]) -> State:
    """The image expert (`A`) of a multiway BEiT-3; text experts, heads and the mask token are left out.

    As in Fairseq, the first two position embeddings belong to no token.
    """
    under = "beit3.encoder."
    vision = {
        name.removeprefix(under).replace(".A.", "."): tensor
        for name, tensor in published.items()
        if name.startswith(under) and ".A." in name
    }
    state = _with_one_product(_renamed(vision, _BEIT3, "layers."))
    for name in ("proj.weight", "proj.bias"):
        state[f"patch_embed.{name}"] = published[f"beit3.vision_embed.{name}"]
    state["cls_token"] = published["beit3.vision_embed.cls_token"]
    state["pos_embed"] = published[f"{under}embed_positions.A.weight"][None, 2:].contiguous()
    return state


def from_clip(published: Mapping[str, Tensor]) -> State:
    """The image tower of a transformers `CLIPModel` or an open_clip `CLIP`, with its projection."""
    if "visual.conv1.weight" in published:
        return _from_open_clip(_under(published, "visual."))
    tower = _under(published, "vision_model.")
    state = _with_one_product(_renamed(tower, _HUGGING_FACE_CLIP, "encoder.layers."))
    _add_tokens(state, tower, "embeddings.class_embedding", "embeddings.position_embedding.weight")
    if "visual_projection.weight" in published:
        state["head.weight"] = published["visual_projection.weight"]
    return state


def _from_open_clip(tower: Mapping[str, Tensor]) -> State:
    state = _renamed(tower, _OPEN_CLIP, "transformer.resblocks.")
    _add_tokens(state, tower, "class_embedding", "positional_embedding")
    if "proj" in tower:
        state["head.weight"] = tower["proj"].T.contiguous()
    return state


def _under(published: Mapping[str, Tensor], prefix: str) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in published.items() if name.startswith(prefix)}


def _add_tokens(state: State, tower: Mapping[str, Tensor], class_token: str, positions: str) -> None:
    for ours, theirs in (("cls_token", class_token), ("pos_embed", positions)):
        if theirs in tower:
            state[ours] = tower[theirs].reshape(1, -1, tower[theirs].shape[-1])


def _renamed(published: Mapping[str, Tensor], names: Mapping[str, str], blocks: str) -> State:
    state: State = {}
    for name, tensor in published.items():
        block, inner = "", name
        if name.startswith(blocks):  # `encoder.layer.3.norm1.weight` is `blocks.3.` and `norm1.weight`
            number, _, inner = name.removeprefix(blocks).partition(".")
            block = f"blocks.{number}."
        stem, _, leaf = inner.rpartition(".")
        if inner in names:
            state[block + names[inner]] = tensor
        elif stem in names:
            state[f"{block}{names[stem]}.{leaf}"] = tensor
    return state


def _with_one_product(state: State) -> State:
    """Queries, keys and values of a block as one `qkv`."""
    for query in [name for name in state if ".attn.query." in name]:
        parts = [query.replace(".query.", part) for part in (".query.", ".key.", ".value.")]
        if all(part in state for part in parts):
            state[query.replace(".query.", ".qkv.")] = torch.cat([state.pop(part) for part in parts])
    return state
