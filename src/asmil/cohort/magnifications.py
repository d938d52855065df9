"""Several magnifications of one slide, joined by coordinates: every tile gets the features of its parents.

The parent of a tile at a lower magnification is the coarser tile that contains its center.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import yaml
from pydantic import Field

from asmil.cohort.open_features import OpenFeatures, Parents, common_step
from asmil.cohort.problems import fail
from asmil.cohort.source import CoordsUnit, FeatureSource
from asmil.files import write_text
from asmil.settings.documents import read_yaml, validated
from asmil.tables.arrays import Floats, Integers

MAGNIFICATIONS_FILE = "magnifications.yaml"
"""In a folder of features: lists the folders of its magnifications, finest first, relative to it."""
ROUNDING = 1e-6
_Names = Annotated[list[str], Field(min_length=2)]


def write_magnifications(folder: Path, folders: Sequence[str]) -> None:
    """List the folders of several magnifications; with a single one, the folder itself holds the features."""
    if len(folders) > 1:
        write_text(folder / MAGNIFICATIONS_FILE, yaml.safe_dump({"folders": list(folders)}))
    else:
        (folder / MAGNIFICATIONS_FILE).unlink(missing_ok=True)


def magnification_folders(folder: Path) -> list[Path]:
    """The folders of the magnifications in a folder, finest first; empty if it is not a folder of several."""
    note = folder / MAGNIFICATIONS_FILE
    if not note.is_file():
        return []
    remedy = "list at least two folders of features under 'folders', the finest magnification first"
    names = validated(read_yaml(note, remedy).get("folders"), _Names, str(note), remedy)
    folders = [folder / name for name in names]
    for part in folders:
        if (part / MAGNIFICATIONS_FILE).is_file():
            fail(note, f"{part} consists of several magnifications itself", remedy)
    return folders


def with_parents(source: FeatureSource, finest: OpenFeatures, coarser: Sequence[OpenFeatures]) -> OpenFeatures:
    """The finest tiles of a slide with the features of their parents appended; a tile without a parent is an error."""
    tiles, info, n_tiles = _placed(finest), finest.info, finest.info.n_tiles
    parents, described = [], []
    for file in coarser:
        larger = _placed(file)
        parents.append(Parents(file, _parent_rows(tiles, larger)))
        encoder = file.info.weights_hash[:12] if file.info.weights_hash else file.info.encoder or "unknown encoder"
        described.append(f"{round(larger.side / tiles.side, 1):g} x {encoder}")
    joined = replace(
        info,
        source=source,
        width=info.width + sum(file.info.width for file in coarser),
        n_bytes=info.n_bytes + sum(n_tiles * file.info.n_bytes // file.info.n_tiles for file in coarser),
        coarser=", ".join(described),
    )
    is_valid = all(file.validated for file in (finest, *coarser))
    return replace(finest, info=joined, parents=tuple(parents), validated=is_valid)


def containing_tiles(points: Floats, corners: Floats, side: float) -> Integers:
    """The row of the tile that contains each point (N x 2); -1: none does.

    corners: upper left corners of square tiles, M x 2; of overlapping ones, the tile with the nearest center counts
    """
    from scipy.spatial import KDTree

    distances, rows = KDTree(corners + side / 2).query(points, p=np.inf)
    return np.where(distances <= side / 2 + ROUNDING, rows, -1).astype(np.int64)


class _Tiles(NamedTuple):
    """The upper left corners (N x 2) and the side of tiles, in the unit of their coordinates."""

    source: FeatureSource
    unit: CoordsUnit | None
    corners: Floats
    side: float


def _placed(file: OpenFeatures) -> _Tiles:
    info, coords = file.info, file.read_coords()
    if coords is None:
        what = "there are no tiles with coordinates, which are needed to join several magnifications"
        fail(info.source, what, "extract the slide again, or use a single magnification")
    side = (info.tile_side_um if info.coords_unit == "um" else info.tile_side_level0()) or common_step(coords)
    if side is None:
        fail(info.source, "the side of its tiles is unknown", "extract the slide again, or use a single magnification")
    return _Tiles(info.source, info.coords_unit, coords.astype(np.float64), float(side))


def _parent_rows(tiles: _Tiles, larger: _Tiles) -> Integers:
    if tiles.unit != larger.unit:
        what = f"its coordinates are in {tiles.unit}, but those of {larger.source} are in {larger.unit}"
        fail(tiles.source, what, "extract all magnifications with one tool")
    rows = containing_tiles(tiles.corners + tiles.side / 2, larger.corners, larger.side)
    if missing := int((rows < 0).sum()):
        what = f"{missing} of {len(rows)} tiles have no parent in {larger.source}"
        fail(tiles.source, what, "extract all magnifications again with one command")
    return rows
