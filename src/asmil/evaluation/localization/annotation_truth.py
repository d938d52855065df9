"""The tumor masks of slides that pathologists annotated; masks are images, so this module needs image readers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from asmil.errors import AsmilError
from asmil.evaluation.localization.tile_maps import MaskFrame
from asmil.slides.annotations import (
    MASK_SUFFIXES,
    AnnotationFiles,
    TumorArea,
    rasterize,
    read_annotations,
    read_mask,
    tumor_area,
)
from asmil.slides.class_names import ClassNames
from asmil.tables.arrays import Booleans

MOST_NAMED = 5


class AnnotationTruth:
    """Tumor as annotated by pathologists."""

    def __init__(self, files: AnnotationFiles, names: ClassNames, mask_value: int | None = None) -> None:
        self._files = files
        self._names = names
        self._mask_value = mask_value
        self._areas: dict[str, TumorArea] = {}
        self._file_notes: list[str] = []

    def tiles(self, slide: str, frame: MaskFrame) -> None:
        """Annotations are outlines; they state nothing about single tiles."""
        del slide, frame

    def tumor(self, slide: str, frame: MaskFrame) -> Booleans | None:
        """The tumor mask of a slide, without excluded regions."""
        if slide in self._files.clashing:
            paths = " and ".join(map(str, self._files.clashing[slide]))
            raise AsmilError(f"{slide}: there are several annotation files of one kind, {paths}; keep one of them")
        path = self._files.by_slide.get(slide)
        if path is None:
            return None
        if path.suffix.lower() in MASK_SUFFIXES:
            size_px = frame.size_px if frame.size_is_stated else None
            return read_mask(path, size_px, frame.shape, frame.downsample, self._mask_value)
        annotations = read_annotations(path)
        self._file_notes += [f"{path.name}: {note}" for note in annotations.notes]
        area = tumor_area(annotations, self._names)
        self._areas[slide] = area
        shape = _fitting_shape(area, frame)
        mask = rasterize(area.shape, shape, frame.downsample)
        if not area.shape.is_empty and not mask.any():
            width, height = frame.size_px
            raise AsmilError(
                f"{slide}: no region of {path} covers the center of a mask pixel: all are outside the slide "
                f"({width} x {height} px) or too small; check that the file is for this slide and in level-0 pixels"
            )
        return mask

    def notes(self) -> Iterator[str]:
        """Which classes were used and which were not, and unused files."""
        for title, counts in self._classes().items():
            if counts:
                yield f"{title}: {', '.join(f'{name} ({count})' for name, count in counts.most_common())}"
        if self._files.beside:
            slide, (other, *_) = next(iter(self._files.beside.items()))
            used = self._files.by_slide[slide].name
            yield (
                f"{len(self._files.beside)} slides have several annotation files; GeoJSON is preferred to JSON, XML "
                f"and masks (for {slide}: {used}, not {other.name})"
            )
        if self._files.without_slide:
            named = _named([path.name for path in self._files.without_slide])
            yield f"{len(self._files.without_slide)} annotation files belong to no slide of the cohort: {named}"
        if self._file_notes:
            yield _named(self._file_notes, "; ")

    def _classes(self) -> Mapping[str, Counter[str]]:
        areas = self._areas.values()
        return {
            "regions used as tumor": sum((area.tumor for area in areas), Counter()),
            "regions excluded from it": sum((area.cut_out for area in areas), Counter()),
            "regions of other classes, not used (select them with --tumor or --exclude)": sum(
                (area.unknown for area in areas), Counter()
            ),
        }


def _fitting_shape(area: TumorArea, frame: MaskFrame) -> tuple[int, int]:
    """The shape of the slide's mask; if only the extent of its tiles is known, annotations beyond them are included."""
    if frame.size_is_stated or area.shape.is_empty:
        return frame.shape
    _, _, right, bottom = area.shape.bounds
    width, height = frame.size_px
    return replace(frame, size_px=(max(width, math.ceil(right)), max(height, math.ceil(bottom)))).shape


def _named(names: list[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return between.join(names[:MOST_NAMED]) + more
