"""Settings of synthetic cohorts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from asmil.config import Settings

CLASS_NAMES = {2: ("normal", "tumor"), 3: ("benign", "atypical", "malignant")}
DIFFICULTIES = {"easy": 0.7, "medium": 1.0, "hard": 1.6}
MEDIUM_SEPARATION = 4.0

Share = Annotated[float, Field(ge=0, le=1)]
Shift = Annotated[float, Field(ge=0)]


class SyntheticConfig(Settings):
    """Settings of a synthetic cohort. Lengths in feature space are in units of the isotropic tile noise.

    slides: total number; they are split 200 : 65 : 100 into train, val and test, or as given by `quota`
    classes: 2 (normal, tumor) or 3 ordered ones (benign, atypical, malignant)
    width: number of features of a tile
    tiles_min, tiles_max: the number of tiles is log-uniform between them
    witness_min, witness_max: the share of lesion tiles on a slide that has any is log-uniform between them
    difficulty: `easy`, `medium`, `hard`, or a number: the distance of a tumor morphology from the normal
        tissue it resembles is 4 / difficulty standard deviations of that tissue (Mahalanobis)
    sites: number of sites of the training and validation sets
    test_sites: number of additional, unseen sites of the test set
    site_bias: probability that a training patient comes from a site chosen by the label
    site_shift, stain_shift, patient_shift: expected length of the offsets shared by all tiles of a slide
    paired: probability that two neighboring slides of a split belong to one patient
    clusters: number of kinds of normal tissue
    """

    slides: int = Field(60, ge=1)
    classes: Literal[2, 3] = 2
    width: int = Field(384, ge=16)
    tiles_min: int = Field(200, ge=20)
    tiles_max: int = Field(5000, ge=20)
    witness_min: float = Field(0.005, gt=0, le=0.5)
    witness_max: float = Field(0.20, gt=0, le=0.5)
    difficulty: float | str = "medium"
    sites: int = Field(4, ge=1)
    test_sites: int = Field(1, ge=1)
    quota: tuple[int, int, int] = (200, 65, 100)
    site_bias: Share = 0.6
    site_shift: Shift = 1.5
    stain_shift: Shift = 1.0
    patient_shift: Shift = 0.7
    paired: Share = 0.3
    clusters: int = Field(20, ge=3)
    seed: int = Field(0, ge=0)

    @field_validator("difficulty")
    @classmethod
    def _difficulty_is_known(cls, value: float | str) -> float | str:
        if value not in DIFFICULTIES and (isinstance(value, str) or not value > 0):
            raise ValueError(f"give {', '.join(DIFFICULTIES)} or a number above 0")
        return value

    @model_validator(mode="after")
    def _ranges_are_ordered(self) -> SyntheticConfig:
        if self.tiles_min > self.tiles_max:
            raise ValueError(f"tiles_min {self.tiles_min} is above tiles_max {self.tiles_max}")
        if self.witness_min > self.witness_max:
            raise ValueError(f"witness_min {self.witness_min} is above witness_max {self.witness_max}")
        if min(self.quota) < 0 or not sum(self.quota):
            raise ValueError(f"quota {list(self.quota)}: give three non-negative integers, not all 0")
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """The labels, from the mildest to the worst."""
        return CLASS_NAMES[self.classes]

    @property
    def separation(self) -> float:
        """Mahalanobis distance of a tumor morphology from the normal tissue it resembles."""
        factor = DIFFICULTIES[self.difficulty] if isinstance(self.difficulty, str) else self.difficulty
        return MEDIUM_SEPARATION / factor
