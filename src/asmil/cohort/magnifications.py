"""Several magnifications of one slide, joined by coordinates: every tile gets the features of its parents.

The parent of a tile at a lower magnification is the coarser tile that contains its center.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field

from asmil.cohort.open_features import OpenFeatures, Parents, common_step
from asmil.cohort.problems import fail
from asmil.cohort.source import FeatureSource
from asmil.files import write_text
from asmil.settings.documents import read_yaml, validated

MAGNIFICATIONS_FILE = "magnifications.yaml"
"""In a folder of features: lists the folders of its magnifications, finest first, relative to it."""
TOLERANCE_PX = 1e-6
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
    parents = tuple(Parents(file, _parent_rows(finest, file)) for file in coarser)
    infos = [file.info for file in coarser]
    n_tiles = finest.info.n_tiles
    joined = replace(
        finest.info,
        source=source,
        width=finest.info.width + sum(info.width for info in infos),
        n_bytes=finest.info.n_bytes + sum(n_tiles * info.n_bytes // max(1, info.n_tiles) for info in infos),
        coarser=", ".join(_described(finest, file) for file in coarser),
    )
    is_valid = all(file.validated for file in (finest, *coarser))
    return replace(finest, info=joined, parents=parents, validated=is_valid)


def nearest_tiles(coords: NDArray[np.floating], side: float, tiles: NDArray[np.floating]) -> NDArray[np.int64]:
    """The row of the tile that contains each point (`coords`, N x 2); -1: none does.

    tiles: upper left corners of squares with this side, M x 2
    """
    from scipy.spatial import KDTree

    distances, rows = KDTree(tiles + side / 2).query(coords, p=np.inf)
    return np.where(distances <= side / 2 + TOLERANCE_PX, rows, -1).astype(np.int64)


def _parent_rows(finest: OpenFeatures, coarse: OpenFeatures) -> NDArray[np.int64]:
    corners, side = _placed(finest)
    coarse_corners, coarse_side = _placed(coarse)
    if finest.info.coords_unit != coarse.info.coords_unit:
        what = f"its coordinates are in {finest.info.coords_unit}, those of {coarse.info.source} in "
        fail(finest.info.source, f"{what}{coarse.info.coords_unit}", "extract both magnifications with one tool")
    rows = nearest_tiles(corners + side / 2, coarse_side, coarse_corners)
    if (missing := int((rows < 0).sum())) > 0:
        what = f"{missing} of {len(rows)} tiles have no parent in {coarse.info.source}"
        fail(finest.info.source, what, "extract all magnifications again with one command and the same tissue")
    return rows


def _placed(file: OpenFeatures) -> tuple[NDArray[np.float64], float]:
    """The corners and the side of the tiles, in the unit of the coordinates."""
    coords = file.read_coords()
    if coords is None:
        what = "there are no coordinates, which magnifications are joined by"
        fail(file.info.source, what, "give features with coordinates, or use a single magnification")
    side = file.info.tile_side_um if file.info.coords_unit == "um" else file.info.tile_side_level0()
    side = side or common_step(coords)
    if side is None:
        fail(file.info.source, "the side of its tiles is unknown", "extract the slide again, or use one magnification")
    return coords.astype(np.float64), float(side)


def _described(finest: OpenFeatures, coarse: OpenFeatures) -> str:
    ratio = _placed(coarse)[1] / _placed(finest)[1]
    encoder = coarse.info.weights_hash[:12] if coarse.info.weights_hash else coarse.info.encoder or "unknown encoder"
    return f"{round(ratio, 1):g} x {encoder}"
