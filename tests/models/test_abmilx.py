"""ABMILX: scores refined by those of similar tiles, in blocks and with padding."""

import pytest
import torch
from torch.nn import functional

from asmil import Bag, build
from asmil.models.batch import run_batch
from asmil.models.blocks import score_attention
from asmil.models.blocks.score_attention import attend_to_scores


def drawn(tiles, heads=3, width=4):
    draw = torch.Generator().manual_seed(0)
    shapes = [(heads, tiles, width), (heads, tiles, width), (heads, tiles)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("padding", [0, 7])
def test_blocks_of_rows_are_attention_over_all_tiles(monkeypatch, padding):
    """A mask that hides nothing gives what fused attention gives without one."""
    monkeypatch.setattr(score_attention, "BLOCK_VALUES", 3 * 40 * 11)  # 11 rows at once, 40 is no multiple
    queries, keys, values = drawn(40)
    mask = torch.arange(40) < 40 - padding
    rows = mask.expand(40, -1) if padding else None
    attended = attend_to_scores(queries, keys, values, mask)
    expected = functional.scaled_dot_product_attention(queries, keys, values.unsqueeze(2), rows).squeeze(2)
    torch.testing.assert_close(attended, expected)
    if not padding:
        torch.testing.assert_close(attend_to_scores(queries, keys, values), expected)
    upstream = torch.randn(attended.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = (torch.autograd.grad(out, (queries, keys, values), upstream) for out in (attended, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_single_tile_is_its_own_neighbor():
    model = build("abmilx", 6, 2, inner=8, heads=2).eval()
    bag = Bag(torch.randn(1, 6))
    raw = model.raw_scores(model.embed(bag.features))
    torch.testing.assert_close(model(bag).scores, raw * (1 + model.similarity.strength.weight))


def test_without_refinement_a_score_depends_on_its_tile_alone():
    features = torch.randn(9, 6)
    changed = features.clone()
    changed[0] += 1
    for refine in (False, True):
        model = build("abmilx", 6, 2, inner=8, heads=2, refine=refine).eval()
        first, second = (model(Bag(rows)).scores[:, 1:] for rows in (features, changed))
        assert torch.equal(first, second) != refine


@pytest.mark.parametrize("options", [{}, {"joint": True, "norm": True, "feed_forward": True, "bias": True}])
def test_padded_bags_train_as_bags_one_by_one(options):
    torch.manual_seed(0)
    model = build("abmilx", 6, 2, inner=8, heads=2, dropout=0.0, **options).train()
    bags = [Bag(torch.randn(n, 6)) for n in (9, 4)]
    gradients = []
    for outputs in ([model(bag) for bag in bags], run_batch(model, Bag.collate(bags))):
        model.zero_grad()
        sum(output.logits.square().sum() for output in outputs).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for alone, batched in zip(*gradients, strict=True):
        torch.testing.assert_close(alone, batched, rtol=1e-4, atol=1e-5)
