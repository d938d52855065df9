"""Tissue that is read from files: outlines of asmil, QuPath, TRIDENT and other tools, or masks.

The outlines of a file are joined, excluded classes are subtracted, and the result is drawn on a mask with the
resolution at which method `auto` searches. The automatic tissue of the slide is found as well, so that the record of
the features states what was added to it and removed from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from shapely.affinity import scale
from shapely.geometry import MultiPolygon, box
from shapely.geometry.polygon import LinearRing

from asmil.errors import AsmilError
from asmil.settings.made_from import Content, file_content
from asmil.slides.annotations.mask_png import read_png_mask
from asmil.slides.annotations.mask_tiff import read_values
from asmil.slides.annotations.matching import find_annotations
from asmil.slides.annotations.reading import (
    MASK_SUFFIXES,
    PNG_SUFFIX,
    TISSUE_SUFFIXES,
    at_level_0,
    read_annotations,
)
from asmil.slides.annotations.regions import AnnotatedRegion, Annotations, area_of
from asmil.slides.annotations.tumor import EXCLUSION_NAMES, joined, rasterize, without
from asmil.slides.discovery import SlideFile
from asmil.slides.image import SlideImage
from asmil.slides.settings import TissueConfig
from asmil.slides.tissue.auto import NEARLY_ALL, auto_tissue, mask_regions
from asmil.slides.tissue.geojson import CLASS_NAME
from asmil.slides.tissue.regions import Mask, Polygon, Region, Tissue, TissueFile

TISSUE_FILE = "tissue file"
EXCLUDED_CLASSES = EXCLUSION_NAMES | {"ignore*", "ignore", "background", "artifact", "artefact", "fold", "pen", "glass"}
"""In lower case; `Ignore*` is QuPath's own class for what is to be left out."""
MOST_OUTSIDE = 0.5
"""Share of the outlined area beyond the slide above which the file is taken for that of another slide or level."""
NOTED_OUTSIDE = 0.01
SMALL_OVERLAP = 0.5
"""Intersection over union with the automatic tissue below which the file should be checked."""
MOST_NAMED = 3


@dataclass(frozen=True)
class MarkedTissue:
    """What a file marks on a slide. kind: mask, or the tool of its outlines."""

    mask: Mask
    regions: tuple[Region, ...]
    kind: str
    notes: tuple[str, ...] = ()


def with_tissue_files(slides: Sequence[SlideFile], source: Path) -> tuple[list[SlideFile], list[str]]:
    """The slides with their files of a folder (or the only file), and notes on files that are not used.

    A slide without a file stays without one, and fails when its tissue is needed.
    """
    files = find_annotations(source, [slide.name for slide in slides], TISSUE_SUFFIXES)
    if files.clashing:
        slide, paths = next(iter(files.clashing.items()))
        raise AsmilError(
            f"{source}: slide {slide} has several tissue files of the same kind ({', '.join(map(str, paths))}); "
            "keep one of them"
        )
    notes = []
    if files.beside:
        slide, paths = next(iter(files.beside.items()))
        notes.append(
            f"{source}: other tissue files of {len(files.beside)} slides are not used, e.g. {paths[0]}, because "
            f"{files.by_slide[slide]} is preferred"
        )
    if files.without_slide and not files.by_slide:
        named = ", ".join(path.name for path in files.without_slide[:MOST_NAMED])
        raise AsmilError(
            f"{source}: none of its {len(files.without_slide)} tissue files is named like a slide (they are {named}, "
            f"..., and a slide is {slides[0].name}); rename them"
        )
    return [replace(slide, tissue=files.by_slide.get(slide.name)) for slide in slides], notes


def tissue_content(slide: SlideFile) -> dict[str, Content]:
    """The content of the slide's tissue file by its name in records; nothing if it has none."""
    if slide.tissue is None or not slide.tissue.exists():
        return {}
    return {TISSUE_FILE: file_content(slide.tissue)}


def read_tissue(image: SlideImage, config: TissueConfig, path: Path | None) -> Tissue:
    """The tissue that a file marks on a slide, compared with the automatic tissue; pieces of any size are kept."""
    if path is None:
        raise AsmilError(
            f"{image.name}: no tissue file belongs to this slide; put {image.name}.geojson (or .png, .tif) into the "
            "folder of --tissue, or leave the slide out"
        )
    content = file_content(path).stored()
    automatic = auto_tissue(image, config)
    is_mask = path.suffix.lower() in (*MASK_SUFFIXES, PNG_SUFFIX)
    marked = (_of_mask if is_mask else _of_outlines)(path, image, automatic.mask.shape, automatic.downsample)
    if not marked.mask.any():
        raise AsmilError(f"{path}: the file marks no tissue on {image.name}; mark some, or leave the slide out")
    source = TissueFile(
        file=path.name,
        kind=marked.kind,
        content=content,
        automatic_share=automatic.share,
        added_share=float((marked.mask & ~automatic.mask).mean()),
        removed_share=float((automatic.mask & ~marked.mask).mean()),
    )
    overlap = float((marked.mask & automatic.mask).sum() / (marked.mask | automatic.mask).sum())
    notes = list(marked.notes)
    share = float(marked.mask.mean())
    if share > NEARLY_ALL:
        notes.append(
            f"{path.name} marks {share:.1%} of the slide as tissue: check that it is a mask of this slide, with 0 for "
            "background"
        )
    elif overlap < SMALL_OVERLAP:
        notes.append(
            f"the tissue of {path.name} and the automatic tissue overlap by {overlap:.0%} only: check that the file "
            "belongs to this slide and counts in level-0 pixels"
        )
    return Tissue(marked.regions, marked.mask, automatic.downsample, 0.0, tuple(notes), source)


def _of_mask(path: Path, image: SlideImage, shape: tuple[int, ...], downsample: tuple[float, float]) -> MarkedTissue:
    """Every value but 0 is tissue."""
    if path.suffix.lower() == PNG_SUFFIX:
        mask = read_png_mask(path, image.size, (shape[0], shape[1]), downsample)
    else:
        mask = np.asarray(read_values(path, image.size, (shape[0], shape[1]), downsample) != 0)
    return MarkedTissue(mask, mask_regions(mask, downsample), "mask")


def _of_outlines(
    path: Path, image: SlideImage, shape: tuple[int, ...], downsample: tuple[float, float]
) -> MarkedTissue:
    annotations = at_level_0(read_annotations(path), image.bounds_origin)
    drawn, unused = tissue_area(annotations)
    if drawn.is_empty:
        raise AsmilError(
            f"{path}: the file has no outline of tissue with an area; draw the tissue of {image.name}, or leave the "
            "slide out"
        )
    inside = area_of(drawn.intersection(box(0, 0, *image.size)))
    outside = 1 - inside.area / drawn.area
    if outside > MOST_OUTSIDE:
        x, y, right, bottom = drawn.bounds
        raise AsmilError(
            f"{path}: {outside:.0%} of the outlined area lies outside of {image.name}, which has {image.size[0]} x "
            f"{image.size[1]} pixels (outlines: x {x:.0f} to {right:.0f}, y {y:.0f} to {bottom:.0f}); give outlines of "
            "this slide in level-0 pixels"
        )
    notes = list(annotations.notes)
    if outside > NOTED_OUTSIDE:
        notes.append(f"{outside:.0%} of the area outlined in {path.name} lies outside of the slide and is cut off")
    if unused:
        named = ", ".join(f"{name} ({count})" for name, count in unused.items())
        notes.append(f"outlines of other classes than {CLASS_NAME} in {path.name} are not used: {named}")
    regions = tuple(
        Region(_points(part.exterior), tuple(_points(hole) for hole in part.interiors)) for part in inside.geoms
    )
    shrunk = scale(inside, 1 / downsample[0], 1 / downsample[1], origin=(0, 0))
    mask = rasterize(shrunk, (shape[0], shape[1]), 1.0)
    return MarkedTissue(mask, regions, annotations.kind, tuple(notes))


def tissue_area(annotations: Annotations) -> tuple[MultiPolygon, Counter[str]]:
    """The tissue of a file, and the classes of outlines that are not used with their numbers.

    Outlines without a class and those of class Tissue are tissue; if there are none, outlines of all classes are.
    Excluded classes and marked holes are subtracted. Names are compared case-insensitively.
    """
    cut_out: list[AnnotatedRegion] = []
    others: list[AnnotatedRegion] = []
    for region in annotations.regions:
        is_cut_out = region.cut_out or (region.group or "").lower() in EXCLUDED_CLASSES
        (cut_out if is_cut_out else others).append(region)
    tissue = [region for region in others if region.group is None or region.group.lower() == CLASS_NAME.lower()]
    unused = Counter(region.group for region in others if region.group and region.group.lower() != CLASS_NAME.lower())
    if not tissue:
        tissue, unused = others, Counter()
    shape = without(joined([region.shape for region in tissue]), joined([region.shape for region in cut_out]))
    return shape, unused


def _points(ring: LinearRing) -> Polygon:
    return np.rint(np.asarray(ring.coords)[:-1, :2]).astype(np.int32)
