"""Settings and plan of a cohort of synthetic slides: the split, label, patient and site of every slide.

The first n slides of a longer cohort are the cohort of n slides, see `asmil.synthetic.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import ceil

from pydantic import Field, model_validator

from asmil.settings.config import Settings
from asmil.synthetic.plan import PlannedSlide, generator, parts_by_quota, patient_name, slide_name


class SyntheticSlidesConfig(Settings):
    """Settings of a cohort of synthetic slides."""

    slides: int = Field(40, ge=1, description="number of slides, split 5 : 2 : 3 into train, val and test")
    seed: int = Field(0, ge=0, description="the same seed makes the same slides")
    mpp: float = Field(0.5, ge=0.1, le=4, description="microns per pixel")
    side_mm_min: float = Field(1.8, ge=0.5, le=30, description="shortest side of a slide")
    side_mm_max: float = Field(2.4, ge=0.5, le=30, description="longest side of a slide")
    tumor: float = Field(0.5, ge=0, le=1, description="share of the slides with tumor")
    micro: float = Field(0.15, ge=0, le=1, description="share of the tumor slides that have only foci below 0.3 mm")
    sites: int = Field(3, ge=1, description="number of sites, each with its own stain")
    pen: float = Field(0.2, ge=0, le=1, description="share of the slides with pen marks")

    @model_validator(mode="after")
    def _sides_are_ordered(self) -> SyntheticSlidesConfig:
        if self.side_mm_min > self.side_mm_max:
            raise ValueError(f"side_mm_min {self.side_mm_min} is above side_mm_max {self.side_mm_max}")
        return self


SPLIT_QUOTA = {"train": 5, "val": 2, "test": 3}
SHARED_PATIENT = 0.3


class Stream(IntEnum):
    """The purpose of a random stream; the numbers determine what a seed produces and must not change."""

    PLAN = 0
    SITE = 1
    LAYOUT = 2
    CELLS = 3
    STAIN = 4
    ARTIFACTS = 5
    RENDERING = 6


@dataclass(frozen=True, slots=True)
class SlidePlan(PlannedSlide):
    """One planned slide."""

    has_tumor: bool

    @property
    def label(self) -> str:
        """The label as written to the manifest."""
        return "tumor" if self.has_tumor else "normal"


def plan_slides(config: SyntheticSlidesConfig) -> list[SlidePlan]:
    """The slides of the cohort, in order.

    Some pairs of slides with the same split and label belong to one patient.
    """
    of_label: dict[tuple[str, bool], int] = {}
    first_slide_of: dict[tuple[int, ...], int] = {}
    plans = []
    for index, (split, rank_in_part) in enumerate(parts_by_quota(config.slides, SPLIT_QUOTA)):
        # of the first n slides of a split, ceil(n share) have tumor
        has_tumor = ceil((rank_in_part + 1) * config.tumor) > ceil(rank_in_part * config.tumor)
        rank = of_label.get((split, has_tumor), 0)
        of_label[split, has_tumor] = rank + 1
        pair, member = divmod(rank, 2)
        of_pair = (list(SPLIT_QUOTA).index(split), int(has_tumor), pair)
        shared = generator(config.seed, Stream.PLAN, 0, *of_pair).random() < SHARED_PATIENT
        address = (*of_pair, 0 if shared else member)
        patient = first_slide_of.setdefault(address, index)
        site = int(generator(config.seed, Stream.PLAN, 1, *address).integers(config.sites))
        plans.append(SlidePlan(index, slide_name(index), patient_name(patient), split, site, has_tumor))
    return plans
