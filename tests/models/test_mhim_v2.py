"""MHIM's second version: class-aware ranking, and tiles merged into tokens."""

import math

import pytest
import torch

from asmil.models.inference import infer
from asmil.models.mhim_maskable import class_margin, largest_probability
from mhim_parts import BASES, make, make_bag, step


def plain_merge(merge, tiles):
    """The cross-attention as the official code spells it out."""
    heads, width = merge.heads, merge.head_width
    keys, values = merge.to_kv(merge.norm(tiles)).chunk(2, dim=-1)
    queries = merge.to_q(merge.norm(merge.query))
    queries, keys, values = (part.view(len(part), heads, width).transpose(0, 1) for part in (queries, keys, values))
    attention = torch.softmax(queries @ keys.transpose(1, 2) / math.sqrt(width), dim=-1)
    return merge.to_out((attention @ values).transpose(0, 1).flatten(1))


def test_merging_equals_plain_cross_attention():
    merge = make(version=2, merge_k=3, merge_heads=2, merge_head_width=5).network.merge.eval()
    merge.norm.weight.data.uniform_(0.5, 2)
    tiles = torch.randn(11, 16)
    torch.testing.assert_close(merge(tiles), plain_merge(merge, tiles))


def test_v2_ranks_by_class_probability():
    model = make(version=2).eval()
    encoder, bag = model.teacher.encoder, make_bag()
    h = model.teacher.embedding(bag.features)
    weighted = torch.softmax(encoder.attend(h)[0], 0).unsqueeze(1) * h
    probability = torch.softmax(weighted @ encoder.head.weight.T + 0.7, dim=1).amax(dim=1)
    _, ranking = model.teach(bag)
    torch.testing.assert_close(largest_probability(ranking, 3)[0], probability)


def test_v2_ranks_by_class_probability_with_the_transformer():
    model = make(version=2, base="transmil").eval()
    encoder, bag = model.teacher.encoder, make_bag()
    attention = encoder.layer1.attention
    h = model.teacher.embedding(bag.features)
    row = encoder.class_rows(h)[0]
    values = attention.to_qkv(encoder.layer1.norm(h))[:, -16:].view(len(bag), 8, 2)
    brought = attention.to_out(torch.cat([row[head, :, None] * values[:, head] for head in range(8)], dim=1))
    probability = torch.softmax(brought @ encoder.head.weight.T, dim=1).amax(dim=1)
    torch.testing.assert_close(largest_probability(model.teach(bag)[1], 3)[0], probability)


def test_class_margins_tell_tiny_logits_apart():
    logits = torch.tensor([[0.0, 1e-9], [0.0, 2e-9], [3e-9, 0.0]])
    assert class_margin(logits)[0].argsort().tolist() == [0, 1, 2]
    # one output is the logit of the second class
    assert torch.equal(
        class_margin(torch.tensor([[-2.0], [1.0]])), class_margin(torch.tensor([[0.0, -2.0], [1.0, 0.0]]))
    )


def test_v2_lets_a_share_stay_and_merges_the_rest():
    model = make(version=2, mask_high=0.1, merge_ratio=0.5, merge_k=2, dropout=0.0).train()
    read = []
    model.network.encoder.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    output = model(make_bag(21))
    assert output.extras["kept"].sum() == 18
    assert read[0].shape == (9 + 2, 16)
    everything = model.embed(make_bag(21).features)
    assert all((everything == row).all(dim=1).any() for row in read[0][:9])
    torch.testing.assert_close(read[0][9:], output.extras["merged_tokens"])
    # in eval mode every kept tile stays, and tokens are made of all of them
    output = model.eval().forward_masked(make_bag(21))
    assert read[-1].shape == (18 + 2, 16)
    kept = model.embed(make_bag(21).features[output.extras["kept"]])
    torch.testing.assert_close(output.extras["merged_tokens"], plain_merge(model.network.merge, kept))


@pytest.mark.parametrize("base", BASES)
def test_merging_at_test_adds_tokens_to_the_whole_bag(base):
    model = make(version=2, base=base, merge_test=True).eval()
    bag = make_bag(30)
    h = model.embed(bag.features)
    read = torch.cat([h, model.network.merge(h)])
    output = model(bag)
    torch.testing.assert_close(output.logits, model.network.encoder(read, model.normalizer).logits)
    assert output.scores.shape[1] == 30
    torch.testing.assert_close(model.attend(bag), output.scores)
    assert model.tile_map(output).shape == (30,)
    torch.testing.assert_close(infer(model, bag, chunk_tiles=7).logits, output.logits)
    step(model)


def test_v2_without_merging_and_without_masking():
    model = make(version=2, merge_k=0, mask_high=0.0, dropout=0.0)
    output, _ = step(model, lr=0.0)
    assert model.network.merge is None
    torch.testing.assert_close(output.logits, model.eval()(make_bag()).logits)
