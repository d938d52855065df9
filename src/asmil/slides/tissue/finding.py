"""Find the tissue of a slide with the method of the settings."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from asmil.slides.image import SlideImage
from asmil.slides.settings import TissueConfig
from asmil.slides.tissue.auto import auto_tissue
from asmil.slides.tissue.clam import clam_tissue
from asmil.slides.tissue.files import read_tissue
from asmil.slides.tissue.regions import Region, Tissue

WHOLE_SIDE_PX = 1024


def find_tissue(image: SlideImage, config: TissueConfig, file: Path | None = None) -> Tissue:
    """The tissue of a slide; method `none` uses the whole slide, without reading pixels.

    file: the outlines or the mask of this slide, for method `files`
    """
    if config.method == "files":
        return read_tissue(image, config, file)
    if config.method == "auto":
        return auto_tissue(image, config)
    if config.method == "clam":
        return clam_tissue(image, config.clam)
    return whole_slide(image)


def whole_slide(image: SlideImage) -> Tissue:
    """The whole slide as one piece of tissue."""
    width, height = image.size
    shrink = max(1.0, max(width, height) / WHOLE_SIDE_PX)
    columns, rows = math.ceil(width / shrink), math.ceil(height / shrink)
    corners = np.asarray([(0, 0), (width, 0), (width, height), (0, height)], dtype=np.int32)
    return Tissue(
        regions=(Region(corners),),
        mask=np.ones((rows, columns), dtype=bool),
        downsample=(width / columns, height / rows),
        threshold=0.0,
    )
