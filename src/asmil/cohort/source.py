"""The location of features, the state of their file or pack, and their properties."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from asmil.cohort.pack.files import INDEX, JOURNAL, OWN_FILES, file_states, is_pack
from asmil.cohort.problems import fail
from asmil.files import bytes_of, files_of
from asmil.settings.documents import parse_json
from asmil.settings.made_from import StoredContent

Layout = Literal["asmil", "trident", "clam", "stamp", "stamp_historic", "cohort_h5", "anndata", "tensor", "numpy"]
CoordsUnit = Literal["px", "um"]
FEATURE_NAMES = ("features", "feats", "feat")
"""Names of the feature dataset in files of different tools."""
LOWRES, LOWRES_TILES = "lowres", "tiles"
"""A group of a feature file: its `tiles` are the same tiles at low magnification, in the same order."""
GROUP_MARK = "::"
"""Separates a file or a pack from the slide in it."""
JOIN_MARK = " ++ "
"""Separates the files of a slide at several magnifications."""


@dataclass(frozen=True)
class FeatureSource:
    """A feature file, or one slide's group in a file that contains a whole cohort.

    coarser: the same slide at lower magnifications; the features of its parents are appended to those of every tile
    """

    path: Path
    group: str | None = None
    coarser: tuple[FeatureSource, ...] = ()

    @classmethod
    def parse(cls, text: str) -> FeatureSource:
        """Read `file.h5` or `file.h5::group`, or several of them, the finest magnification first.

        >>> str(FeatureSource.parse("cohort.h5::slide_7"))
        'cohort.h5::slide_7'
        """
        finest, *coarser = text.split(JOIN_MARK)
        path, _, group = finest.partition(GROUP_MARK)
        return cls(Path(path), group or None, tuple(map(cls.parse, coarser)))

    def __str__(self) -> str:
        finest = str(self.path) if self.group is None else f"{self.path}{GROUP_MARK}{self.group}"
        return JOIN_MARK.join([finest, *map(str, self.coarser)])

    @property
    def parts(self) -> tuple[FeatureSource, ...]:
        """The sources of single magnifications, finest first."""
        return (replace(self, coarser=()), *self.coarser)

    @property
    def paths(self) -> list[Path]:
        """The files of all magnifications."""
        return [part.path for part in self.parts]

    def moved(self, new_path: Callable[[Path], Path]) -> FeatureSource:
        """The same with other paths."""
        return FeatureSource(new_path(self.path), self.group, tuple(part.moved(new_path) for part in self.coarser))


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How features were made; unknown values are None.

    tile_um, tile_px: side of a tile in microns, and in pixels as given to the encoder
    tile_px_level0: side of a tile in level-0 pixels of the slide
    mpp, mpp_source: microns per level-0 pixel of the slide, and where the value comes from
    extraction: the settings of the extraction, as JSON text
    coarser: the larger tiles whose features are appended to those of each tile, e.g. `4 x uni_v1`: how many times
        larger, and the hash of the encoder's weights or its name
    """

    encoder: str | None = None
    weights_hash: str | None = None
    tile_um: float | None = None
    tile_px: int | None = None
    tile_px_level0: int | None = None
    mpp: float | None = None
    mpp_source: str | None = None
    slide_width_px: int | None = None
    slide_height_px: int | None = None
    extraction: str | None = None
    coarser: str | None = None


@dataclass(frozen=True, kw_only=True)
class FeatureInfo(Provenance):
    """The header of a feature file, whichever tool wrote it.

    magnification: nominal magnification of the tiles, for tools that do not use microns
    tile_inferred: whether tile_px_level0 is the most frequent step between tiles, because the file does not state it
    slide_vector: whether the file contains one vector for the slide, which is read as a bag of one tile
    """

    source: FeatureSource
    layout: Layout
    n_tiles: int
    width: int
    dtype: str
    n_bytes: int
    coords_unit: CoordsUnit | None = None
    magnification: float | None = None
    tile_inferred: bool = False
    slide_vector: bool = False

    @property
    def may_be_slide_vector(self) -> bool:
        """Whether the single row of the file can be a slide vector rather than a tile, which would have coordinates."""
        return self.slide_vector or (self.n_tiles == 1 and self.coords_unit is None)

    @property
    def tile_mpp(self) -> float | None:
        """Microns per pixel of the tiles given to the encoder; 10 / magnification if only that is known."""
        if self.tile_um is not None and self.tile_px:
            return self.tile_um / self.tile_px
        return 10.0 / self.magnification if self.magnification else None

    @property
    def tile_side_um(self) -> float | None:
        """Side of a tile in microns, stated or from pixels and resolution."""
        if self.tile_um is not None:
            return self.tile_um
        return self.tile_px * self.tile_mpp if self.tile_px and self.tile_mpp else None

    def tile_side_level0(self, mpp: float | None = None) -> float | None:
        """Side of a tile in level-0 pixels, stated or from microns and resolution; None if neither is known.

        mpp: microns per level-0 pixel, for files that do not state it
        """
        if self.tile_px_level0:
            return float(self.tile_px_level0)
        side_um, mpp = self.tile_side_um, self.mpp or mpp
        return side_um / mpp if side_um and mpp else None


def source_state(source: FeatureSource) -> tuple[int, int]:
    """Size and modification time; they change when a file is rewritten or a pack is written to."""
    states = [_state(path) for path in source.paths]
    return sum(size for size, _ in states), max(changed for _, changed in states)


def _state(path: Path) -> tuple[int, int]:
    if is_pack(path) and (states := file_states(path, INDEX, JOURNAL)):
        return sum(size for _, size, _ in states), max(changed for _, _, changed in states)
    try:
        stats = [file.stat() for file in files_of(path)]  # a zarr store has several
    except FileNotFoundError:
        fail(path, "the feature file does not exist", "fix its path or extract the slide")
    return sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)


def stored_bytes(path: Path) -> int:
    """The size of a feature file, a zarr store or a pack on disk; other files in a pack's folder do not count."""
    if is_pack(path):
        return sum(file.stat().st_size for file in path.iterdir() if file.name in OWN_FILES)
    return bytes_of(path)


def bag_bytes(sources: Iterable[FeatureSource]) -> int:
    """About the size of bags in memory, from the sizes of their files; no file is opened.

    The features of parents are repeated for every tile, so every magnification takes as much as the finest.
    """
    different = {(source.path, len(source.parts)) for source in sources if source.path.exists()}
    return sum(stored_bytes(path) * parts for path, parts in different)


def plain(value: Any) -> Any:
    """An attribute as a Python value; tools store None as the text 'None'."""
    if isinstance(value, np.ndarray):
        value = value.reshape(-1)[0] if value.size == 1 else value.tolist()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, str) and value == "None" else value


def number(value: Any) -> float | None:
    """An attribute as a positive number (all numbers read here are sizes), or None."""
    try:
        size = float(plain(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return size if 0 < size < math.inf else None


def integer(value: Any) -> int | None:
    """An attribute as an integer, or None."""
    exact = number(value)
    return None if exact is None else round(exact)


def tile_spec_provenance(spec: Mapping[str, Any]) -> Provenance:
    """The sizes of the tiles of LazySlide: `width` in pixels as encoded, `base_width` in level-0 pixels, `mpp`."""
    side, mpp = integer(spec.get("width")), number(spec.get("mpp"))
    tile_um = side * mpp if side and mpp else None
    return Provenance(tile_px=side, tile_px_level0=integer(spec.get("base_width")), tile_um=tile_um)


class TissueFileRecord(BaseModel, extra="allow"):
    """The file that tissue was read from. content: to notice that it was edited since."""

    content: StoredContent = StoredContent()


class TissueRecord(BaseModel, extra="allow"):
    """The tissue of the slide.

    notes: findings to check, such as a dark background (fluorescence)
    source: the file that it was read from, if it was
    """

    notes: tuple[str, ...] = ()
    source: TissueFileRecord | None = None


class ExtractionRecord(BaseModel, extra="allow"):
    """The attribute `extraction` of a feature file.

    settings: the extraction settings, if they were stored
    slide: properties of the slide, including its size in bytes
    tissue: the amount of tissue, and notes
    """

    settings: dict[str, Any] | None = None
    slide: dict[str, Any] = Field(default_factory=dict)
    tissue: TissueRecord = TissueRecord()


def read_extraction(info: FeatureInfo) -> ExtractionRecord | None:
    """The record in a feature file; None if `asmil extract` did not write it."""
    if info.extraction is None:
        return None
    where = f"{info.source}: the attribute 'extraction'"
    return parse_json(info.extraction, ExtractionRecord, where, "extract this slide again")


def checksum_of(*arrays: NDArray[Any] | None) -> int:
    """The CRC-32 of the concatenated bytes of the arrays; None and empty arrays are skipped."""
    checksum = 0
    for array in arrays:
        if array is not None and array.size:
            checksum = zlib.crc32(memoryview(np.ascontiguousarray(array).data).cast("B"), checksum)
    return checksum
