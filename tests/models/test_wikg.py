"""WiKG: the search for neighbors and the mix of them, in blocks; small bags and ties."""

import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models.blocks import knowledge_mix, similar_tiles
from asmil.models.blocks.knowledge_mix import mix, mix_at_once
from asmil.models.blocks.similar_tiles import most_similar
from plain_methods.wikg import PlainWiKG


def drawn(tiles, width=5):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(tiles, width, generator=draw, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def test_neighbors_are_found_in_blocks(monkeypatch):
    monkeypatch.setitem(similar_tiles.BLOCK_VALUES, "cpu", 7 * 40)
    queries, keys = drawn(40)
    assert torch.equal(most_similar(queries, keys, 6), (queries @ keys.t()).topk(6).indices)
    assert most_similar(queries[:3], keys[:3], 6).shape == (3, 3)


def test_of_equal_tiles_the_first_are_chosen():
    queries, keys = torch.ones(9, 2), torch.ones(9, 2)
    keys[4] = 2.0
    assert most_similar(queries, keys, 4).tolist() == [[4, 0, 1, 2]] * 9


@pytest.mark.parametrize("dot", [False, True])
def test_blocks_of_tiles_have_the_values_and_gradients_of_all_at_once(monkeypatch, dot):
    monkeypatch.setitem(knowledge_mix.BLOCK_VALUES, "cpu", 7 * 4 * 5)
    heads, tails = drawn(40)
    neighbors = most_similar(heads, tails, 4)
    ours, expected = mix(heads, tails, neighbors, dot), mix_at_once(heads, tails, neighbors, dot)
    for value, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(value, other)
    upstream = torch.randn(40, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = (torch.autograd.grad(mixed, (heads, tails), upstream) for mixed in (ours[0], expected[0]))
    for value, other in zip(*gradients, strict=True):
        torch.testing.assert_close(value, other)


def test_is_the_official_form():
    torch.manual_seed(0)
    model, bag = build("wikg", 6, 3, inner=8).eval(), Bag(torch.randn(30, 6))
    torch.testing.assert_close(PlainWiKG(model)(bag.features), model(bag).logits)


@pytest.mark.parametrize("aggregation", ["bi-interaction", "gcn", "sage"])
@pytest.mark.parametrize("readout", ["attention", "mean", "max"])
def test_maps_of_every_readout(aggregation, readout):
    torch.manual_seed(0)
    model = build("wikg", 6, 2, inner=8, aggregation=aggregation, readout=readout).eval()
    bag = Bag(torch.randn(12, 6))
    output = model(bag)
    torch.testing.assert_close(model.tile_map(output, "neighbors").sum(), torch.tensor(12.0))
    assert (output.scores is None) == (readout != "attention") == (not model.score_axes)
    if readout == "max":
        assert model.tile_map(output, "channels").sum() == 8
    if readout != "attention":
        with pytest.raises(AsmilError, match="readout"):
            model.attend(bag)


@pytest.mark.parametrize("n_tiles", [1500, 1541])
def test_neighbors_are_exact_at_ties(n_tiles):
    draw = torch.Generator().manual_seed(0)
    queries, keys = (torch.randint(-2, 3, (n_tiles, 3), generator=draw).float() for _ in range(2))
    expected = (queries @ keys.t()).argsort(dim=1, descending=True, stable=True)[:, :5]
    assert torch.equal(most_similar(queries, keys, 5), expected)


def test_half_precision_does_not_tie_products():
    draw = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(50, 16, generator=draw).bfloat16() for _ in range(2))
    assert torch.equal(most_similar(queries, keys, 4), most_similar(queries.double(), keys.double(), 4))
