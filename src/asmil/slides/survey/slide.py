"""The survey of one slide: its files and its row."""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from asmil.engine.progress import made_progress
from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.slides.discovery import SlideFile
from asmil.slides.image import SlideImage
from asmil.slides.opening import open_slide
from asmil.slides.overview import read_overview
from asmil.slides.qc import draw_tissue, write_jpeg, write_mask
from asmil.slides.survey.folder import SurveyConfig, SurveyFolder
from asmil.slides.survey.row import NOTE_SEPARATOR, SurveyRow
from asmil.slides.tiling import place_tiles, tile_side_level0
from asmil.slides.tissue.finding import find_tissue
from asmil.slides.tissue.geojson import tissue_geojson
from asmil.slides.tissue.regions import Tissue

PICTURE_SIDE_PX = 1024


def survey_slide(file: SlideFile, config: SurveyConfig, folder: SurveyFolder) -> SurveyRow:
    """Find the tissue and the tiles of a slide and write its mask, contours, thumbnail and overlay."""
    with open_slide(file.path, file.mpp or config.mpp) as image:
        made_progress()
        tissue = find_tissue(image, config.tissue)
        made_progress()
        coords, side, tile_notes = _tiles(image, tissue, config)
        overview = read_overview(image, max_side=PICTURE_SIDE_PX)
        row = _row(file.name, image, tissue, config, coords, tile_notes)
    write_mask(folder.mask(file.name), tissue.mask)
    write_text(folder.contours(file.name), json.dumps(tissue_geojson(tissue)) + "\n")
    write_jpeg(folder.thumbnail(file.name), overview.pixels)
    write_jpeg(folder.overlay(file.name), draw_tissue(overview.pixels, overview.downsample, tissue, coords, side))
    return row


def _tiles(
    image: SlideImage, tissue: Tissue, config: SurveyConfig
) -> tuple[NDArray[np.int64] | None, int, tuple[str, ...]]:
    """Corners of the tiles and their side at level 0; no tiles, and why, where their side is not known."""
    if image.resolution is None:
        return None, 0, ("tiles not placed without --mpp",)
    try:
        side = tile_side_level0(config.tiling, image.resolution, image.name)
    except AsmilError as error:
        return None, 0, (f"tiles not placed: {error}",)
    return place_tiles(image, tissue, config.tissue, config.tiling, side), side, ()


def _row(
    name: str,
    image: SlideImage,
    tissue: Tissue,
    config: SurveyConfig,
    coords: NDArray[np.int64] | None,
    tile_notes: tuple[str, ...],
) -> SurveyRow:
    resolution = image.resolution
    area_px = float(tissue.mask.sum()) * tissue.downsample[0] * tissue.downsample[1]
    return SurveyRow(
        slide=name,
        width_px=image.size[0],
        height_px=image.size[1],
        mpp=round(resolution.mpp, 5) if resolution else None,
        mpp_source=resolution.source if resolution else "",
        method=config.tissue.method,
        threshold=tissue.threshold,
        tissue_share=round(tissue.share, 5),
        tissue_mm2=round(area_px * resolution.mpp_x * resolution.mpp_y / 1e6, 4) if resolution else None,
        regions=len(tissue.regions),
        tiles=len(coords) if coords is not None else None,
        notes=NOTE_SEPARATOR.join((*tissue.notes, *tile_notes)),
    )
