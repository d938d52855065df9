import numpy as np
import pytest
import torch

from asmil import AsmilError, Bag
from asmil.models.blocks.neighbors import given_edges, nearest, nearest_edges


def by_all_distances(coords, k):
    n = len(coords)
    squared = ((coords[:, None] - coords[None]) ** 2).sum(-1)
    squared[np.arange(n), np.arange(n)] = np.inf
    return np.lexsort((np.broadcast_to(np.arange(n), (n, n)), squared), axis=-1)[:, : min(k, n - 1)]


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_sort_of_all_distances_with_ties_and_shared_places(seed):
    draw = np.random.default_rng(seed)
    n, k = int(draw.integers(1, 70)), int(draw.integers(1, 20))
    coords = draw.integers(0, draw.integers(1, 12), (n, 2)) * 256.0
    assert np.array_equal(nearest(coords, k), by_all_distances(coords, k))


def test_a_ring_of_ties_larger_than_what_is_asked_for_first():
    """One tile amid 36 that are all equally far: the lowest indices win."""
    ring = [(x, y) for x in range(-65, 66) for y in range(-65, 66) if x * x + y * y == 65 * 65]
    assert len(ring) == 36
    coords = np.array([*ring, (0, 0)], dtype=float)
    assert nearest(coords, 8)[-1].tolist() == list(range(8))


def test_many_tiles_at_one_place_stay_cheap():
    near = nearest(np.zeros((20_000, 2)), 8)
    assert near[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert near[9].tolist() == list(range(8))


def test_edges_stay_within_a_slide_and_small_slides_have_fewer():
    coords = np.zeros((7, 2))
    slides = torch.tensor([0, 1, 0, 1, 2, 0, 0])
    centers, neighbors = nearest_edges(Bag(torch.ones(7, 3), coords, slide_index=slides), 2, "Test")
    assert (slides[centers] == slides[neighbors]).all()
    assert torch.bincount(centers, minlength=7).tolist() == [2, 1, 2, 1, 0, 2, 2]
    assert centers.tolist() == sorted(centers.tolist())
    assert neighbors[centers == 5].tolist() == [0, 2]


def test_missing_coordinates_are_refused():
    with pytest.raises(AsmilError, match=r"slide-7.*'coords'"):
        nearest_edges(Bag(torch.ones(3, 2), id="slide-7"), 8, "Test")


def test_given_edges_are_checked():
    def bag(edges):
        return Bag(torch.ones(3, 2), id="s", extras={"edges": edges})

    assert given_edges(Bag(torch.ones(3, 2))) is None
    assert given_edges(bag(torch.tensor([[0, 1], [1, 2]]))).tolist() == [[0, 1], [1, 2]]
    with pytest.raises(AsmilError, match=r"s: .*\(3, 2\).*2 x E"):
        given_edges(bag(torch.zeros(3, 2)))
    with pytest.raises(AsmilError, match=r"s: .*0 to 3.*0 to 2"):
        given_edges(bag(torch.tensor([[0], [3]])))


def test_microns_serve_where_pixels_are_unknown():
    microns = torch.rand(30, 2, dtype=torch.float64) * 1000
    in_microns = Bag(torch.ones(30, 3), extras={"coords_um": microns})
    assert torch.equal(
        nearest_edges(in_microns, 5, "Test"), nearest_edges(Bag(torch.ones(30, 3), microns / 0.25), 5, "Test")
    )
