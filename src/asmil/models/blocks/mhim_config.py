"""The settings of MHIM-MIL, and what its authors chose for each version and base."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal

from pydantic import Field

from asmil.models.blocks.activations import Activation
from asmil.models.blocks.embedding import EmbeddingConfig

Schedule = Literal["constant", "cosine"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings whose official values depend on version and base; the names are those of `MHIMConfig`."""

    mask_random: float
    mask_low: float
    mask_high: float
    high_share: float
    high_decay: bool
    consistency_weight: float
    momentum: float
    momentum_schedule: Schedule
    activation: Literal["relu", "gelu"]


CAMELYON16_ABMIL = Recipe(0.5, 0.0, 0.01, 0.5, True, 0.1, 0.9999, "constant", "relu")
CAMELYON16_TRANSMIL = Recipe(0.0, 0.8, 0.03, 0.5, True, 0.1, 0.9999, "cosine", "relu")
SECOND_VERSION = Recipe(0.0, 0.0, 0.03, 1.0, False, 0.5, 0.9997, "constant", "gelu")
"""The authors search the high ratio in 0.01, 0.03, 0.05, `merge_ratio` in 0.8, 0.9 and `merge_k` in 1, 5, 10."""


class MHIMConfig(EmbeddingConfig):
    """Architecture and masking of MHIM-MIL; null is the official choice for `version` and `base`."""

    version: Literal[1, 2] = Field(1, description="1: rank by attention; 2: rank class-aware and merge tiles")
    base: Literal["abmil", "transmil", "dsmil"] = Field("abmil", description="the network that is masked")
    activation: Literal["relu", "gelu"] | None = Field(None, description="of the embedding; null: v1 relu, v2 gelu")
    dropout: float = Field(0.25, ge=0, lt=1, description="on the embedded tiles")
    attention: int = Field(128, ge=1, description="abmil: width of the attention network")
    attention_activation: Activation = Field("relu", description="abmil: in the attention network")
    heads: int = Field(8, ge=1, description="transmil: attention heads")
    head_width: int | None = Field(None, ge=1, description="transmil: width of a head; null: they share the tokens'")
    landmarks: int | None = Field(None, ge=1, description="transmil: of the Nystrom attention; null: half the width")
    iterations: int = Field(6, ge=1, description="transmil: of the pseudo-inverse")
    mask_random: float | None = Field(None, ge=0, le=1, description="r, ratio of the tiles masked at random")
    mask_low: float | None = Field(None, ge=0, le=1, description="l, ratio of the lowest tiles, which are masked")
    mask_high: float | None = Field(None, ge=0, le=1, description="h, ratio of the highest tiles, which are masked")
    high_share: float | None = Field(
        None, gt=0, le=1, description="s: not the h highest are masked but a random share s of the h / s highest"
    )
    high_decay: bool | None = Field(None, description="h falls to 0 over the training, along a cosine")
    consistency_weight: float | None = Field(None, ge=0, description="alpha, of the pull towards the teacher's feature")
    teacher_temperature: float = Field(0.1, gt=0, description="t_T")
    student_temperature: float = Field(1.0, gt=0, description="t_S")
    momentum: float | None = Field(None, ge=0, le=1, description="mm, of the teacher")
    momentum_schedule: Schedule | None = Field(None, description="cosine: mm rises to 1 over the training")
    pretrain: bool = Field(True, description="train the network alone first, and start the teacher from it")
    merge_k: int = Field(5, ge=0, description="v2: tokens that the merged tiles become; 0 merges none")
    merge_ratio: float = Field(0.9, ge=0, le=1, description="v2: share of the kept tiles that are not merged")
    merge_momentum: float = Field(0.9999, ge=0, le=1, description="v2: of the merging queries")
    merge_heads: int = Field(8, ge=1, description="v2: heads of the merging attention")
    merge_head_width: int = Field(64, ge=1, description="v2: width of such a head")
    merge_test: bool = Field(False, description="v2: at inference add tokens made of all tiles")

    @property
    def merges(self) -> bool:
        """Whether tiles are merged into tokens."""
        return self.version == 2 and self.merge_k > 0

    def recipe(self) -> Recipe:
        """The official settings for version and base, with the given ones on top."""
        official = CAMELYON16_TRANSMIL if self.base == "transmil" else CAMELYON16_ABMIL
        if self.version == 2:
            official = SECOND_VERSION
        given = {name: getattr(self, name) for name in asdict(official)}
        return replace(official, **{name: value for name, value in given.items() if value is not None})
