"""Annotations that are drawn on heat maps: outlines that somebody drew, and those of masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shapely.geometry import MultiPolygon

from asmil.slides.annotations import regions_on_slide


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
        """The outlines on a slide, in level-0 pixels; none if it has no file. Arguments as for `regions_on_slide`."""
        path = self.files.get(slide)
        if path is None:
            return []
        return [region.shape for region in regions_on_slide(path, size_px, origin, self.mask_value)]
