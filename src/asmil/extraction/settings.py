"""The settings of an extraction; they are stored with the features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from asmil.errors import AsmilError
from asmil.settings.config import Settings, parse_settings
from asmil.slides.encoders.base import EncoderEntry
from asmil.slides.encoders.registry import DEFAULT_ENCODER
from asmil.slides.settings import NOMINAL_MPP, Artifact, QualityConfig, TilingConfig, TissueConfig

EXACT = 1e-6


class ExtractionConfig(Settings):
    """The settings that determine the content of feature files; where the work runs is not among them."""

    encoder: str = Field(DEFAULT_ENCODER, description="name (`asmil encoders`), file.py:callable or module:callable")
    tissue: TissueConfig = Field(TissueConfig(), description="where the tissue is")
    tiling: TilingConfig = Field(TilingConfig(), description="which tiles it is cut into")
    quality: QualityConfig = Field(QualityConfig(), description="which tiles count as blurred or folded")
    leave_out: tuple[Artifact, ...] = Field((), description="leave out tiles that are blurred, folded, or either")
    lowres: float | None = Field(None, gt=0, description="also store tiles at this magnification, e.g. 1.25")
    dtype: Literal["float16", "float32"] = Field("float16", description="type in which features are stored")
    coarser: tuple[Annotated[int, Field(ge=2)], ...] = Field(
        (), description="also extract the tiles around them that are so many times larger, with as many pixels"
    )

    @field_validator("encoder")
    @classmethod
    def _named(cls, name: str) -> str:
        if not name.strip():
            raise ValueError("name an encoder; `asmil encoders` lists them")
        return name

    @field_validator("coarser")
    @classmethod
    def _nested(cls, ratios: tuple[int, ...]) -> tuple[int, ...]:
        if any(larger <= smaller or larger % smaller for smaller, larger in pairwise(ratios)):
            raise ValueError("each must be a multiple of the one before, so that the tiles are nested")
        return ratios

    @model_serializer(mode="wrap")
    def _as_stored(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `coarser` if there are none, as in files of earlier versions."""
        values: dict[str, Any] = dump(self)
        return values if self.coarser else {key: value for key, value in values.items() if key != "coarser"}

    @property
    def folders(self) -> tuple[str, ...]:
        """The folder of each magnification in that of the features, finest first; one magnification needs none."""
        if not self.coarser:
            return ("",)
        finest = NOMINAL_MPP / self.tiling.mpp
        return tuple(f"{finest / ratio:.4g}x" for ratio in (1, *self.coarser))

    @property
    def lowres_px(self) -> int | None:
        """Side of a low-magnification tile, pixels."""
        if self.lowres is None:
            return None
        return max(1, round(self.tiling.tile_um * self.lowres / NOMINAL_MPP))


def parse_extraction(values: dict[str, Any]) -> ExtractionConfig:
    """Validate settings."""
    config = parse_settings(ExtractionConfig, values)
    if config.lowres_px is not None and config.lowres_px >= config.tiling.tile_px:
        raise AsmilError(
            f"setting 'lowres' = {config.lowres:g}: tiles of {config.lowres_px} px are not smaller than the tiles "
            f"themselves ({config.tiling.tile_px} px); give a lower magnification, e.g. 1.25"
        )
    return config


def finest_and_coarser(magnifications: Sequence[float] | None) -> tuple[float | None, tuple[int, ...]]:
    """The highest magnification, and how many times lower the others are; None: none is given.

    >>> finest_and_coarser([5, 20])
    (20, (4,))
    """
    if not magnifications:
        return None, ()
    finest, *others = sorted(magnifications, reverse=True)
    ratios = [finest / other for other in others if other > 0]
    nested = [larger / smaller for smaller, larger in pairwise([1.0, *ratios])]
    if len(ratios) < len(others) or any(round(step) < 2 or abs(step - round(step)) > EXACT for step in nested):
        given = ", ".join(f"{magnification:g}" for magnification in magnifications)
        raise AsmilError(
            f"magnifications {given}: each must be a whole number of times lower than the next higher one, so that "
            "tiles are nested; give e.g. 5,20 or 5,10,20"
        )
    return finest, tuple(map(round, ratios))


def tile_size(
    entry: EncoderEntry,
    tile_um: float | None = None,
    tile_px: int | None = None,
    magnification: float | None = None,
) -> dict[str, float | int]:
    """Side of a tile in microns and pixels; the defaults are those that the encoder was trained with.

    A magnification (20 means 0.5 um/px) and one of the two sides give the other.
    """
    if magnification is None:
        px = tile_px or entry.tile_px
        return {"tile_um": tile_um or px * entry.mpp, "tile_px": px}
    if magnification <= 0:
        raise AsmilError(f"magnification {magnification:g} is not positive; give 20, 10, 5, ...")
    mpp = NOMINAL_MPP / magnification
    if tile_um is None:
        px = tile_px or entry.tile_px
        return {"tile_um": px * mpp, "tile_px": px}
    if tile_px is not None and abs(tile_px * mpp - tile_um) > EXACT * tile_um:
        raise AsmilError(
            f"a tile of {tile_um:g} um in {tile_px} px is {tile_um / tile_px:g} um/px, but magnification "
            f"{magnification:g} is {mpp:g}; give two of the three"
        )
    return {"tile_um": tile_um, "tile_px": tile_px or round(tile_um / mpp)}
