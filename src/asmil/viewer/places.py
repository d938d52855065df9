"""Where the tiles of a feature file lie, read without their features."""

from __future__ import annotations

import numpy as np

from asmil.cohort.features import inspect_features
from asmil.cohort.reader import open_features
from asmil.cohort.source import FeatureSource
from asmil.errors import AsmilError
from asmil.explain.tile_map import SlideFrame, slide_frame
from asmil.slides.image import SlideImage


def read_frame(
    slide: str, source: FeatureSource, mpp: float | None = None, image: SlideImage | None = None
) -> SlideFrame:
    """The frame of a slide; features without coordinates, or of another slide size than the image, are refused.

    mpp: microns per level-0 pixel, for files that do not state it
    """
    info = inspect_features(source)
    mpp = info.mpp or mpp or (image.resolution.mpp if image is not None and image.resolution is not None else None)
    with open_features(source, mmap=True) as file:
        coords = file.read_coords()
    if coords is not None and not np.isfinite(coords).all():
        raise AsmilError(f"{slide}: coordinates of its features are not finite ({source}); extract them again")
    if coords is not None and info.coords_unit == "um":
        if mpp is None:
            raise AsmilError(
                f"{slide}: the coordinates of its features are in microns and its resolution is unknown; give --mpp"
            )
        coords = coords / mpp
    return slide_frame(slide, coords, info, image, mpp)
