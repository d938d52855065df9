"""The stacked tensors of R models of the same architecture, and their optimizers, with one step count per model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from asmil.attention.ema import EmaCopy
from asmil.training.loop import Trainer
from asmil.training.side_by_side.rehearsal import BagLoss, Rehearsal

LARGE = 4096
"""Values of a parameter from which on copying its gradient takes longer than starting another kernel."""


class Block:
    """Trained parameters that are always stepped together: of one optimizer group, reached by the same classes.

    The parameters of a training are one row of a table, so that an optimizer steps them as one tensor.

    group: index of the optimizer group
    classes: the classes whose bags reach the parameters
    values: R x P, the parameters of all trainings
    """

    def __init__(
        self, group: int, classes: frozenset[int], names: Sequence[str], owned: Sequence[Mapping[str, Tensor]]
    ) -> None:
        self.group, self.classes = group, classes
        self.shapes = {name: owned[0][name].shape for name in names}
        self.values = self.joined([{name: own[name].detach() for name in names} for own in owned])

    def joined(self, tensors: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """The parameters of n trainings, or tensors of the same shapes, as n x P."""
        return torch.stack([torch.cat([own[name].flatten() for name in self.shapes]) for own in tensors])

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """... x P -> each parameter, ... x its shape, as a view."""
        parts = values.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        return {
            name: part.view(*values.shape[:-1], *shape)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }


class StackedOptimizer(Protocol):
    """The optimizer of the settings for all trainings; its states can be saved and restored by training."""

    def states(self, block: int, number: int) -> dict[str, dict[str, Tensor]]:
        """The state of each parameter of a block in a training; empty before its first step."""
        ...

    def set_state(self, block: int, number: int, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Replace the states of the parameters of a block in a training."""
        ...


BuildOptimizer = Callable[[Sequence[Block], Sequence[torch.optim.Optimizer]], StackedOptimizer]


class Stack:
    """All tensors of R trainings, R x ... each, by their names in a `BagLoss`.

    The models, stabilizers and optimizers of the trainings become views of these tensors, so that the training loop
    reads and saves them as they are.

    large_apart: whether every large parameter is a block of its own
    trained: the parameters that the loss reaches
    fixed: all other tensors
    has_copies: whether EMA copies move with every step
    """

    def __init__(
        self, trainers: Sequence[Trainer], rehearsal: Rehearsal, build: BuildOptimizer, large_apart: bool
    ) -> None:
        self._trainers = trainers
        self._owned = [_named_tensors(BagLoss(trainer)) for trainer in trainers]
        self._blocks = _blocks(trainers[0], self._owned, rehearsal.reached, large_apart)
        self.trained = {name: value for block in self._blocks for name, value in block.split(block.values).items()}
        self.fixed = {
            name: torch.stack([own[name].detach() for own in self._owned])
            for name in _named_tensors(rehearsal.form)
            if name not in self.trained
        }
        self.buffers = [name for name, _ in rehearsal.form.named_buffers() if name in self.fixed]
        self._moving = rehearsal.moving
        self._optimizer = build(self._blocks, [trainer.optimizer for trainer in trainers])
        self._copies = {
            f"stabilizers.{name}.copy.": stabilizer
            for name, stabilizer in rehearsal.form.stabilizers.items()
            if isinstance(stabilizer, EmaCopy) and stabilizer.update_when == "step"
        }
        self.has_copies = bool(self._copies)
        self._adopt_moments()

    def bind(self, form: BagLoss) -> None:
        """Turn the tensors of the trainings into views of the stacked ones; what the form dropped is dropped."""
        for number, (trainer, own) in enumerate(zip(self._trainers, self._owned, strict=True)):
            for name, stabilizer in trainer.stabilizers.items():
                if isinstance(stabilizer, EmaCopy):
                    state, kept = stabilizer.state_dict(), form.stabilizers[name].state_dict()
                    stabilizer.load_state_dict({key: state[key] for key in kept})
            for name, values in (self.trained | self.fixed).items():
                own[name].data = values[number]

    def of(self, numbers: Tensor | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The trained parameters of some trainings (None: of all), as leaves of a new graph, and all other tensors.

        Buffers that a training pass changes are copies.
        """
        if numbers is None:
            copies = {name: self.fixed[name].clone() for name in self._moving}
            trained = {name: value.detach().requires_grad_() for name, value in self.trained.items()}
            return trained, self.fixed | copies
        fixed = {name: value.index_select(0, numbers) for name, value in self.fixed.items()}
        trained = {}
        for block in self._blocks:
            for name, value in block.split(block.values.index_select(0, numbers)).items():
                trained[name] = value.requires_grad_()
        return trained, fixed

    @torch.no_grad()
    def move_copies(self, active: Tensor) -> None:
        """Update the EMA copies that move with every step, in the active trainings (R booleans)."""
        online = self.trained | self.fixed
        for prefix, copied in self._copies.items():
            share = (1.0 - copied.momentum) * active
            for name, average in self.fixed.items():
                if not name.startswith(prefix):
                    continue
                current = online["model." + name.removeprefix(prefix)]
                if name in self.buffers:
                    average.copy_(torch.where(_over(active, average), current, average))
                else:
                    average.lerp_(current, _over(share, average))

    @torch.no_grad()
    def set_fixed(self, values: Mapping[str, Tensor], chosen: Tensor, numbers: Tensor | None = None) -> None:
        """Replace tensors that are not trained in the chosen trainings (R booleans).

        values: n x ... each, of the trainings `numbers` (None: of all)
        """
        for name, value in values.items():
            everyone = value if numbers is None else self.fixed[name].index_copy(0, numbers, value)
            self.fixed[name].copy_(torch.where(_over(chosen, everyone), everyone, self.fixed[name]))

    def _adopt_moments(self) -> None:
        """Take over the optimizer states of trainings that are resumed."""
        for number, (trainer, own) in enumerate(zip(self._trainers, self._owned, strict=True)):
            for index, block in enumerate(self._blocks):
                states = {name: trainer.optimizer.state.get(own[name]) or {} for name in block.shapes}
                if all(states.values()):
                    self._optimizer.set_state(index, number, states)

    def share_moments(self, number: int) -> None:
        """Give the optimizer of a training its state, so that it can be saved."""
        trainer, own = self._trainers[number], self._owned[number]
        for index in range(len(self._blocks)):
            for name, state in self._optimizer.states(index, number).items():
                trainer.optimizer.state[own[name]] = state


class RowOptimizer:
    """The optimizer of the settings, with the rows of all blocks as its parameters.

    It does not change a row without gradient, its moments or its step count.

    optimizers: of each training; they may differ in learning rate and weight decay
    """

    def __init__(self, blocks: Sequence[Block], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._blocks, optimizer = blocks, optimizers[0]
        self._options = [options_of(own) for own in optimizers]
        self._rows = [block.values.unbind() for block in blocks]
        self._optimizer = type(optimizer)([{"params": [row for rows in self._rows for row in rows]}])  # type: ignore[call-arg]
        fused: dict[type[torch.optim.Optimizer], Any] = {
            torch.optim.AdamW: torch._fused_adamw_,
            torch.optim.Adam: torch._fused_adam_,
        }
        self._update = next((update for kind, update in fused.items() if isinstance(optimizer, kind)), None)

    def states(self, block: int, number: int) -> dict[str, dict[str, Tensor]]:
        """The state of each parameter of a block in a training; empty before its first step."""
        state = self._optimizer.state[self._rows[block][number]]
        tables = {key: self._blocks[block].split(value) for key, value in state.items() if key != "step"}
        return {
            name: {key: tables[key][name] if key in tables else value.clone() for key, value in state.items()}
            for name in self._blocks[block].shapes
            if state
        }

    def set_state(self, block: int, number: int, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Replace the states of the parameters of a block in a training."""
        some = next(iter(states.values()))
        self._optimizer.state[self._rows[block][number]] = {
            key: value.clone()
            if key == "step"
            else self._blocks[block].joined([{name: state[key] for name, state in states.items()}])[0]
            for key, value in some.items()
        }

    @torch.no_grad()
    def step(
        self,
        gradients: Mapping[str, Tensor],
        slots: Mapping[int, int],
        labels: Mapping[int, int],
        factors: Mapping[int, float],
        clip_norm: float | None,
    ) -> None:
        """A step of some trainings.

        gradients: n x ... of each parameter
        slots: the row of each training in the gradients
        labels: the class of each training's bag
        factors: each training's factor of the base learning rate
        """
        tables = joined_gradients(self._blocks, gradients)
        clip_rows(self._blocks, self._options[0], tables, clip_norm)
        for block, own, table in zip(self._blocks, self._rows, tables, strict=True):
            rows = table.unbind()
            by_rate: dict[tuple[float, float], list[int]] = {}
            for number in slots:
                if labels[number] in block.classes:
                    options = self._options[number][block.group]
                    rate = options["base_lr"] * factors[number], options["weight_decay"]
                    by_rate.setdefault(rate, []).append(number)
            for (lr, decay), numbers in by_rate.items():
                options = {**self._options[0][block.group], "lr": lr, "weight_decay": decay}
                self._step_rows(
                    options, [own[number] for number in numbers], [rows[slots[number]] for number in numbers]
                )

    def _step_rows(self, options: Mapping[str, Any], rows: list[Tensor], gradients: list[Tensor]) -> None:
        if self._update is None:
            for row, gradient in zip(rows, gradients, strict=True):
                row.grad = gradient
            self._optimizer.param_groups = [{**options, "params": rows}]
            self._optimizer.step()
            for row in rows:
                row.grad = None
            return
        states = [self._optimizer.state[row] for row in rows]
        for row, state in zip(rows, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=row.device)
                state["exp_avg"] = torch.zeros_like(row)
                state["exp_avg_sq"] = torch.zeros_like(row)
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        self._update(
            rows,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=options["lr"],
            beta1=options["betas"][0],
            beta2=options["betas"][1],
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            amsgrad=False,
            maximize=False,
        )


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The options of every group of an optimizer."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def joined_gradients(blocks: Sequence[Block], gradients: Mapping[str, Tensor], *, copy: bool = True) -> list[Tensor]:
    """The gradients (n x ... each) of the parameters of each block, n x P.

    copy: False: the gradient of a block of a single parameter is returned as it is
    """
    return [
        gradients[next(iter(block.shapes))]
        if len(block.shapes) == 1 and not copy
        else torch.cat([gradients[name].reshape(-1, shape.numel()) for name, shape in block.shapes.items()], dim=1)
        for block in blocks
    ]


def clip_rows(
    blocks: Sequence[Block], options: Sequence[Mapping[str, Any]], tables: Sequence[Tensor], clip_norm: float | None
) -> None:
    """Clip the norm of the gradient of each training, as `clip_gradients` does for one model.

    options: of each optimizer group
    tables: n x P, the gradients of each block
    """
    limits = [own.get("clip_norm") for own in options]
    for limit, groups in [
        *((own, {group}) for group, own in enumerate(limits) if own is not None),
        (clip_norm, {group for group, own in enumerate(limits) if own is None}),
    ]:
        clipped = [table for block, table in zip(blocks, tables, strict=True) if block.group in groups]
        if limit is None or not clipped:
            continue
        norms = torch.stack([torch.linalg.vector_norm(table, dim=1) for table in clipped])
        factor = (limit / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
        for table in clipped:
            table.mul_(factor.unsqueeze(1))


def _blocks(
    trainer: Trainer, owned: Sequence[Mapping[str, Tensor]], reached: Mapping[str, frozenset[int]], large_apart: bool
) -> list[Block]:
    names = {id(tensor): name for name, tensor in owned[0].items()}
    together: dict[tuple[int, frozenset[int], str], list[str]] = {}
    for group, options in enumerate(trainer.optimizer.param_groups):
        for parameter in options["params"]:
            name = names[id(parameter)]
            own = name if large_apart and parameter.numel() >= LARGE else ""
            if name in reached:
                together.setdefault((group, reached[name], own), []).append(name)
    return [Block(group, classes, joined, owned) for (group, classes, _), joined in together.items()]


def _named_tensors(form: BagLoss) -> dict[str, Tensor]:
    return dict(form.named_parameters()) | dict(form.named_buffers())


def _over(per_training: Tensor, values: Tensor) -> Tensor:
    """R -> R x 1 x ... x 1."""
    return per_training.view(-1, *(1,) * (values.ndim - 1))
