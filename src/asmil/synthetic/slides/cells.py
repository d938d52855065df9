"""Placement of cells and structures: nuclei, glands, vacuoles of fat, and vessels with blood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from asmil.slides.tissue.regions import Mask
from asmil.synthetic.slides.layout import Layout
from asmil.synthetic.slides.sprites import Nucleus, choose_sprites

Points = NDArray[np.float64]
Outlines = NDArray[np.float64]
"""Shapes x points x 2, (x, y) in microns."""
CORNERS = 28
PACKED_NEIGHBORS = 10


@dataclass(frozen=True)
class Nuclei:
    """Nuclei: N centers (microns), N sprites, and N flags: outside glands and nests only."""

    centers: Points
    sprites: NDArray[np.int64]
    in_stroma: NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """The cells and structures of a slide. Lumens and vessels are openings; red cells are inside the vessels."""

    nuclei: Nuclei
    glands: Outlines
    lumens: Outlines
    vacuoles: Outlines
    vessels: Outlines
    red_cells: Points


def place_cells(rng: np.random.Generator, layout: Layout) -> Cells:
    """Fill a layout."""
    glands, lumens, gland_nuclei = _glands(rng, layout)
    vessels, red_cells, vessel_nuclei = _vessels(rng, layout)
    nuclei = _joined(
        _stroma_nuclei(rng, layout),
        gland_nuclei,
        vessel_nuclei,
        _filling(rng, layout, layout.lymphoid, Nucleus.LYMPHOCYTE, rng.uniform(7.5, 9.5), 0.35),
        _filling(rng, layout, layout.nests, Nucleus.TUMOR, rng.uniform(11.5, 15.0), 0.38),
    )
    return Cells(
        nuclei,
        glands,
        np.concatenate([lumens, _tumor_lumens(rng, layout)]),
        _vacuoles(rng, layout),
        vessels,
        red_cells,
    )


def jittered_grid(rng: np.random.Generator, size_um: tuple[float, float], spacing_um: float, jitter: float) -> Points:
    """Points of a grid with alternately shifted rows, each moved by up to jitter * spacing."""
    columns, rows = (int(side / spacing_um) + 1 for side in size_um)
    y, x = np.mgrid[0:rows, 0:columns].astype(np.float64)
    x += 0.5 * (np.arange(rows) % 2)[:, None]
    points = np.stack([x.ravel(), y.ravel()], axis=1) * spacing_um
    return np.asarray(points + rng.uniform(-jitter, jitter, points.shape) * spacing_um)


def _outlines(rng: np.random.Generator, centers: Points, radii: Points, roughness: float) -> Outlines:
    """Uneven ellipses: centers and half axes are N x 2."""
    count = len(centers)
    angle = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)[None]
    radius = np.ones((count, CORNERS))
    for wave in (2, 3, 4, 5):
        phase = rng.uniform(0, 2 * np.pi, (count, 1))
        radius += roughness / np.sqrt(wave) * rng.normal(size=(count, 1)) * np.cos(wave * angle + phase)
    turn = rng.uniform(0, np.pi, (count, 1))
    along, across = radii[:, :1] * radius * np.cos(angle), radii[:, 1:] * radius * np.sin(angle)
    x, y = along * np.cos(turn) - across * np.sin(turn), along * np.sin(turn) + across * np.cos(turn)
    return np.stack([x, y], axis=2) + centers[:, None]


def _along(outlines: Outlines, spacing_um: float) -> tuple[Points, NDArray[np.float64]]:
    """Points along closed outlines, about `spacing_um` apart, and the angle of the outline there."""
    points, angles = [np.zeros((0, 2))], [np.zeros(0)]
    for outline in outlines:
        closed = np.concatenate([outline, outline[:1]])
        steps = np.diff(closed, axis=0)
        length = np.concatenate([[0], np.hypot(*steps.T).cumsum()])
        distances = np.arange(0, length[-1], spacing_um)
        points.append(np.stack([np.interp(distances, length, closed[:, axis]) for axis in (0, 1)], axis=1))
        edge = np.clip(np.searchsorted(length, distances, side="right") - 1, 0, len(steps) - 1)
        angles.append(np.arctan2(steps[edge, 1], steps[edge, 0]))
    return np.concatenate(points), np.concatenate(angles)


def _packed(rng: np.random.Generator, centers: Points, wall_um: float) -> Outlines:
    """Cells that fill the plane except for walls between them: Voronoi cells with rounded corners.

    Along a direction u a cell ends at the minimum of |d|^2 / (2 d.u), where d is the vector to a neighbor; a soft
    minimum rounds the corners.
    """
    _, near = cKDTree(centers).query(centers, k=PACKED_NEIGHBORS + 1)
    ways = centers[near[:, 1:]] - centers[:, None]
    angle = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    directions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    closeness = np.clip(2 * ways @ directions.T / np.square(ways).sum(axis=2)[..., None], 0, None)
    radius = 1 / np.power(np.power(closeness, 8).sum(axis=1), 1 / 8).clip(1e-3)
    radius = np.clip(radius - wall_um / 2, 3, 1.6 * np.median(radius))
    radius *= 1 + 0.03 * rng.standard_normal(radius.shape)
    return np.asarray(centers[:, None] + radius[..., None] * directions)


def _glands(rng: np.random.Generator, layout: Layout) -> tuple[Outlines, Outlines, Nuclei]:
    """Rings of epithelium around a lumen: tall, radially oriented cells with the nucleus at the base."""
    spacing_um = rng.uniform(80, 130)
    centers = jittered_grid(rng, layout.size_um, spacing_um, 0.3)
    outer = _packed(rng, centers, rng.uniform(10, 45))
    kept = layout.at(layout.glands, centers) & (rng.random(len(centers)) < 0.93)
    centers, outer = centers[kept], outer[kept]
    height_um = rng.uniform(13, 24) * rng.uniform(0.8, 1.2, (len(centers), 1, 1))
    from_center = outer - centers[:, None]
    distance = np.linalg.norm(from_center, axis=2, keepdims=True)
    lumens = centers[:, None] + from_center * np.clip(1 - height_um / distance, 0.06, None)
    basal = centers[:, None] + from_center * np.clip(1 - 0.36 * height_um / distance, 0.3, None)
    nuclei, angles = _along(basal, rng.uniform(5.5, 7.5))
    nuclei = nuclei + rng.normal(0, 1.2, nuclei.shape)
    return outer, lumens, _nuclei(rng, layout, Nucleus.EPITHELIAL, nuclei, angles + np.pi / 2, in_stroma=False)


def _vessels(rng: np.random.Generator, layout: Layout) -> tuple[Outlines, Points, Nuclei]:
    """Small vessels in the stroma: a ring of flat nuclei, an opening, red cells in it."""
    centers = jittered_grid(rng, layout.size_um, 260, 0.45)
    free = layout.tissue & ~layout.glands & ~layout.fat & ~layout.tumor
    centers = centers[layout.at(free, centers) & (rng.random(len(centers)) < 0.6)]
    radii = rng.uniform(7, 26, (len(centers), 1)) * rng.uniform([0.8, 0.5], [1.2, 0.9], (len(centers), 2))
    outlines = _outlines(rng, centers, radii, 0.06)
    red = centers[:, None] + jittered_grid(rng, (52, 52), 7.5, 0.3)[None] - 26
    inside = np.linalg.norm(red - centers[:, None], axis=2) < radii.min(axis=1, keepdims=True) - 3.5
    nuclei, angles = _along(outlines, 11.0)
    return outlines, red[inside], _nuclei(rng, layout, Nucleus.SPINDLE, nuclei, angles, in_stroma=False)


def _vacuoles(rng: np.random.Generator, layout: Layout) -> Outlines:
    """Fat cells, packed so that thin walls are left."""
    centers = jittered_grid(rng, layout.size_um, rng.uniform(50, 75), 0.33)
    outlines = _packed(rng, centers, rng.uniform(3.0, 6.0))
    return np.asarray(outlines[layout.at(layout.fat, centers)])


def _tumor_lumens(rng: np.random.Generator, layout: Layout) -> Outlines:
    """Small irregular openings in the nests, many on some slides and none on others."""
    centers = jittered_grid(rng, layout.size_um, 65, 0.4)
    chosen = rng.random(len(centers)) < rng.uniform(-0.3, 0.6)
    centers = centers[layout.at(layout.nests, centers) & chosen]
    return _outlines(rng, centers, rng.uniform(4, 20, (len(centers), 2)), 0.2)


def _stroma_nuclei(rng: np.random.Generator, layout: Layout) -> Nuclei:
    """Spindle nuclei along the fibers, and single lymphocytes."""
    spindle = jittered_grid(rng, layout.size_um, rng.uniform(19, 30), 0.45)
    spindle = spindle[layout.at(layout.tissue, spindle)]
    gradient_y, gradient_x = np.gradient(layout.fiber_across)
    angles = layout.at(np.arctan2(gradient_x, -gradient_y), spindle).astype(np.float64)
    single = jittered_grid(rng, layout.size_um, rng.uniform(40, 90), 0.5)
    single = single[layout.at(layout.tissue, single)]
    return _joined(
        _nuclei(rng, layout, Nucleus.SPINDLE, spindle, angles, in_stroma=True),
        _nuclei(rng, layout, Nucleus.LYMPHOCYTE, single, None, in_stroma=True),
    )


def _filling(
    rng: np.random.Generator, layout: Layout, mask: Mask, kind: Nucleus, spacing_um: float, jitter: float
) -> Nuclei:
    """Nuclei all over a mask."""
    centers = jittered_grid(rng, layout.size_um, spacing_um, jitter)
    return _nuclei(rng, layout, kind, centers[layout.at(mask, centers)], None, in_stroma=False)


def _nuclei(
    rng: np.random.Generator,
    layout: Layout,
    kind: Nucleus,
    centers: Points,
    angles: NDArray[np.float64] | None,
    in_stroma: bool,
) -> Nuclei:
    sprites = choose_sprites(rng, kind, angles, len(centers))
    kept = layout.at(layout.tissue, centers)
    return Nuclei(centers[kept], sprites[kept], np.full(int(kept.sum()), in_stroma))


def _joined(*parts: Nuclei) -> Nuclei:
    return Nuclei(
        np.concatenate([part.centers for part in parts]),
        np.concatenate([part.sprites for part in parts]),
        np.concatenate([part.in_stroma for part in parts]),
    )
