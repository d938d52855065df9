"""The stacked tensors of R models of the same architecture, and their optimizers, with one step count per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asmil.attention.ema import EmaCopy
from asmil.training.loop import Trainer
from asmil.training.side_by_side.rehearsal import BagLoss, Rehearsal


class Block(NamedTuple):
    """Trained parameters that are always stepped together: of one optimizer group, reached by the same classes.

    group: index of the optimizer group
    classes: the classes whose bags reach the parameters
    names: the parameters
    """

    group: int
    classes: frozenset[int]
    names: list[str]


class Stack:
    """All tensors of R trainings, R x ... each, by their names in a `BagLoss`.

    The models, stabilizers and optimizers of the trainings become views of these tensors, so that the training loop
    reads and saves them as they are.

    trained: the parameters that the loss reaches
    fixed: all other tensors
    """

    def __init__(self, trainers: Sequence[Trainer], rehearsal: Rehearsal) -> None:
        self._trainers = trainers
        self._owned = [_named_tensors(BagLoss(trainer)) for trainer in trainers]
        blocks = _blocks(trainers[0], self._owned[0], rehearsal.reached)
        moved = [name for block in blocks for name in block.names]
        stacked = {
            name: torch.stack([own[name].detach() for own in self._owned])
            for name in [*moved, *(name for name in _named_tensors(rehearsal.form) if name not in moved)]
        }
        self.trained = {name: stacked[name] for name in moved}
        self.fixed = {name: value for name, value in stacked.items() if name not in self.trained}
        self.buffers = [name for name, _ in rehearsal.form.named_buffers() if name in self.fixed]
        self.optimizer = RowOptimizer(self.trained, blocks, trainers[0].optimizer)
        self._copies = {
            f"stabilizers.{name}.copy.": stabilizer
            for name, stabilizer in rehearsal.form.stabilizers.items()
            if isinstance(stabilizer, EmaCopy) and stabilizer.update_when == "step"
        }
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
        """The trained parameters of some trainings (None: of all), as leaves of a new graph, and all other tensors."""
        trained, fixed = (
            {name: value if numbers is None else value.index_select(0, numbers) for name, value in part.items()}
            for part in (self.trained, self.fixed)
        )
        return {name: value.detach().requires_grad_() for name, value in trained.items()}, fixed

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
    def set_buffers(self, values: Mapping[str, Tensor], chosen: Tensor) -> None:
        """Replace buffers in the chosen trainings (R booleans); values: R x ..."""
        for name, value in values.items():
            self.fixed[name].copy_(torch.where(_over(chosen, value), value, self.fixed[name]))

    def _adopt_moments(self) -> None:
        """Take over the optimizer states of trainings that are resumed."""
        for number, (trainer, own) in enumerate(zip(self._trainers, self._owned, strict=True)):
            for name in self.trained:
                state = trainer.optimizer.state.get(own[name]) or {}
                self.optimizer.state(name, number).update((key, value.clone()) for key, value in state.items())

    def share_moments(self, number: int) -> None:
        """Give the optimizer of a training its state, so that it can be saved."""
        trainer, own = self._trainers[number], self._owned[number]
        for name in self.trained:
            trainer.optimizer.state[own[name]] = dict(self.optimizer.state(name, number))


class RowOptimizer:
    """The optimizer of the settings, with the rows of all stacked parameters as its parameters.

    It does not change a row without gradient, its moments or its step count.
    """

    def __init__(
        self, trained: Mapping[str, Tensor], blocks: Sequence[Block], optimizer: torch.optim.Optimizer
    ) -> None:
        self._blocks = blocks
        self._options = [
            {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
        ]
        self._rows = {name: values.unbind() for name, values in trained.items()}
        rows = [row for own in self._rows.values() for row in own]
        self._optimizer = type(optimizer)([{"params": rows}])  # type: ignore[call-arg]
        self._update: Any = {torch.optim.Adam: torch._fused_adam_, torch.optim.AdamW: torch._fused_adamw_}.get(
            type(optimizer)
        )

    def state(self, name: str, number: int) -> dict[str, Tensor]:
        """The state of a training's row of a parameter; empty before its first step."""
        state: dict[str, Tensor] = self._optimizer.state[self._rows[name][number]]
        return state

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
        self._clip(gradients, clip_norm)
        # the fused step reads gradients in the order of the memory
        rows = {name: gradient.contiguous().unbind() for name, gradient in gradients.items()}
        by_rate: dict[tuple[int, float], list[tuple[int, str]]] = {}
        for number in slots:
            for block in self._blocks:
                if labels[number] in block.classes:
                    members = by_rate.setdefault((block.group, factors[number]), [])
                    members += [(number, name) for name in block.names]
        for (group, factor), members in by_rate.items():
            self._step_rows(
                self._options[group],
                self._options[group]["base_lr"] * factor,
                [self._rows[name][number] for number, name in members],
                [rows[name][slots[number]] for number, name in members],
            )

    def _step_rows(self, options: Mapping[str, Any], lr: float, rows: list[Tensor], gradients: list[Tensor]) -> None:
        if self._update is None:
            for row, gradient in zip(rows, gradients, strict=True):
                row.grad = gradient
            self._optimizer.param_groups = [{**options, "lr": lr, "params": rows}]
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
            lr=lr,
            beta1=options["betas"][0],
            beta2=options["betas"][1],
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _clip(self, gradients: Mapping[str, Tensor], clip_norm: float | None) -> None:
        """Clip the norm of the gradient of each training, as `clip_gradients` does for one model."""
        limits = [options.get("clip_norm") for options in self._options]
        for limit, groups in [
            *((own, {group}) for group, own in enumerate(limits) if own is not None),
            (clip_norm, {group for group, own in enumerate(limits) if own is None}),
        ]:
            clipped = [gradients[name] for block in self._blocks if block.group in groups for name in block.names]
            if limit is None or not clipped:
                continue
            norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in clipped])
            factor = (limit / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
            for gradient in clipped:
                gradient.mul_(_over(factor, gradient))


def _blocks(trainer: Trainer, owned: Mapping[str, Tensor], reached: Mapping[str, frozenset[int]]) -> list[Block]:
    names = {id(tensor): name for name, tensor in owned.items()}
    blocks: dict[tuple[int, frozenset[int]], Block] = {}
    for group, options in enumerate(trainer.optimizer.param_groups):
        for parameter in options["params"]:
            name = names[id(parameter)]
            if name in reached:
                blocks.setdefault((group, reached[name]), Block(group, reached[name], [])).names.append(name)
    return list(blocks.values())


def _named_tensors(form: BagLoss) -> dict[str, Tensor]:
    return dict(form.named_parameters()) | dict(form.named_buffers())


def _over(per_training: Tensor, values: Tensor) -> Tensor:
    """R -> R x 1 x ... x 1."""
    return per_training.view(-1, *(1,) * (values.ndim - 1))
