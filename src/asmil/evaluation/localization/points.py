"""Convert tile scores to detections. MIL papers do not define this step, but FROC depends on it.

`nms` repeatedly selects the best tile and suppresses its neighborhood; `components` makes one detection of each group
of neighboring tiles; `tiles` makes every tile a detection, so a large wrong region costs hundreds of false positives.
FROC values are comparable only under the same conversion.

Neighbors are found on a grid: column round((x - smallest x) / step), rows likewise, half up. Tiles between grid cells
go to the nearest one; if several tiles share a cell, the best one represents them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.localization.lesions import EIGHT_CONNECTED
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import corners_of, numbers_of, one_per_tile

Cells = npt.NDArray[np.intp]
Conversion = Literal["nms", "tiles", "components"]
CONVERSIONS: tuple[Conversion, ...] = ("nms", "tiles", "components")


def points_from_tiles(
    coords: npt.ArrayLike,
    scores: npt.ArrayLike,
    tile_px_level0: float,
    conversion: Conversion = "nms",
    threshold: float = 0.5,
    radius: int = 3,
    step_px_level0: float | None = None,
) -> Floats:
    """n x 3 detections (score, x, y) at the centers of tiles whose upper left corners are `coords`, N x 2.

    nms: tiles with a score above `threshold`, highest first (ties: smallest x, then smallest y); each one
        suppresses the grid cells [x - radius, x + radius) by [y - radius, y + radius). Highest score first.
    components: the best tile of every 8-connected group of tiles with a score of at least `threshold`, highest first.
    tiles: every tile with a score of at least `threshold`, in the order of the tiles.
    A score of 0 or less is never a detection. `step_px_level0` is the step of the grid if tiles overlap or have gaps;
    by default it is the side of a tile.
    """
    coords, scores = corners_of(coords), numbers_of("scores", scores).reshape(-1)
    one_per_tile(coords, scores, "scores")
    step = tile_px_level0 if step_px_level0 is None else step_px_level0
    if not (tile_px_level0 > 0 and step > 0):
        raise AsmilError(f"the side and the step of tiles must be above 0 px, not {tile_px_level0:g} and {step:g}")
    if conversion not in CONVERSIONS:
        raise AsmilError(f"there is no conversion {conversion!r}; {did_you_mean(conversion, CONVERSIONS)}")
    if conversion == "nms" and radius < 1:
        raise AsmilError(f"the radius of nms must be at least 1 tile, not {radius}")
    kept = np.flatnonzero((scores > threshold if conversion == "nms" else scores >= threshold) & (scores > 0))
    if conversion != "tiles" and kept.size:
        cell = _cells(coords, step)[kept]
        order = np.lexsort((cell[:, 1], cell[:, 0], -scores[kept]))
        cell = cell[order] - cell.min(axis=0)
        chosen = _unsuppressed(cell, int(radius)) if conversion == "nms" else _first_of_groups(cell)
        kept = kept[order[chosen]]
    return np.column_stack([scores[kept], coords[kept] + tile_px_level0 / 2])


def _cells(coords: Floats, step: float) -> Cells:
    return np.asarray(np.floor((coords - coords.min(axis=0)) / step + 0.5), dtype=np.intp)


def _unsuppressed(cell: Cells, radius: int) -> Cells:
    """Indices of the cells, in order, that are not in the window of a cell selected before."""
    suppressed = np.zeros(cell.max(axis=0) + 1, dtype=bool)
    chosen = []
    for number, (x, y) in enumerate(cell.tolist()):
        if not suppressed[x, y]:
            chosen.append(number)
            suppressed[max(x - radius, 0) : x + radius, max(y - radius, 0) : y + radius] = True
    return np.array(chosen, dtype=np.intp)


def _first_of_groups(cell: Cells) -> Cells:
    """The first cell of every 8-connected group, in order."""
    grid = np.zeros(cell.max(axis=0) + 1, dtype=bool)
    grid[cell[:, 0], cell[:, 1]] = True
    groups = np.zeros(grid.shape, dtype=np.int32)
    ndimage.label(grid, structure=EIGHT_CONNECTED, output=groups)
    return np.sort(np.unique(groups[cell[:, 0], cell[:, 1]], return_index=True)[1])
