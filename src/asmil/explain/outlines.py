"""Annotations that are drawn on heat maps: outlines that somebody drew, and those of masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shapely.affinity import translate
from shapely.geometry import MultiPolygon

from asmil.slides.annotations import MASK_SUFFIXES, mask_outlines, read_annotations


@dataclass(frozen=True)
class SlideOutlines:
    """The annotations of many slides.

    files: annotation files, by slide
    place: the folder or file that was given
    mask_value: that of tumor in masks with several values
    """

    files: Mapping[str, Path]
    place: Path
    mask_value: int | None = None

    def of_slide(self, slide: str, size_px: tuple[int, int], origin: tuple[int, int] = (0, 0)) -> list[MultiPolygon]:
        """The outlines on a slide, in level-0 pixels; none if it has no file.

        size_px: width and height of the slide, from which the scale of a mask follows
        origin: the corner of the slide's bounds. GeoJSON is QuPath's and counts from it; other files do not
        """
        path = self.files.get(slide)
        if path is None:
            return []
        if path.suffix.lower() in MASK_SUFFIXES:
            marked = mask_outlines(path, size_px, self.mask_value)
            return [marked] if marked.geoms else []
        found = read_annotations(path)
        shift = origin if found.kind == "geojson" else (0, 0)
        return [translate(region.shape, *shift) for region in found.regions]
