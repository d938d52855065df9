"""The nearest tiles of every tile, by coordinates.

Neighbors are ordered by (distance, index). A tile is excluded by its index, so that tiles at one place list each
other. The answer is exact at ties too: on a grid many tiles are equally far, and which of them come before the cut is
decided by their index, not by the search. Tiles of different slides are never neighbors.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.blocks.exporting import refuse_in_export
from asmil.tables.arrays import Floats, Integers

_RESERVE = 8
"""Extra candidates beyond the cut; on a grid this is nearly always enough."""


def nearest_edges(bag: Bag, k: int, method: str) -> Tensor:
    """The k nearest tiles of every tile of a bag (fewer where its slide has fewer others): 2 x E, [center, neighbor].

    Edges are ordered by tile, and for each tile from the nearest on. Coordinates in microns serve as
    well as pixels. method: for the error message.
    """
    refuse_in_export("the search for neighboring tiles")
    if bag.places is None:
        raise AsmilError(
            f"{bag.id}: {method} needs the coordinates of the tiles to find their neighbors; "
            "store them in the feature file as dataset 'coords' (N x 2)"
        )
    coords = bag.places.cpu().double().numpy()
    slides = np.zeros(len(bag), np.int64) if bag.slide_index is None else bag.slide_index.cpu().numpy()
    parts = []
    for slide in np.unique(slides):
        tiles = np.flatnonzero(slides == slide)
        near = nearest(coords[tiles], k)
        parts.append(np.stack([np.repeat(tiles, near.shape[1]), tiles[near.ravel()]]))
    edges = np.concatenate(parts, axis=1)
    return torch.from_numpy(edges[:, np.argsort(edges[0], kind="stable")]).to(bag.features.device)


def given_edges(bag: Bag) -> Tensor | None:
    """The edges that a bag brings itself, `extras["edges"]` (2 x E, [center, neighbor]), or None."""
    edges = bag.extras.get("edges")
    if edges is None:
        return None
    edges = torch.as_tensor(edges, dtype=torch.int64)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise AsmilError(f"{bag.id}: edges have shape {tuple(edges.shape)}; they must be 2 x E (centers, neighbors)")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < len(bag):
        raise AsmilError(
            f"{bag.id}: edges name tiles {int(edges.min())} to {int(edges.max())}, but the bag has tiles 0 to "
            f"{len(bag) - 1}; list the edges of these tiles, or none"
        )
    return edges


def nearest(coords: Floats, k: int) -> Integers:
    """The k nearest others of each of n points, by (distance, index): n x min(k, n - 1)."""
    # Here, because it takes a while and most methods do without.
    from scipy.spatial import cKDTree

    n_tiles = len(coords)
    k = min(k, n_tiles - 1)
    found = np.empty((n_tiles, k), np.int64)
    if k == 0:
        return found
    places, place_of = np.unique(coords, axis=0, return_inverse=True)
    residents = _residents(place_of.reshape(-1), k + 1)
    tree = cKDTree(places)
    ask, open_ = k + 1 + _RESERVE, np.arange(n_tiles)
    while len(open_):
        ask = min(ask, len(places))
        here = coords[open_]
        near = tree.query(here, k=np.arange(1, ask + 1))[1]
        squared = ((places[near] - here[:, None]) ** 2).sum(axis=-1)
        chosen, reach = _first(residents[near], squared, open_, k)
        # All that is nearer than the farthest place in the answer is in the answer.
        settled = (reach < squared.max(axis=1)) | (ask == len(places))
        found[open_[settled]] = chosen[settled]
        open_, ask = open_[~settled], 2 * ask
    return found


def _residents(place_of: Integers, at_most: int) -> Integers:
    """The tiles at every place, the lowest indices first, -1 if there are no more: places x most at one place."""
    order = np.argsort(place_of, kind="stable")
    counts = np.bincount(place_of)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    residents = np.full((len(counts), min(at_most, int(counts.max()))), -1, np.int64)
    kept = rank < residents.shape[1]
    residents[place_of[order][kept], rank[kept]] = order[kept]
    return residents


def _first(tiles: Integers, squared: Floats, centers: Integers, k: int) -> tuple[Integers, Floats]:
    """The first k candidates of each row by (distance, index), and the squared distance of the last.

    tiles: rows x places x residents, -1 for none; squared: rows x places; centers: rows, never candidates themselves
    """
    distances = np.repeat(squared[..., None], tiles.shape[-1], axis=-1)
    distances[(tiles < 0) | (tiles == centers[:, None, None])] = np.inf
    distances, tiles = distances.reshape(len(centers), -1), tiles.reshape(len(centers), -1)
    order = np.lexsort((tiles, distances), axis=-1)[:, :k]
    return np.take_along_axis(tiles, order, axis=1), np.take_along_axis(distances, order, axis=1)[:, -1]
