"""The layout of a synthetic slide, on a map of about 4 microns per pixel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.tissue.contours import polygon_area, trace_regions
from asmil.slides.tissue.geojson import region_shape
from asmil.slides.tissue.regions import Mask, Polygon, Region
from asmil.synthetic.plan import generator, log_uniform
from asmil.synthetic.slides.noise import coordinates, smooth_field
from asmil.synthetic.slides.plan import SlidePlan, Stream, SyntheticSlidesConfig
from asmil.tables.arrays import Bytes, Floats32

NOMINAL_UM = 4.0


@dataclass(frozen=True)
class MapGrid:
    """Rows and columns of a map, and the side of a cell in pixels of the slide (an integer) and in microns."""

    shape: tuple[int, int]
    cell_px: int
    um: float

    @classmethod
    def over(cls, size_px: tuple[int, int], mpp: float) -> MapGrid:
        """The map of a slide: cells as close to 4 microns as integer pixels allow."""
        cell_px = max(1, round(NOMINAL_UM / mpp))
        width, height = size_px
        return cls((-(-height // cell_px), -(-width // cell_px)), cell_px, cell_px * mpp)

    def px(self, um: float) -> float:
        """A length in cells."""
        return um / self.um

    def area_mm2(self, mask: Mask) -> float:
        return float(mask.sum()) * (self.um / 1000) ** 2

    def noise(self, rng: np.random.Generator, scale_um: float) -> Floats32:
        """Noise of about unit variance that changes over `scale_um`."""
        return smooth_field(rng, self.shape, max(1.0, self.px(scale_um)))

    def to_border(self) -> Floats32:
        """Cells to the nearest border of the map."""
        x, y = coordinates(self.shape)
        return np.minimum(np.minimum(x, self.shape[1] - 1 - x), np.minimum(y, self.shape[0] - 1 - y))

    def enlarged(self, field: NDArray[Any], left: int, top: int, width: int, height: int) -> NDArray[Any]:
        """A window of a map, interpolated at the pixels of the slide; the map's border is repeated beyond it.

        A crop is upsampled by an integer factor: much faster than a general warp, and without seams between windows.
        """
        cell = self.cell_px
        rows, columns = self.shape
        first_row, first_column = top // cell - 1, left // cell - 1
        last_row, last_column = -(-(top + height) // cell) + 1, -(-(left + width) // cell) + 1
        crop = field[max(first_row, 0) : min(last_row, rows), max(first_column, 0) : min(last_column, columns)]
        beyond = (max(-first_row, 0), max(last_row - rows, 0), max(-first_column, 0), max(last_column - columns, 0))
        if any(beyond):
            crop = cv2.copyMakeBorder(crop, *beyond, cv2.BORDER_REPLICATE)
        size = (crop.shape[1] * cell, crop.shape[0] * cell)
        larger = cv2.resize(crop, size, interpolation=cv2.INTER_LINEAR)
        row, column = top - first_row * cell, left - first_column * cell
        return np.asarray(larger[row : row + height, column : column + width])

    def signed_distance(self, mask: Mask) -> Bytes:
        """128 + microns to the border of a mask, positive inside, clipped to 1 ... 255."""
        binary = mask.astype(np.uint8)
        inside, outside = (cv2.distanceTransform(side, cv2.DIST_L2, 3) for side in (binary, 1 - binary))
        far = np.float32(256 / self.um)
        distance_um = cv2.GaussianBlur(np.clip(inside - outside, -far, far) * np.float32(self.um), (0, 0), 1.0)
        return np.asarray(np.clip(np.rint(128 + distance_um), 1, 255), dtype=np.uint8)


def raise_blob(
    rng: np.random.Generator, field: Floats32, center: tuple[float, float], radii: tuple[float, float]
) -> None:
    """Raise the field to 1 at the center, falling to 0 on a randomly rotated ellipse, and to -1 beyond it."""
    reach = 2 * max(radii)
    left, top = (max(0, int(middle - reach)) for middle in center)
    window = field[top : int(center[1] + reach) + 1, left : int(center[0] + reach) + 1]
    x, y = coordinates((window.shape[0], window.shape[1]))
    angle = rng.uniform(0, np.pi)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    dx, dy = x + np.float32(left - center[0]), y + np.float32(top - center[1])
    along, across = (dx * cos + dy * sin) / np.float32(radii[0]), (dy * cos - dx * sin) / np.float32(radii[1])
    np.maximum(window, 1 - np.sqrt(along**2 + across**2), out=window)


def points_in(rng: np.random.Generator, mask: Mask, count: int) -> list[tuple[int, int]]:
    """Random cells of a mask, as (x, y); none if it is empty."""
    cells = np.flatnonzero(mask)
    if not len(cells) or not count:
        return []
    return [(int(cell % mask.shape[1]), int(cell // mask.shape[1])) for cell in rng.choice(cells, count)]


SIDE_MULTIPLE_PX = 16
"""Sides are multiples of this, so that the levels of the pyramid align exactly."""
SMALLEST_FOCUS_MM, LARGEST_FOCUS_MM = 0.15, 1.3
MICRO_FOCUS_MM = 0.3
SMALLEST_FOCUS_UM2 = 2500.0
FINER = 2
"""Outlines are traced on a map this many times finer than the layout."""
SMALLEST_HOLE_UM2 = 2500.0


@dataclass(frozen=True)
class Layout:
    """The map of a slide.

    fiber_along, fiber_across: coordinates in microns; the second is constant along a fiber of the stroma
    nests: where the cells of the tumor are; between them is stroma
    """

    grid: MapGrid
    size_px: tuple[int, int]
    mpp: float
    tissue: Mask
    glands: Mask
    fat: Mask
    lymphoid: Mask
    tumor: Mask
    nests: Mask
    fiber_along: Floats32
    fiber_across: Floats32

    @property
    def size_um(self) -> tuple[float, float]:
        """(width, height) of the slide."""
        return self.size_px[0] * self.mpp, self.size_px[1] * self.mpp

    def at(self, field: NDArray[Any], points_um: NDArray[np.float64]) -> NDArray[Any]:
        """Values of a map at points (N x 2, x and y in microns); the border values are used beyond the slide."""
        cells = (points_um / self.grid.um).astype(np.int64)
        rows, columns = field.shape
        return np.asarray(field[np.clip(cells[:, 1], 0, rows - 1), np.clip(cells[:, 0], 0, columns - 1)])


def draw_layout(config: SyntheticSlidesConfig, plan: SlidePlan) -> Layout:
    """The map of a slide; it depends on the seed, the slide's number, its label and the settings of its size."""
    rng = generator(config.seed, Stream.LAYOUT, plan.index)
    size_px = _size_px(rng, config)
    grid = MapGrid.over(size_px, config.mpp)
    tissue = _fragments(rng, grid)
    tissue &= ~_holes_and_tears(rng, grid, tissue)
    glands = _highest(grid.noise(rng, 350), tissue, rng.uniform(0.25, 0.65))
    fat = _highest(grid.noise(rng, 400), tissue, rng.uniform(0.0, 0.25)) & ~glands
    lymphoid = _lymphoid(rng, grid, tissue)
    tumor = _tumor(rng, grid, tissue, config.micro) if plan.has_tumor else np.zeros_like(tissue)
    nests = _nests(rng, grid, tumor)
    along, across = _fibers(rng, grid)
    return Layout(
        grid=grid,
        size_px=size_px,
        mpp=config.mpp,
        tissue=tissue,
        glands=glands & ~tumor & ~lymphoid,
        fat=fat & ~tumor & ~lymphoid,
        lymphoid=lymphoid & ~tumor,
        tumor=tumor,
        nests=nests,
        fiber_along=along,
        fiber_across=across,
    )


def _size_px(rng: np.random.Generator, config: SyntheticSlidesConfig) -> tuple[int, int]:
    sides_mm = rng.uniform(config.side_mm_min, config.side_mm_max, 2)
    step_um = SIDE_MULTIPLE_PX * config.mpp
    width, height = (max(1, round(side * 1000 / step_um)) * SIDE_MULTIPLE_PX for side in sides_mm)
    return width, height


def _fragments(rng: np.random.Generator, grid: MapGrid) -> Mask:
    """One to four pieces with uneven outlines, clear of the border."""
    columns, rows = [(1, 1), (2, 1), (1, 2), (2, 2)][rng.choice(4, p=[0.45, 0.2, 0.2, 0.15])]
    height, width = grid.shape[0] / rows, grid.shape[1] / columns
    field = np.full(grid.shape, -1, dtype=np.float32)
    left_out = int(rng.integers(4)) if rows * columns == 4 else -1
    for number in range(rows * columns):
        if number == left_out:
            continue
        row, column = divmod(number, columns)
        center = ((column + rng.uniform(0.46, 0.54)) * width, (row + rng.uniform(0.46, 0.54)) * height)
        smaller = min(height, width)
        raise_blob(rng, field, center, (smaller * rng.uniform(0.48, 0.64), smaller * rng.uniform(0.44, 0.54)))
    side_um = min(grid.shape) * grid.um
    field += 0.16 * grid.noise(rng, side_um / 5) + 0.05 * grid.noise(rng, side_um / 18)
    uneven = 0.03 * grid.noise(rng, side_um / 4) + 0.008 * grid.noise(rng, side_um / 25)
    to_border = grid.to_border() / min(grid.shape)
    return np.asarray((field > 0) & (to_border > np.maximum(0.05 + uneven, 0.01)))


def _holes_and_tears(rng: np.random.Generator, grid: MapGrid, tissue: Mask) -> Mask:
    """Places where tissue is missing: rounded holes and thin cracks."""
    missing = np.zeros(grid.shape, dtype=np.uint8)
    tissue_mm2 = grid.area_mm2(tissue)
    for x, y in points_in(rng, tissue, rng.poisson(0.5 * tissue_mm2)):
        axes = (int(grid.px(rng.uniform(25, 130))), int(grid.px(rng.uniform(20, 90))))
        cv2.ellipse(missing, (x, y), axes, rng.uniform(0, 180), 0, 360, 1, -1)
    for x, y in points_in(rng, tissue, rng.poisson(0.4 * tissue_mm2)):
        heading = rng.normal(0, 0.35, 12).cumsum() + rng.uniform(0, 2 * np.pi)
        step = grid.px(rng.uniform(15, 60))
        path = np.array([x, y]) + np.cumsum(np.stack([np.cos(heading), np.sin(heading)], axis=1) * step, axis=0)
        cv2.polylines(missing, [path.astype(np.int32)], False, 1, int(rng.integers(1, 6)))
    ragged = cv2.GaussianBlur(missing.astype(np.float32), (0, 0), grid.px(8)) + 0.12 * grid.noise(rng, 24)
    return np.asarray(ragged > 0.45)


def _highest(field: Floats32, tissue: Mask, share: float) -> Mask:
    """The share of the tissue where the field is highest."""
    values = field[tissue]
    if not len(values):
        return np.zeros_like(tissue)
    return np.asarray(tissue & (field > np.quantile(values, 1 - share)))


def _lymphoid(rng: np.random.Generator, grid: MapGrid, tissue: Mask) -> Mask:
    """Aggregates of lymphocytes, more on some slides than on others."""
    field = np.full(grid.shape, -1, dtype=np.float32)
    for center in points_in(rng, tissue, rng.poisson(rng.uniform(0.3, 4.0) * grid.area_mm2(tissue))):
        radius = grid.px(rng.uniform(40, 220))
        raise_blob(rng, field, center, (radius, radius * rng.uniform(0.6, 1.0)))
    return np.asarray(tissue & (field + 0.25 * grid.noise(rng, 60) > 0))


def _tumor(rng: np.random.Generator, grid: MapGrid, tissue: Mask, micro: float) -> Mask:
    """Foci of several sizes, at least one; the larger, the deeper in the tissue."""
    if rng.random() < micro:
        diameters_mm = rng.uniform(SMALLEST_FOCUS_MM, MICRO_FOCUS_MM, int(rng.integers(1, 4)))
    else:
        main = log_uniform(rng, 0.4, LARGEST_FOCUS_MM, 1)
        diameters_mm = np.append(main, log_uniform(rng, SMALLEST_FOCUS_MM, 0.5, rng.poisson(1.5)))
    depth = cv2.distanceTransform(tissue.astype(np.uint8), cv2.DIST_L2, 3)
    field = np.full(grid.shape, -1, dtype=np.float32)
    for diameter_mm in diameters_mm:
        radius = grid.px(diameter_mm * 500)
        deep_enough = depth >= min(0.6 * radius, 0.8 * float(depth.max()))
        for center in points_in(rng, deep_enough, 1):
            raise_blob(rng, field, center, (radius * rng.uniform(1.0, 1.3), radius * rng.uniform(0.75, 1.0)))
    uneven = 0.18 * grid.noise(rng, 120) + 0.10 * grid.noise(rng, 35)
    return _without_crumbs(grid, tissue & (field + np.where(field > -0.4, uneven, 0) > 0))


def _nests(rng: np.random.Generator, grid: MapGrid, tumor: Mask) -> Mask:
    """Where the cells of a tumor are: in nests, or everywhere in foci that nests would leave half empty."""
    nests = tumor & (grid.noise(rng, rng.uniform(40, 90)) > rng.uniform(-1.6, -0.3))
    count, pieces = cv2.connectedComponents(tumor.astype(np.uint8))
    filled = np.bincount(pieces[nests], minlength=count) / np.bincount(pieces.ravel(), minlength=count)
    solid = filled < 0.5
    solid[0] = False
    return np.asarray(nests | solid[pieces])


def _without_crumbs(grid: MapGrid, mask: Mask) -> Mask:
    """The pieces of at least the minimum size; the largest piece is always kept."""
    _, pieces, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    areas_um2 = stats[:, cv2.CC_STAT_AREA] * grid.um**2
    areas_um2[0] = 0
    large = areas_um2 >= min(SMALLEST_FOCUS_UM2, areas_um2.max())
    large[0] = False
    return np.asarray(large[pieces])


def _fibers(rng: np.random.Generator, grid: MapGrid) -> tuple[Floats32, Floats32]:
    """Straight coordinates along and across, the second bent by noise."""
    x, y = coordinates(grid.shape)
    angle = rng.uniform(0, np.pi)
    cos, sin = np.float32(np.cos(angle) * grid.um), np.float32(np.sin(angle) * grid.um)
    bend = 110 * grid.noise(rng, 450) + 25 * grid.noise(rng, 130)
    return np.asarray(x * cos + y * sin), np.asarray(y * cos - x * sin + bend)


@dataclass(frozen=True)
class SlideTruth:
    """Areas of a slide, and the outlines of its tumor in level-0 pixels."""

    tissue_mm2: float
    tumor_mm2: float
    regions: tuple[Region, ...]


def slide_truth(layout: Layout) -> SlideTruth:
    """The truth of a layout."""
    return SlideTruth(layout.grid.area_mm2(layout.tissue), layout.grid.area_mm2(layout.tumor), _tumor_regions(layout))


def _tumor_regions(layout: Layout) -> tuple[Region, ...]:
    if not layout.tumor.any():
        return ()
    rows, columns = layout.tumor.shape
    size = (columns * FINER, rows * FINER)
    finer = cv2.resize(layout.grid.signed_distance(layout.tumor), size, interpolation=cv2.INTER_LINEAR)
    regions: list[Region] = []
    for region in trace_regions((finer > 128).astype(np.uint8), cv2.CHAIN_APPROX_SIMPLE):
        areas_um2 = [polygon_area(hole) * (layout.grid.um / FINER) ** 2 for hole in region.holes]
        large = [hole for hole, um2 in zip(region.holes, areas_um2, strict=True) if um2 >= SMALLEST_HOLE_UM2]
        outline, *holes = (_to_level_0(polygon, layout) for polygon in (region.outline, *large))
        regions += _valid_regions(Region(outline, tuple(holes)))
    return tuple(regions)


def _valid_regions(region: Region) -> Iterator[Region]:
    """The region, or its parts if its outline touches itself, which other tools reject."""
    shape = region_shape(region)
    for part in getattr(shape, "geoms", [shape] if shape is not None else []):
        outline, *holes = (np.rint(ring.coords[:-1]).astype(np.int32) for ring in (part.exterior, *part.interiors))
        yield Region(outline, tuple(holes))


def _to_level_0(polygon: Polygon, layout: Layout) -> Polygon:
    return np.rint((polygon + 0.5) * layout.grid.cell_px / FINER).astype(np.int32)
