"""Annotations by pathologists: read the files of several tools, match them to slides, and make tumor masks."""

from __future__ import annotations

from asmil.slides.annotations.mask_tiff import mask_outlines, read_mask, trace_outlines
from asmil.slides.annotations.matching import AnnotationFiles, find_annotations
from asmil.slides.annotations.reading import MASK_SUFFIXES, read_annotations, regions_on_slide
from asmil.slides.annotations.regions import AnnotatedRegion, Annotations
from asmil.slides.annotations.tumor import TumorArea, rasterize, tumor_area
from asmil.slides.class_names import ClassNames

__all__ = [
    "MASK_SUFFIXES",
    "AnnotatedRegion",
    "AnnotationFiles",
    "Annotations",
    "ClassNames",
    "TumorArea",
    "find_annotations",
    "mask_outlines",
    "rasterize",
    "read_annotations",
    "read_mask",
    "regions_on_slide",
    "trace_outlines",
    "tumor_area",
]
