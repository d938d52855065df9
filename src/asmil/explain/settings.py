"""The settings of heat maps: what they show, and how they are drawn."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from asmil.settings.config import Settings

By = Literal["method", "seed", "fold", "epoch"]
ScaleKind = Literal["relative", "percentile", "absolute"]


class HeatmapSettings(Settings):
    """The settings of all heat maps in one folder."""

    def stored(self) -> dict[str, Any]:
        """Plain values as stored with the maps; settings of later versions only if they are used."""
        unused = {name for name in ("magnification", "dicom") if not getattr(self, name)}
        return self.model_dump(mode="json", exclude=unused)

    kinds: tuple[str, ...] = Field((), description="kinds of maps, see `asmil.explain.kinds`; none: the method's own")
    name: str | None = Field(None, description="the class or label to explain; default: the predicted one")
    by: By | None = Field(None, description="one map per run, seed, fold or recorded epoch")
    scale: ScaleKind | None = Field(
        None, description="default: relative to the average tile for attention, absolute for other kinds"
    )
    limits: tuple[float, float] | None = Field(None, description="ends of an absolute scale")
    color_map: str | None = None
    opacity: float = Field(0.65, gt=0, le=1, description="opacity of the tiles, the same for all")
    side_px: int = Field(900, ge=64, le=8000, description="longer side of a panel")
    tiles: int = Field(12, ge=0, le=200, description="highest and lowest tiles on the contact sheet; 0: none")
    tiff: bool = False
    tiff_mpp: float | None = Field(None, gt=0)
    qupath: bool = False
    dicom: bool = False
    cut: float = Field(0.9, ge=0, lt=1, description="QuPath and DICOM: annotate tiles above this share of all tiles")
    magnification: float | None = Field(
        None, gt=0, description="one of those of the features, for maps of coarser tiles: means over the tiles in them"
    )
    tile_px: float | None = Field(None, gt=0, description="side of a tile at level 0, for files that do not contain it")
