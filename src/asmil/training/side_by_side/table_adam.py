"""Adam and AdamW for the stacked parameters of many trainings, with one kernel per block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from asmil.training.side_by_side.kernels import adam_kernel
from asmil.training.side_by_side.stack import Block, clip_rows, options_of

VALUES_PER_PROGRAM, MOST_COLUMNS = 2048, 64


class TableAdam:
    """The optimizer of the settings, on one table per block; who steps is decided on the device.

    optimizers: of each training; they may differ in learning rate and weight decay
    counts: blocks x R, the steps that the parameters of each block have taken
    reached: blocks x classes, whether bags of a class reach the parameters of a block
    """

    def __init__(self, blocks: Sequence[Block], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._blocks, self._options = blocks, options_of(optimizers[0])
        self._decouples = isinstance(optimizers[0], torch.optim.AdamW)
        device, trainings = blocks[0].values.device, len(blocks[0].values)
        self._rates, self._decays = (
            torch.tensor(
                [[group[name] for group in own.param_groups] for own in optimizers], device=device
            ).T.contiguous()
            for name in ("base_lr", "weight_decay")
        )
        self._moments = [{key: torch.zeros_like(block.values) for key in ("exp_avg", "exp_avg_sq")} for block in blocks]
        self.counts = torch.zeros(len(blocks), trainings, device=device)
        classes = range(1 + max(max(block.classes) for block in blocks))
        self.reached = torch.tensor(
            [[label in block.classes for label in classes] for block in blocks], dtype=torch.int8, device=device
        )

    @staticmethod
    def can_replace(optimizer: torch.optim.Optimizer) -> bool:
        """Whether this computes the steps of an optimizer."""
        return isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)

    def states(self, block: int, number: int) -> dict[str, dict[str, Tensor]]:
        """The state of each parameter of a block in a training; the moments are views."""
        moments = {key: self._blocks[block].split(value[number]) for key, value in self._moments[block].items()}
        return {
            name: {"step": self.counts[block, number].clone(), **{key: parts[name] for key, parts in moments.items()}}
            for name in self._blocks[block].shapes
        }

    def set_state(self, block: int, number: int, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Replace the states of the parameters of a block in a training."""
        self.counts[block, number] = next(iter(states.values()))["step"]
        for key, table in self._moments[block].items():
            table[number] = self._blocks[block].joined([{name: state[key] for name, state in states.items()}])[0]

    @torch.no_grad()
    def step_slots(
        self,
        gradients: Mapping[str, Tensor],
        training: Tensor,
        takes: Tensor,
        target: Tensor,
        factor: Tensor,
        clip_norm: float | None,
    ) -> None:
        """A step of n slots; the caller counts it in `counts`.

        gradients: n x ... of each parameter
        training, takes, target, factor: n; see `kernels.py`
        """
        clips = clip_norm is not None or any(options.get("clip_norm") is not None for options in self._options)
        tables = [
            gradients[next(iter(block.shapes))] if len(block.shapes) == 1 and not clips else block.row_of(gradients)
            for block in self._blocks
        ]
        if clips:
            clip_rows(self._blocks, self._options, tables, clip_norm)
        for number, (block, table) in enumerate(zip(self._blocks, tables, strict=True)):
            gradient = table.flatten(1, -2) if table.ndim > 2 else table.unsqueeze(1)
            height, width = gradient.shape[1:]
            columns = min(MOST_COLUMNS if height > 1 else VALUES_PER_PROGRAM, _power_of_2(width))
            rows = min(VALUES_PER_PROGRAM // columns, _power_of_2(height))
            options, moments = self._options[block.group], self._moments[number]
            beta1, beta2 = options["betas"]
            adam_kernel[(-(-height // rows) * -(-width // columns), len(gradient))](
                block.values, moments["exp_avg"], moments["exp_avg_sq"], gradient, training, takes, target, factor,
                self.reached[number], self.counts[number], height, width, *gradient.stride(),
                self._rates[block.group], self._decays[block.group], _log(beta1), _log(beta2), 1 - beta1, 1 - beta2,
                options["eps"], self._decouples, rows, columns,
            )  # fmt: skip


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


def _power_of_2(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
