"""Small slides for tests: images with known content, written as TIFF files of several kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import tifffile
from numpy.typing import NDArray

Image = NDArray[np.uint8]
CM_IN_UM = 10_000


def smooth_image(width: int, height: int, period_px: float = 96.0) -> Image:
    """Waves of several directions: its value at a position between pixels is known by interpolation."""
    y, x = np.mgrid[:height, :width].astype(np.float64) + 0.5
    return smooth_values(x, y, period_px)


def smooth_values(x: NDArray[np.float64], y: NDArray[np.float64], period_px: float) -> Image:
    """The waves at any positions, in pixels."""
    turn = 2 * np.pi / period_px
    channels = [np.sin(turn * x), np.sin(turn * (0.6 * x + 0.8 * y)), np.cos(turn * y)]
    return np.rint(128 + 100 * np.stack(channels, axis=-1)).astype(np.uint8)


def noise_image(width: int, height: int, seed: int = 0) -> Image:
    """Independent pixels: any error of position or order shows."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def shrunk(pixels: Image, factor: int) -> Image:
    """Area-averaged; what is left over at the right and below is cut off."""
    height, width = (length // factor for length in pixels.shape[:2])
    return cv2.resize(
        pixels[: height * factor, : width * factor], (width, height), interpolation=cv2.INTER_AREA
    ).reshape(height, width, *pixels.shape[2:])


def write_slide(
    path: Path,
    pixels: Image,
    mpp: float | None = 0.25,
    factors: Sequence[int] = (1,),
    tile_px: int | None = 128,
    compression: str | None = None,
    **options: object,
) -> Path:
    """A TIFF with one page a level, as OpenSlide knows them; tile_px None: strips."""
    with tifffile.TiffWriter(path) as tiff:
        for factor in factors:
            tiff.write(
                shrunk(pixels, factor) if factor > 1 else pixels,
                subfiletype=int(factor > 1),
                **_page_options(mpp and mpp * factor, tile_px, compression),
                **({"photometric": "rgb"} | options),
            )
    return path


def write_ome_slide(
    path: Path, pixels: Image, mpp: float = 0.25, factors: Sequence[int] = (1, 2, 4), tile_px: int = 128
) -> Path:
    """An OME-TIFF with its pyramid in SubIFDs."""
    metadata = {"axes": "YXS", "PhysicalSizeX": mpp * 1000, "PhysicalSizeXUnit": "nm"}
    metadata |= {"PhysicalSizeY": mpp, "PhysicalSizeYUnit": "µm"}
    page = _page_options(None, tile_px, None) | {"photometric": "rgb"}
    with tifffile.TiffWriter(path, ome=True) as tiff:
        tiff.write(pixels, subifds=len(factors) - 1, metadata=metadata, **page)
        for factor in factors[1:]:
            tiff.write(shrunk(pixels, factor), subfiletype=1, **page)
    return path


def _page_options(mpp: float | None, tile_px: int | None, compression: str | None) -> dict[str, object]:
    options: dict[str, object] = {"compression": compression}
    if tile_px is not None:
        options["tile"] = (tile_px, tile_px)
    if mpp:
        options |= {"resolution": (CM_IN_UM / mpp, CM_IN_UM / mpp), "resolutionunit": "CENTIMETER"}
    return options
