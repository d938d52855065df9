"""The features of one slide in an open file, whichever tool wrote it.

torch is imported only for tensors, so that a process which reads headers starts at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from asmil.cohort.coordinates import LARGEST_COORDINATE, refuse_wrong_coords
from asmil.cohort.problems import fail
from asmil.cohort.source import CoordsUnit, FeatureInfo, FeatureSource, Layout, Provenance

if TYPE_CHECKING:
    from torch import Tensor


WORTH_TORCH = 2**18
"""Values; torch converts larger arrays to half precision ten times as fast as NumPy, but takes seconds to import."""


@dataclass(frozen=True)
class OpenFeatures:
    """A slide's features, ready to be read; valid as long as its file is open.

    validated: whether the values are known to form a valid bag, as in a pack with checksums
    checksum: stored when asmil wrote the file, see `checksum_of`
    parents: at lower magnifications, finest first
    """

    info: FeatureInfo
    values: h5py.Dataset | NDArray[Any] | Tensor
    coords: h5py.Dataset | NDArray[Any] | None = None
    um_per_unit: float = 1.0
    lowres: Mapping[str, h5py.Dataset | NDArray[Any]] | None = None
    validated: bool = False
    checksum: int | None = None
    parents: tuple[Parents, ...] = ()

    def features(self, rows: NDArray[Any] | slice = slice(None)) -> Tensor:
        """The features of some tiles (ascending rows), in their stored type; those of their parents are appended."""
        import torch

        parents = [
            parent.file.features().index_select(0, torch.from_numpy(parent.rows[rows])) for parent in self.parents
        ]
        return torch.cat([self.own_features(rows), *parents], dim=1) if parents else self.own_features(rows)

    def array(self, rows: NDArray[Any] | slice = slice(None)) -> NDArray[Any]:
        """The same as an array; bfloat16, which NumPy does not have, as float32."""
        if not self.parents and isinstance(self.values, h5py.Dataset | np.ndarray):
            return _native(self._stored(rows))
        return as_array(self.features(rows))

    def own_features(self, rows: NDArray[Any] | slice = slice(None)) -> Tensor:
        """The features of some tiles without those of their parents."""
        return as_tensor(self._stored(rows))

    def _stored(self, rows: NDArray[Any] | slice) -> Any:
        values = self.values
        if self.info.slide_vector and len(values.shape) == 1:
            return values[()][None]
        return values[0, rows] if len(values.shape) == 3 else values[rows]

    def read_coords(self) -> NDArray[Any] | None:
        """Coordinates N x 2, in `info.coords_unit`; an error if they cannot be on a slide."""
        if self.coords is None or self.info.n_tiles == 0:
            return None
        coords = np.asarray(self.coords[()])
        if coords.ndim == 3 and coords.shape[0] == 1:
            coords = coords[0]
        refuse_wrong_coords(self.info.source, coords, self.info.n_tiles)
        return coords * self.um_per_unit if self.info.coords_unit == "um" else coords


@dataclass(frozen=True)
class Parents:
    """Coarser tiles, of which one contains the center of each tile of a slide. rows: N, the row of that tile"""

    file: OpenFeatures
    rows: NDArray[np.int64]


def opened(
    source: FeatureSource,
    layout: Layout,
    values: h5py.Dataset | NDArray[Any] | Tensor,
    coords: h5py.Dataset | NDArray[Any] | None = None,
    provenance: Provenance | None = None,
    coords_unit: CoordsUnit = "px",
    um_per_unit: float = 1.0,
    magnification: float | None = None,
    checksum: int | None = None,
    slide_vector: bool = False,
) -> OpenFeatures:
    """The arrays of a file (values: N x D, 1 x N x D, or D for a slide vector) with what the file states about them."""
    shape = tuple(values.shape)
    n_tiles, width = _tiles_and_width(shape, source)
    info = FeatureInfo(
        **asdict(provenance or Provenance()),
        source=source,
        layout=layout,
        n_tiles=n_tiles,
        width=width,
        dtype=str(values.dtype).removeprefix("torch."),
        n_bytes=n_tiles * width * values.dtype.itemsize,
        coords_unit=None if coords is None else coords_unit,
        magnification=magnification,
        slide_vector=slide_vector or (len(shape) == 1 and shape != (0,)),
    )
    return OpenFeatures(info, values, coords, um_per_unit, checksum=checksum)


def info_of(file: OpenFeatures) -> FeatureInfo:
    """The header of an open feature file.

    If the tile size is not stated, the most frequent step between tiles is used and marked as inferred.
    """
    info = file.info
    unknown = info.tile_px_level0 is None and info.coords_unit == "px" and info.n_tiles > 0
    return with_tile_side(info, file.read_coords()) if unknown else info


def with_tile_side(info: FeatureInfo, coords: NDArray[Any] | None) -> FeatureInfo:
    """A header that does not state the side of its tiles, with the most frequent step between tiles instead."""
    if info.tile_px_level0 is not None or info.coords_unit != "px" or coords is None:
        return info
    step = common_step(coords)
    return info if step is None else replace(info, tile_px_level0=step, tile_inferred=True)


def as_tensor(values: Any) -> Tensor:
    """A tensor of the values as stored, in native byte order."""
    import torch

    if isinstance(values, torch.Tensor):
        return values
    array = np.asarray(values)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(_native(array))


def as_array(values: Tensor) -> NDArray[Any]:
    """A tensor as an array; bfloat16, which NumPy does not have, as float32."""
    import torch

    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _native(values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


@np.errstate(over="ignore")
def as_halves(features: NDArray[Any]) -> NDArray[np.float16]:
    """The features in half precision, in which a file and a copy of it with another number type are equal."""
    if features.dtype == np.float16:
        return features
    single = features.astype(np.float32, copy=False)
    if single.size < WORTH_TORCH:
        return single.astype(np.float16)
    import torch

    return np.asarray(torch.from_numpy(single).half())


def common_step(coords: NDArray[Any]) -> int | None:
    """The most frequent distance between neighbors along y; None if no column has two tiles.

    Not the smallest distance: every contour has its own grid, and two grids may be one pixel apart.
    """
    coords = coords[(np.abs(coords) <= LARGEST_COORDINATE).all(axis=1)]
    order = np.lexsort((coords[:, 1], coords[:, 0]))
    steps = np.diff(coords[order], axis=0)
    along_y = np.rint(steps[(steps[:, 0] == 0) & (steps[:, 1] > 0), 1]).astype(np.int64)
    values, counts = np.unique(along_y, return_counts=True)
    return int(values[counts.argmax()]) if len(values) else None


def _tiles_and_width(shape: tuple[int, ...], source: FeatureSource) -> tuple[int, int]:
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if shape == (0,):
        return 0, 0
    if len(shape) == 1:
        return 1, shape[0]
    if len(shape) != 2:
        fail(source, f"features have shape {shape}, not N x D (tiles x features)", "extract the slide again")
    return shape[0], shape[1]
