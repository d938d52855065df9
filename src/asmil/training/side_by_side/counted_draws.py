"""Random numbers on a GPU: a function of the training, the number of its step and the index of a value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asmil.training.loop import Trainer
from asmil.training.side_by_side.draws import StackedDraws
from asmil.training.side_by_side.kernels import draw_kernel
from asmil.training.side_by_side.rehearsal import BagLoss

BLOCK = 256


class CountedDraws(StackedDraws):
    """All trainings draw with one kernel per use; who takes part in a step, and its padding, change nothing.

    keys: R, a random number for each training
    steps: R, the number of its next step
    """

    def __init__(self, form: BagLoss, trainers: Sequence[Trainer], like: Tensor, target: Tensor) -> None:
        super().__init__(form, [trainer.generator for trainer in trainers], like, target)
        self.as_plain = False
        self.keys = torch.tensor([trainer.random_key for trainer in trainers], device=like.device)
        self.steps = torch.tensor([trainer.progress.step for trainer in trainers], device=like.device)

    def draw(self, trainings: Sequence[int | None], lengths: Sequence[int], padded: int) -> list[Tensor]:
        """The random numbers of a step, n x ... each; see `StackedDraws.draw`."""
        numbers = torch.tensor([number or 0 for number in trainings], device=self.keys.device)
        return self.of_seeds((self.keys[numbers] << 32) | self.steps[numbers], padded)

    def of_seeds(self, seeds: Tensor, rows: int) -> list[Tensor]:
        """The random numbers of a step of n slots with these seeds, for bags of this many rows."""
        return [self._draw(seeds, number, use.shape, use.p) for number, use in enumerate(self._uses(rows))]

    def _draw(self, seeds: Tensor, use: int, shape: tuple[int, ...], p: float | None) -> Tensor:
        out = torch.empty(len(seeds), *shape, device=seeds.device)
        *outer, middle, inner = (1, 1, *shape)
        outermost = torch.Size(outer).numel()
        blocks = -(-outermost * middle * -(-inner // 4) // BLOCK)
        drops = p is not None
        factor = 1 / (1 - p) if p is not None else 1.0
        draw_kernel[(blocks, len(seeds))](seeds, out, use, p or 0.0, factor, outermost, middle, inner, drops, BLOCK)
        return out
