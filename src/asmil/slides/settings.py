"""Settings of tissue detection and tiling."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from asmil.settings.config import Settings

DEFAULT_MPP = 0.5
DEFAULT_TILE_PX = 256
NOMINAL_MPP = 10.0
"""Microns per pixel at magnification 1: 20x is 0.5, 40x is 0.25."""
SLIDE_TIMEOUT_S = 1800.0
"""Maximum time without progress on a slide; the slowest step, finding the tissue of a single-level slide on a slow
disk, takes less."""

TissueMethod = Literal["auto", "clam", "none", "files"]
Artifact = Literal["blurred", "folded"]
ClamPreset = Literal["default", "bwh_biopsy", "bwh_resection", "tcga"]
ContourCheck = Literal["four_pt", "four_pt_hard", "center", "basic"]


class ClamConfig(Settings):
    """CLAM's parameters; those not given come from the preset."""

    preset: ClamPreset = Field("default", description="CLAM's preset of parameters")
    sthresh: int | None = Field(None, ge=0, le=255, description="saturation above which a pixel is tissue")
    mthresh: int | None = Field(None, ge=1, description="window of the median filter (odd)")
    close: int | None = Field(None, ge=0, description="side of the closing window; 0: no closing")
    otsu: bool = Field(False, description="choose the threshold by Otsu instead of sthresh")
    a_t: float | None = Field(None, ge=0, description="minimum tissue area, in squares of 512 level-0 pixels")
    a_h: float | None = Field(None, ge=0, description="minimum hole area, in squares of 512 level-0 pixels")
    max_n_holes: int | None = Field(None, ge=0, description="maximum number of holes in a piece of tissue")
    level: int | None = Field(None, ge=0, description="level to search on; default: the one for downsample 64")
    contour_check: ContourCheck = Field("four_pt", description="which points of a tile must be in the tissue")
    padding: bool = Field(True, description="whether tiles may extend beyond the slide")

    @model_validator(mode="after")
    def _odd_window(self) -> ClamConfig:
        if self.mthresh is not None and self.mthresh % 2 == 0:
            raise ValueError(f"mthresh {self.mthresh} is even; the window of a median filter must be odd")
        return self


class TissueConfig(Settings):
    """How tissue is detected."""

    method: TissueMethod = Field(
        "auto",
        description="auto: Otsu threshold per slide, no tuning; clam: as in CLAM; none: the whole slide; files: "
        "outlines or masks of a folder",
    )
    mpp: float = Field(8.0, gt=0, description="resolution of the search (auto), microns per pixel")
    min_area_um2: float = Field(50_000.0, ge=0, description="smaller pieces of tissue are dropped (auto)")
    min_hole_um2: float = Field(50_000.0, ge=0, description="smaller holes are filled (auto)")
    pen: bool = Field(True, description="leave out pen marks (auto)")
    edges: bool = Field(True, description="leave out slide edges and dark frames (auto)")
    clam: ClamConfig = Field(ClamConfig(), description="CLAM's parameters (clam)")


class QualityConfig(Settings):
    """Which tiles count as blurred or folded."""

    min_focus: float = Field(0.0625, ge=0, description="a tile with less focus (fine over coarse detail) is blurred")
    max_fold: float = Field(0.05, ge=0, le=1, description="a tile with a larger share of folded tissue is folded")


class TilingConfig(Settings):
    """How a slide is divided into tiles.

    The side of a tile in microns and in pixels determine its resolution: 128 um in 256 px are 0.5 um/px (20x).
    """

    tile_um: float = Field(DEFAULT_MPP * DEFAULT_TILE_PX, gt=0, description="side of a tile, microns")
    tile_px: int = Field(DEFAULT_TILE_PX, ge=16, le=4096, description="side of a tile given to the encoder, pixels")
    overlap: float = Field(0.0, ge=0, lt=1, description="overlap of neighboring tiles, as a share of their side")
    min_tissue: float = Field(0.25, ge=0, le=1, description="minimum share of tissue in a tile (not for clam)")
    white: float | None = Field(None, ge=0, le=255, description="drop tiles whose mean saturation is below this")
    black: float | None = Field(None, ge=0, le=255, description="drop tiles whose channel means are all below this")
    enlarge: bool = Field(False, description="upsample slides that are coarser than the tiles")

    @property
    def mpp(self) -> float:
        return self.tile_um / self.tile_px
