"""CLAM's tiles: a grid from the corner of each outline's bounding box, the check of each tile, and CLAM's file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from asmil.files import replacing
from asmil.slides.image import SlideImage
from asmil.slides.polygon_grid import PointGrid, locate_points
from asmil.slides.settings import ContourCheck
from asmil.slides.tissue.regions import Polygon, Tissue
from asmil.tables.arrays import Booleans, Integers


def clam_coordinates(
    tissue: Tissue,
    size: tuple[int, int],
    side: tuple[int, int],
    step: tuple[int, int],
    check: ContourCheck = "four_pt",
    padding: bool = True,
) -> Integers:
    """The upper left corners of the tiles, N x 2, region by region, x outer and y inner.

    size: size of the slide; side and step: of the grid; all (x, y), in level-0 pixels
    padding: whether tiles may extend beyond the slide

    Tiles of different regions may overlap. The checked points are those of a square of side[0], as in CLAM.
    """
    tiles = [np.zeros((0, 2), dtype=np.int64)]
    for region in tissue.regions:
        corner = region.outline.min(axis=0).astype(np.int64)
        stop = region.outline.max(axis=0).astype(np.int64) + 1
        if not padding:
            stop = np.minimum(stop, np.asarray(size) - side + 1)
        columns, rows = (max(0, -int((corner[axis] - stop[axis]) // step[axis])) for axis in (0, 1))
        grid = PointGrid(int(corner[0]), int(corner[1]), *step, columns, rows)
        kept = _touches(region.outline, grid, side[0], check)
        for hole in region.holes:
            kept &= ~_center_inside(hole, grid, side[0])
        tiles.append(np.asarray(np.argwhere(kept) * step + corner, dtype=np.int64))
    return np.concatenate(tiles)


def _touches(outline: Polygon, grid: PointGrid, side: int, check: ContourCheck) -> Booleans:
    """Columns x rows: whether any (four_pt) or all of a tile's points are inside the outline or on it."""
    half = side // 2
    reach = int(half * 0.5)
    near, far = half - reach, half + reach
    if check == "basic":
        offsets = [(0, 0)]
    elif check == "center" or reach == 0:
        offsets = [(half, half)]
    else:
        offsets = [(near, near), (far, far), (far, near), (near, far)]
    tests = []
    for x, y in offsets:
        points = PointGrid(grid.x0 + x, grid.y0 + y, grid.step_x, grid.step_y, grid.columns, grid.rows)
        located = locate_points(outline, points)
        tests.append(located.inside | located.boundary)
    combine = np.logical_or if check == "four_pt" else np.logical_and
    return np.asarray(combine.reduce(tests), dtype=np.bool_)


def _center_inside(hole: Polygon, grid: PointGrid, side: int) -> Booleans:
    """Columns x rows: whether a tile's center is strictly inside a hole; in half pixels, for odd tile sides."""
    doubled = PointGrid(
        2 * grid.x0 + side, 2 * grid.y0 + side, 2 * grid.step_x, 2 * grid.step_y, grid.columns, grid.rows
    )
    return locate_points(2 * hole.astype(np.int64), doubled).inside


def clam_attributes(image: SlideImage, patch_level: int, patch_px: int) -> dict[str, object]:
    """The attributes that CLAM writes with the corners: tiles of patch_px pixels of a level."""
    downsample = image.level_downsamples[patch_level]
    reduced = tuple(int(length / factor) for length, factor in zip(image.size, downsample, strict=True))
    return {
        "patch_size": patch_px,
        "patch_level": patch_level,
        "downsample": downsample,
        "downsampled_level_dim": reduced,
        "level_dim": image.level_sizes[patch_level],
        "name": image.name,
    }


def write_clam_coords(
    path: Path | str, image: SlideImage, coords: Integers, patch_level: int, patch_px: int
) -> Path | None:
    """Write the corners of a slide's tiles as CLAM does; if there are no tiles, write nothing and return None."""
    if len(coords) == 0:
        return None
    path = Path(path)
    attributes = clam_attributes(image, patch_level, patch_px) | {"save_path": str(path.parent)}
    with replacing(path) as partial, h5py.File(partial, "w") as file:
        corners = file.create_dataset("coords", data=coords.astype(np.int64))
        corners.attrs.update(attributes)
    return path
