"""The nearest tiles of every tile, by coordinates.

Neighbors are ordered by (distance, index). A tile is excluded by its index, so that tiles at the same position are
neighbors. The result is exact at ties too: on a grid many tiles are equally far away, and which of them are included is
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
"""Candidates beyond k; on a grid this is nearly always enough to decide all ties."""


def nearest_edges(bag: Bag, k: int, method: str) -> Tensor:
    """The k nearest tiles of every tile of a bag (fewer where its slide has fewer others): 2 x E, [center, neighbor].

    Edges are ordered by tile, and for each tile from the nearest on. Coordinates may be microns or pixels.
    method: for the error message
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
    """The edges in a bag's own `extras["edges"]` (2 x E, [center, neighbor]), or None."""
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
    # Imported here because it takes a while and most methods do not need it.
    from scipy.spatial import cKDTree

    n_tiles = len(coords)
    k = min(k, n_tiles - 1)
    neighbors = np.empty((n_tiles, k), np.int64)
    if k == 0:
        return neighbors
    positions, position_of = np.unique(coords, axis=0, return_inverse=True)
    tiles_at = _tiles_by_position(position_of.reshape(-1), k + 1)
    tree = cKDTree(positions)
    asked, pending = k + 1 + _RESERVE, np.arange(n_tiles)
    while len(pending):
        asked = min(asked, len(positions))
        centers = coords[pending]
        near = tree.query(centers, k=np.arange(1, asked + 1))[1]
        squared = ((positions[near] - centers[:, None]) ** 2).sum(axis=-1)
        chosen, reach = _first(tiles_at[near], squared, pending, k)
        # The answer contains everything that is nearer than its farthest position.
        settled = (reach < squared.max(axis=1)) | (asked == len(positions))
        neighbors[pending[settled]] = chosen[settled]
        pending, asked = pending[~settled], 2 * asked
    return neighbors


def _tiles_by_position(position_of: Integers, at_most: int) -> Integers:
    """The tiles at every position, lowest indices first, filled up with -1: positions x most tiles at one position."""
    order = np.argsort(position_of, kind="stable")
    counts = np.bincount(position_of)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    tiles = np.full((len(counts), min(at_most, int(counts.max()))), -1, np.int64)
    kept = rank < tiles.shape[1]
    tiles[position_of[order][kept], rank[kept]] = order[kept]
    return tiles


def _first(tiles: Integers, squared: Floats, centers: Integers, k: int) -> tuple[Integers, Floats]:
    """The first k candidates of each row by (distance, index), and the squared distance of the last.

    tiles: rows x positions x tiles, -1 for none; squared: rows x positions; centers: rows, which are no candidates
    """
    distances = np.repeat(squared[..., None], tiles.shape[-1], axis=-1)
    distances[(tiles < 0) | (tiles == centers[:, None, None])] = np.inf
    distances, tiles = distances.reshape(len(centers), -1), tiles.reshape(len(centers), -1)
    order = np.lexsort((tiles, distances), axis=-1)[:, :k]
    return np.take_along_axis(tiles, order, axis=1), np.take_along_axis(distances, order, axis=1)[:, -1]
