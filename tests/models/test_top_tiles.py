import pytest
import torch

from asmil.models.blocks.top_tiles import PIECE, search_pieces, top_tiles


@pytest.mark.parametrize(("tiles", "top"), [(PIECE, 1), (PIECE + 1, 8), (5 * PIECE, PIECE), (10_000, 16)])
def test_pieces_give_what_one_search_gives(tiles, top):
    scores = torch.randn(3, tiles, generator=torch.Generator().manual_seed(0))
    assert torch.equal(search_pieces(scores, top), scores.topk(top, dim=1).indices)


def test_padding_is_never_found():
    scores = torch.full((1, PIECE + 3), -torch.inf)
    scores[0, [5, PIECE + 1]] = torch.tensor([1.0, 2.0])
    assert search_pieces(scores, 2).tolist() == [[PIECE + 1, 5]]


def test_few_tiles_are_all_found():
    assert top_tiles(torch.tensor([[1.0, 3.0, 2.0]]), 8).tolist() == [[1, 2, 0]]
