"""Methods that are built on another method, their base, and share its attention."""

from __future__ import annotations

from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output


class ModelOnBase(MILModel):
    """A model whose scores, heat map and rules for bags are those of `base`; a subclass sets `base` and `forward`."""

    base: MILModel

    def current_base(self) -> MILModel:
        """The base, which reads the normalizer that this model has now; a state dict holds it once."""
        self.base._modules.pop("normalizer", None)
        object.__setattr__(self.base, "normalizer", self.normalizer)
        return self.base

    @property
    def normalizer_built_in(self) -> bool:
        return self.base.normalizer_built_in

    @property
    def padding_from(self) -> int | None:
        return self.base.padding_from

    @property
    def can_stream(self) -> bool:
        return self.current_base().can_stream

    def attend(self, bag: Bag) -> Tensor:
        return self.current_base().attend(bag)

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        return self.current_base().draw_tile_map(output, kind)
