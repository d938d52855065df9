"""CLAM's file of tile corners, which its own feature extraction and others read."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from asmil.files import replacing
from asmil.slides.image import SlideImage


def clam_attributes(image: SlideImage, patch_level: int, patch_px: int) -> dict[str, object]:
    """The attributes that CLAM writes with the corners: tiles of patch_px pixels of a level."""
    downsample = image.level_downsamples[patch_level]
    reduced = tuple(int(length / factor) for length, factor in zip(image.size, downsample, strict=True))
    return {
        "patch_size": patch_px,
        "patch_level": patch_level,
        "downsample": downsample,
        "downsampled_level_dim": reduced,
        "level_dim": image.level_sizes[patch_level],
        "name": image.name,
    }


def write_clam_coords(
    path: Path | str, image: SlideImage, coords: NDArray[np.int64], patch_level: int, patch_px: int
) -> Path | None:
    """Write the corners of a slide's tiles as CLAM does; None, and no file, if there are no tiles."""
    if len(coords) == 0:
        return None
    path = Path(path)
    attributes = clam_attributes(image, patch_level, patch_px) | {"save_path": str(path.parent)}
    with replacing(path) as partial, h5py.File(partial, "w") as file:
        corners = file.create_dataset("coords", data=coords.astype(np.int64))
        corners.attrs.update(attributes)
    return path
