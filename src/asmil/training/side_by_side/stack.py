"""The stacked tensors of R models of the same architecture, and their optimizers, with one step count per model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

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
    by_input: matrices that are stored column by column
    """

    def __init__(
        self,
        group: int,
        classes: frozenset[int],
        names: Sequence[str],
        owned: Sequence[Mapping[str, Tensor]],
        by_input: frozenset[str] = frozenset(),
    ) -> None:
        self.group, self.classes = group, classes
        self.by_input = by_input.intersection(names)
        self.shapes = {name: self.stored(name, owned[0][name]).shape for name in names}
        self.values = self.joined([{name: own[name].detach() for name in names} for own in owned])

    def stored(self, name: str, value: Tensor) -> Tensor:
        """A parameter, ... x its shape, with its axes in the order in which they are stored, or the inverse."""
        return value.mT if name in self.by_input else value

    def joined(self, tensors: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """The parameters of n trainings, or tensors of the same shapes, as n x P."""
        return torch.stack(
            [torch.cat([self.stored(name, own[name]).flatten() for name in self.shapes]) for own in tensors]
        )

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """... x P -> each parameter, ... x its shape, as a view."""
        parts = values.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        return {
            name: self.stored(name, part.view(*values.shape[:-1], *shape))
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def row_of(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The gradients of n trainings, n x ... each, as n x P; copied if there are several, or stored otherwise."""
        parts = [self.stored(name, gradients[name]).reshape(-1, shape.numel()) for name, shape in self.shapes.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


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

    by_input: whether the weights of linear layers are stored column by column: a CPU multiplies a few rows with them
        in half the time, and their gradients come in this order
    trained: the parameters that the loss reaches
    fixed: all other tensors
    has_copies: whether EMA copies move with every step
    """

    def __init__(
        self, trainers: Sequence[Trainer], rehearsal: Rehearsal, build: BuildOptimizer, by_input: bool
    ) -> None:
        self._trainers = trainers
        self._owned = [_named_tensors(BagLoss(trainer)) for trainer in trainers]
        matrices = _linear_weights(rehearsal.form) if by_input else frozenset[str]()
        self._blocks = _blocks(trainers[0], self._owned, rehearsal.reached, matrices)
        self.trained = {name: value for block in self._blocks for name, value in block.split(block.values).items()}
        self.fixed = {
            name: _stacked([own[name].detach() for own in self._owned], by_input=name in matrices)
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

    def release(self) -> None:
        """Give every training tensors of its own again, stored row by row as if it had been trained alone."""
        for own in self._owned:
            for name in self.trained | self.fixed:
                own[name].data = own[name].data.clone(memory_format=torch.contiguous_format)

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
        tables = [block.row_of(gradients) for block in self._blocks]
        clip_rows(self._blocks, self._options[0], tables, clip_norm)
        by_rate: dict[tuple[int, float, float], tuple[list[Tensor], list[Tensor]]] = {}
        for block, own, table in zip(self._blocks, self._rows, tables, strict=True):
            for number, slot in slots.items():
                if labels[number] in block.classes:
                    options = self._options[number][block.group]
                    rate = block.group, options["base_lr"] * factors[number], options["weight_decay"]
                    rows, of_rows = by_rate.setdefault(rate, ([], []))
                    rows.append(own[number])
                    of_rows.append(table[slot])
        for (group, lr, decay), (rows, of_rows) in by_rate.items():
            self._step_rows({**self._options[0][group], "lr": lr, "weight_decay": decay}, rows, of_rows)

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
    trainer: Trainer,
    owned: Sequence[Mapping[str, Tensor]],
    reached: Mapping[str, frozenset[int]],
    by_input: frozenset[str],
) -> list[Block]:
    """The blocks of the parameters that are reached; a large one is a block of its own."""
    names = {id(tensor): name for name, tensor in owned[0].items()}
    together: dict[tuple[int, frozenset[int], str], list[str]] = {}
    for group, options in enumerate(trainer.optimizer.param_groups):
        for parameter in options["params"]:
            name = names[id(parameter)]
            own = name if parameter.numel() >= LARGE else ""
            if name in reached:
                together.setdefault((group, reached[name], own), []).append(name)
    return [Block(group, classes, joined, owned, by_input) for (group, classes, _), joined in together.items()]


def _linear_weights(form: BagLoss) -> frozenset[str]:
    """The names of the weights of linear layers, whose products with rows are x @ W.t()."""
    layers = (name for name, module in form.named_modules() if isinstance(module, nn.Linear))
    return frozenset(f"{name}.weight" for name in layers)


def _stacked(tensors: Sequence[Tensor], *, by_input: bool) -> Tensor:
    return torch.stack([tensor.mT for tensor in tensors]).mT if by_input else torch.stack(list(tensors))


def _named_tensors(form: BagLoss) -> dict[str, Tensor]:
    return dict(form.named_parameters()) | dict(form.named_buffers())


def _over(per_training: Tensor, values: Tensor) -> Tensor:
    """R -> R x 1 x ... x 1."""
    return per_training.view(-1, *(1,) * (values.ndim - 1))
