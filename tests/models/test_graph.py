import pytest
import torch

from asmil.models.blocks import graph
from asmil.models.blocks.graph import adjacency, softmax_sum, weighted_sum

TILES = 12


@pytest.fixture
def edges():
    """40 edges; tile 0 and the last tile are reached by none, the last two send nothing."""
    draw = torch.Generator().manual_seed(0)
    sources = torch.randint(0, TILES - 2, (40,), generator=draw)
    return sources, torch.randint(1, TILES - 1, (40,), generator=draw)


def by_tile(edges, messages, t):
    rows = []
    for tile in range(TILES):
        heard = messages[edges[0][edges[1] == tile]]
        rows.append((torch.softmax(t * heard, dim=0) * heard).sum(dim=0))
    return torch.stack(rows)


def drawn(t=1.7, scale=1.0):
    messages = scale * torch.rand(TILES, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return messages.requires_grad_(), torch.tensor([t], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("t", "scale"), [(1.7, 1.0), (-0.6, 3.0), (25.0, 3.0), (-90.0, 2.0), (1e4, 1.0)])
def test_softmax_sum_and_its_gradients_equal_the_plain_form(edges, t, scale):
    """Small spreads of t m take the sparse products, large ones the way edge by edge."""
    messages, t = drawn(t, scale)
    matrix = adjacency(rows=edges[1], columns=edges[0], n_tiles=TILES)
    weights = torch.randn(TILES, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    results = [
        [result, *torch.autograd.grad((result * weights).sum(), [messages, t])]
        for result in (softmax_sum(matrix, messages, t), by_tile(edges, messages, t))
    ]
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)
    assert not results[0][0][[0, -1]].any()


def test_both_ways_agree_in_single_precision(edges):
    messages = 30 * torch.rand(TILES, 40, generator=torch.Generator().manual_seed(1))
    matrix = adjacency(rows=edges[1], columns=edges[0], n_tiles=TILES)
    t = torch.ones(1)
    whole, by_edges = softmax_sum(matrix, messages, t), graph._softmax_sum_by_edges(matrix, messages, t)
    torch.testing.assert_close(whole, by_edges, rtol=1e-5, atol=1e-5)


def test_no_edges_at_all():
    none = torch.zeros(0, dtype=torch.long)
    matrix = adjacency(none, none, 1)
    assert not softmax_sum(matrix, torch.ones(1, 3), torch.ones(1)).any()
    assert not softmax_sum(matrix, torch.tensor([[1.0, 1e6]]), torch.ones(1)).any()


def test_weighted_sum_is_the_product_with_the_matrix(edges):
    values = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    dense = torch.zeros(TILES, TILES, dtype=torch.float64).index_put(edges, values, accumulate=True)
    matrix = adjacency(*edges, TILES, values)
    x = torch.rand(TILES, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(weighted_sum(matrix, x), dense @ x)
    assert torch.autograd.gradcheck(lambda rows: weighted_sum(matrix, rows), (x,))
