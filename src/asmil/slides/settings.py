"""The settings of tissue and tiles."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from asmil.config import Settings

DEFAULT_MPP = 0.5
DEFAULT_TILE_PX = 256
NOMINAL_MPP = 10.0
"""Microns per pixel at magnification 1: 20x is 0.5, 40x is 0.25."""
SLIDE_TIMEOUT_S = 1800.0
"""How long work on a slide may make no progress: the slowest step, finding the tissue of a slide without levels on a
slow disk, takes less."""

ClamPreset = Literal["default", "bwh_biopsy", "bwh_resection", "tcga"]
ContourCheck = Literal["four_pt", "four_pt_hard", "center", "basic"]


class ClamConfig(Settings):
    """CLAM's parameters; those left out are the preset's."""

    preset: ClamPreset = Field("default", description="CLAM's table of parameters to start from")
    sthresh: int | None = Field(None, ge=0, le=255, description="saturation above which a pixel is tissue")
    mthresh: int | None = Field(None, ge=1, description="window of the median filter, odd")
    close: int | None = Field(None, ge=0, description="side of the closing window; 0: no closing")
    otsu: bool = Field(False, description="choose the threshold by Otsu instead of sthresh")
    a_t: float | None = Field(None, ge=0, description="smallest tissue, in squares of 512 level-0 pixels")
    a_h: float | None = Field(None, ge=0, description="smallest hole, in squares of 512 level-0 pixels")
    max_n_holes: int | None = Field(None, ge=0, description="most holes of a piece of tissue")
    level: int | None = Field(None, ge=0, description="level to search on; default: that of downsample 64")
    contour_check: ContourCheck = Field("four_pt", description="which points of a tile must lie in the tissue")
    padding: bool = Field(True, description="tiles may stick out of the slide")

    @model_validator(mode="after")
    def _odd_window(self) -> ClamConfig:
        if self.mthresh is not None and self.mthresh % 2 == 0:
            raise ValueError(f"mthresh {self.mthresh} is even; the window of a median filter is odd")
        return self


class TissueConfig(Settings):
    """How tissue is detected."""

    method: Literal["auto", "clam", "none"] = Field(
        "auto", description="auto: Otsu per slide, needs no tuning; clam: as CLAM; none: the whole slide"
    )
    mpp: float = Field(8.0, gt=0, description="resolution of the search (auto), microns per pixel")
    min_area_um2: float = Field(50_000.0, ge=0, description="smaller pieces of tissue are dropped (auto)")
    min_hole_um2: float = Field(50_000.0, ge=0, description="smaller holes are filled (auto)")
    pen: bool = Field(True, description="leave out pen marks (auto)")
    edges: bool = Field(True, description="leave out slide edges and dark frames (auto)")
    clam: ClamConfig = Field(ClamConfig(), description="CLAM's parameters (clam)")


class TilingConfig(Settings):
    """How a slide is cut into tiles.

    The side of a tile in microns and in pixels give its resolution: 128 um in 256 px are 0.5 um/px (20x).
    """

    tile_um: float = Field(DEFAULT_MPP * DEFAULT_TILE_PX, gt=0, description="side of a tile, microns")
    tile_px: int = Field(DEFAULT_TILE_PX, ge=16, le=4096, description="side of a tile as the encoder gets it, pixels")
    overlap: float = Field(0.0, ge=0, lt=1, description="share of a tile's side that the next one covers again")
    min_tissue: float = Field(0.25, ge=0, le=1, description="smallest share of tissue in a tile (not for clam)")
    white: float | None = Field(None, ge=0, le=255, description="drop tiles whose mean saturation is below this")
    black: float | None = Field(None, ge=0, le=255, description="drop tiles whose channel means are all below this")
    enlarge: bool = Field(False, description="accept slides that are coarser than the tiles")

    @property
    def mpp(self) -> float:
        """Microns per pixel of the tiles."""
        return self.tile_um / self.tile_px
