"""The settings of a survey."""

from __future__ import annotations

from pydantic import Field

from asmil.config import Settings
from asmil.slides.settings import TilingConfig, TissueConfig


class SurveyConfig(Settings):
    """Settings of tissue and tiles for every slide."""

    tissue: TissueConfig = Field(TissueConfig(), description="how tissue is found")
    tiling: TilingConfig = Field(TilingConfig(), description="how tiles are cut")
    mpp: float | None = Field(None, gt=0, description="microns per pixel, unless a table gives them")
