"""Encoders whose weights were not at hand: sizes as published, and what is converted computes the same."""

import pytest
import torch
from torch.nn import functional

from asmil.slides.encoders.clip import AttentionalPooler
from asmil.slides.encoders.recent import from_conch_v15
from asmil.slides.encoders.registry import find_encoder
from asmil.slides.encoders.state import empty_network
from asmil.slides.encoders.vit import SwiGlu
from asmil.slides.encoders.vit_names import from_hugging_face_vit

MILLIONS = {
    "kaiko_vits16": 21.7,
    "kaiko_vitb8": 85.8,
    "kaiko_vitl14": 304.4,
    "midnight_12k": 1136,
    "gpfm": 303.2,
    "h0_mini": 85.7,
    "conch_v1_5": 306.6,
}
"""Parameters, as far as they are published: H0-mini 85.7, GPFM 303, ViT-g 1.1 billion, timm's ViT-S and ViT-B."""


@pytest.mark.parametrize("name", MILLIONS)
def test_the_networks_have_the_published_sizes(name):
    entry = find_encoder(name)
    network = empty_network(entry)
    count = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    assert count == pytest.approx(MILLIONS[name], rel=0.006)
    sides = entry.input_px
    assert network(torch.empty(1, 3, sides, sides, device="meta")).shape == (1, entry.width)


def test_the_pooler_of_conch_v1_5_is_converted_exactly():
    draw = torch.Generator().manual_seed(4)
    width, context, heads = 16, 24, 4

    def random(*shape):
        return torch.randn(*shape, generator=draw)

    pool = "attn_pool_contrast."
    published = {
        "trunk.pos_embed": random(1, 1 + 28 * 28, context),
        f"{pool}query": random(1, width),
        f"{pool}to_q.weight": random(width, width),
        f"{pool}to_kv.weight": random(2 * width, context),
        f"{pool}to_out.weight": random(width, width),
        **{
            f"{pool}{name}.{leaf}": random(size)
            for name, size in (("ln_q", width), ("ln_k", context))
            for leaf in ("weight", "bias")
        },
    }
    state = from_conch_v15(published)
    assert state["trunk.pos_embed"].shape == (1, 1 + 14 * 14, context)
    pooler = AttentionalPooler(width, context, heads)
    pooler.load_state_dict({name.removeprefix(pool): tensor for name, tensor in state.items() if name.startswith(pool)})

    tokens = random(3, 7, context)
    normed = functional.layer_norm(tokens, (context,), published[f"{pool}ln_k.weight"], published[f"{pool}ln_k.bias"])
    query = functional.layer_norm(
        published[f"{pool}query"], (width,), published[f"{pool}ln_q.weight"], published[f"{pool}ln_q.bias"]
    )
    q = (query @ published[f"{pool}to_q.weight"].T).view(heads, width // heads)
    k, v = (normed @ published[f"{pool}to_kv.weight"].T).chunk(2, dim=-1)
    k, v = (part.view(3, 7, heads, width // heads) for part in (k, v))
    weights = torch.einsum("hd,bnhd->bhn", q * (width // heads) ** -0.5, k).softmax(dim=-1)
    wanted = torch.einsum("bhn,bnhd->bhd", weights, v).flatten(1) @ published[f"{pool}to_out.weight"].T
    with torch.no_grad():
        torch.testing.assert_close(pooler(tokens), wanted, rtol=1e-5, atol=1e-5)


def test_the_gated_blocks_of_midnight_are_converted_exactly():
    draw = torch.Generator().manual_seed(5)
    weights = {
        "weights_in.weight": torch.randn(12, 6, generator=draw),
        "weights_in.bias": torch.randn(12, generator=draw),
        "weights_out.weight": torch.randn(6, 6, generator=draw),
        "weights_out.bias": torch.randn(6, generator=draw),
    }
    state = from_hugging_face_vit({f"encoder.layer.3.mlp.{name}": tensor for name, tensor in weights.items()})
    block = SwiGlu(6, 12)
    block.load_state_dict({name.removeprefix("blocks.3.mlp."): tensor for name, tensor in state.items()})
    x = torch.randn(2, 5, 6, generator=draw)
    first, second = (x @ weights["weights_in.weight"].T + weights["weights_in.bias"]).chunk(2, dim=-1)
    wanted = (functional.silu(first) * second) @ weights["weights_out.weight"].T + weights["weights_out.bias"]
    with torch.no_grad():
        torch.testing.assert_close(block(x), wanted, rtol=1e-5, atol=1e-5)
