"""The geometry of a synthetic slide: the outline of the tissue, its kinds, and lesion foci.

Positions are (column, row) on the grid of tiles. All functions draw from the given generator.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from asmil.tables.arrays import Floats, Integers

MARGIN_TILES = 4
TILES_PER_PATCH = 20
SCATTERED_TILES = 0.1
SMALLEST_FRAGMENT = 40
FOCUS_MEDIAN_TILES = 8.0
FOCUS_LOG_SD = 1.0


def draw_tissue(rng: np.random.Generator, n_tiles: int) -> Integers:
    """n_tiles x 2 positions of one to four fragments side by side, sorted by row, then column."""
    n_fragments = min(1 + int(rng.binomial(3, 0.5)), max(1, n_tiles // SMALLEST_FRAGMENT))
    sizes = _split_evenly_at_random(rng, n_tiles, n_fragments)
    fragments = [_draw_fragment(rng, size) for size in sizes]
    tallest = max(int(fragment[:, 1].max()) for fragment in fragments)
    placed, column = [], MARGIN_TILES
    for fragment in fragments:
        slack = tallest - int(fragment[:, 1].max())
        placed.append(fragment + np.array([column, MARGIN_TILES + int(rng.integers(slack + 1))]))
        column += int(fragment[:, 0].max()) + 1 + int(rng.integers(2, 7))
    positions = np.concatenate(placed)
    return np.asarray(positions[np.lexsort((positions[:, 0], positions[:, 1]))])


def draw_patches(rng: np.random.Generator, positions: Integers, composition: Floats) -> Integers:
    """N kinds of tissue in coherent patches; `composition` is the share of every kind.

    Patches are the cells nearest to random seed tiles. A tenth of the tiles is drawn independently instead, like
    vessels, lymphocytes or glands scattered in other tissue.
    """
    n_tiles = len(positions)
    n_patches = max(3, n_tiles // TILES_PER_PATCH)
    seeds = positions[rng.integers(n_tiles, size=n_patches)]
    kinds = rng.choice(len(composition), size=n_patches, p=composition)
    jittered = positions + rng.normal(0, 0.7, size=positions.shape)
    distance = np.square(jittered[:, None, :] - seeds[None, :, :]).sum(-1)
    patch_kind = kinds[distance.argmin(axis=1)]
    scattered = rng.random(n_tiles) < SCATTERED_TILES
    alone = rng.choice(len(composition), size=n_tiles, p=composition)
    return np.asarray(np.where(scattered, alone, patch_kind))


def draw_foci(rng: np.random.Generator, positions: Integers, n_lesion: int) -> Integers:
    """The focus of each of N tiles: 0 for none, 1, 2, ...; exactly `n_lesion` tiles are in foci.

    Sizes are log-normal. A focus grows from a random tile over edge neighbors, nearest first, and keeps a
    gap of one tile to the others; if there is no room for a gap, it may touch them.
    """
    tile_at = {(int(column), int(row)): tile for tile, (column, row) in enumerate(positions)}
    focus_of = np.zeros(len(positions), dtype=np.int64)
    open_tiles = np.ones(len(positions), dtype=bool)
    left, focus = n_lesion, 0
    while left > 0:
        if not open_tiles.any():
            open_tiles = focus_of == 0
        focus += 1
        size = min(left, max(1, round(float(rng.lognormal(np.log(FOCUS_MEDIAN_TILES), FOCUS_LOG_SD)))))
        start = int(rng.choice(np.flatnonzero(open_tiles)))
        grown = _grow(rng, tile_at, positions, open_tiles, start, size)
        focus_of[grown] = focus
        for tile in grown:
            open_tiles[[*_neighbors(tile_at, positions[tile], reach=1), tile]] = False
        left -= len(grown)
    return focus_of


def _split_evenly_at_random(rng: np.random.Generator, total: int, parts: int) -> Integers:
    shares = rng.dirichlet(np.full(parts, 4.0))
    sizes = np.maximum(1, np.floor(shares * total).astype(np.int64))
    sizes[sizes.argmax()] += total - sizes.sum()
    return sizes


def _draw_fragment(rng: np.random.Generator, size: int) -> Integers:
    """size x 2 positions of an elongated blob with a wavy outline, its corner at (0, 0).

    A tile at polar coordinates (r, theta) of a stretched, rotated plane has the level r / outline(theta), outline =
    1 + sum_k a_k cos(k theta + phase_k); the tiles with the `size` lowest levels are the fragment.
    """
    stretch = rng.uniform(1.0, 2.2)
    half = int(np.ceil(1.5 * np.sqrt(size * stretch))) + 2
    row, column = np.mgrid[-half : half + 1, -half : half + 1]
    turn = rng.uniform(0, np.pi)
    along = (np.cos(turn) * column + np.sin(turn) * row) / stretch
    across = -np.sin(turn) * column + np.cos(turn) * row
    angle = np.arctan2(across, along)
    outline = np.ones_like(angle)
    for wave in range(2, 8):
        outline += rng.normal(0, 0.35 / wave) * np.cos(wave * angle + rng.uniform(0, 2 * np.pi))
    level = np.hypot(along, across) / np.maximum(outline, 0.3)
    inside = np.argsort(level, axis=None, kind="stable")[:size]
    positions = np.stack([column.ravel()[inside], row.ravel()[inside]], axis=1)
    return np.asarray(positions - positions.min(axis=0))


def _grow(
    rng: np.random.Generator,
    tile_at: dict[tuple[int, int], int],
    positions: Integers,
    open_tiles: npt.NDArray[np.bool_],
    start: int,
    size: int,
) -> list[int]:
    grown: list[int] = []
    seen = {start}
    frontier = [(0.0, start)]
    while frontier and len(grown) < size:
        _, tile = heapq.heappop(frontier)
        grown.append(tile)
        for near in _neighbors(tile_at, positions[tile], reach=0):
            if near not in seen and open_tiles[near]:
                seen.add(near)
                distance = float(np.hypot(*(positions[near] - positions[start])))
                heapq.heappush(frontier, (distance * rng.uniform(0.7, 1.3), near))
    return grown


def _neighbors(tile_at: dict[tuple[int, int], int], position: Integers, reach: int) -> Iterator[int]:
    """Tiles that share an edge (reach 0), or an edge or corner (reach 1), with a position."""
    column, row = int(position[0]), int(position[1])
    for step_column in (-1, 0, 1):
        for step_row in (-1, 0, 1):
            steps = abs(step_column) + abs(step_row)
            tile = tile_at.get((column + step_column, row + step_row))
            if tile is not None and 1 <= steps <= 1 + reach:
                yield tile
