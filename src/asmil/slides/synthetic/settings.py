"""Settings of a cohort of synthetic slides."""

from __future__ import annotations

from pydantic import Field, model_validator

from asmil.config import Settings


class SyntheticSlidesConfig(Settings):
    """Settings of a cohort of synthetic slides."""

    slides: int = Field(40, ge=1, description="slides in all, split 5 : 2 : 3 into train, val and test")
    seed: int = Field(0, ge=0, description="the same seed makes the same slides")
    mpp: float = Field(0.5, ge=0.1, le=4, description="microns per pixel")
    side_mm_min: float = Field(1.8, ge=0.5, le=30, description="shortest side of a slide")
    side_mm_max: float = Field(2.4, ge=0.5, le=30, description="longest side of a slide")
    tumor: float = Field(0.5, ge=0, le=1, description="share of the slides that hold tumor")
    sites: int = Field(3, ge=1, description="number of sites, each with its own stain")
    pen: float = Field(0.2, ge=0, le=1, description="share of the slides with pen marks")

    @model_validator(mode="after")
    def _sides_are_ordered(self) -> SyntheticSlidesConfig:
        if self.side_mm_min > self.side_mm_max:
            raise ValueError(f"side_mm_min {self.side_mm_min} is above side_mm_max {self.side_mm_max}")
        return self
