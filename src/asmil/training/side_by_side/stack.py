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
    shapes: the parameters, by name
    """

    group: int
    classes: frozenset[int]
    shapes: dict[str, torch.Size]


class Stack:
    """All tensors of R trainings, R x ... each, by their names in a `BagLoss`.

    The trained parameters of a block are in one matrix with one row per training. The models, stabilizers and
    optimizers of the trainings become views of these tensors, so that the training loop reads and saves them as they
    are.
    """

    def __init__(self, trainers: Sequence[Trainer], rehearsal: Rehearsal) -> None:
        self._trainers = trainers
        self._owned = [_named_tensors(BagLoss(trainer)) for trainer in trainers]
        self.blocks = _blocks(trainers[0], self._owned[0], rehearsal.reached)
        self.rows = [self._joined(block.shapes, self._owned) for block in self.blocks]
        moved = {name for block in self.blocks for name in block.shapes}
        self.fixed = {
            name: torch.stack([own[name].detach() for own in self._owned])
            for name in _named_tensors(rehearsal.form)
            if name not in moved
        }
        self.buffers = [name for name, _ in rehearsal.form.named_buffers() if name in self.fixed]
        groups = trainers[0].optimizer.param_groups
        self.optimizer = RowOptimizer(self.rows, self.blocks, groups, type(trainers[0].optimizer))
        self._copies = {
            f"stabilizers.{name}.copy.": stabilizer
            for name, stabilizer in rehearsal.form.stabilizers.items()
            if isinstance(stabilizer, EmaCopy) and stabilizer.update_when == "step"
        }
        self._adopt_moments()

    def bind(self, form: BagLoss) -> None:
        """Turn the tensors of the trainings into views of the stacked ones; what the form dropped is dropped."""
        stacked = self.tensors(self.rows)
        for number, (trainer, own) in enumerate(zip(self._trainers, self._owned, strict=True)):
            for name, stabilizer in trainer.stabilizers.items():
                if isinstance(stabilizer, EmaCopy):
                    state, kept = stabilizer.state_dict(), form.stabilizers[name].state_dict()
                    stabilizer.load_state_dict({key: state[key] for key in kept})
            for name, values in stacked.items():
                own[name].data = values[number]

    def tensors(self, rows: Sequence[Tensor], chosen: Tensor | None = None) -> dict[str, Tensor]:
        """Every tensor of the form, n x ..., of all trainings or of some.

        rows: the rows of these trainings in each block
        chosen: n, which trainings; None: all
        """
        tensors = dict(self.fixed)
        if chosen is not None:
            tensors = {name: value.index_select(0, chosen) for name, value in tensors.items()}
        for matrix, block in zip(rows, self.blocks, strict=True):
            parts = matrix.split([shape.numel() for shape in block.shapes.values()], dim=1)
            for (name, shape), part in zip(block.shapes.items(), parts, strict=True):
                tensors[name] = part.view(-1, *shape)
        return tensors

    @torch.no_grad()
    def move_copies(self, active: Tensor) -> None:
        """Update the EMA copies that move with every step, in the active trainings (R booleans)."""
        online = self.tensors(self.rows) if self._copies else {}
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

    @torch.no_grad()
    def _adopt_moments(self) -> None:
        """Take over the optimizer states of trainings that are resumed."""
        for index, block in enumerate(self.blocks):
            for number, (trainer, own) in enumerate(zip(self._trainers, self._owned, strict=True)):
                states = {name: trainer.optimizer.state.get(own[name]) or {} for name in block.shapes}
                self.optimizer.state(index, number).update(
                    (key, value.clone() if key == "step" else self._joined(block.shapes, [states], key)[0])
                    for key, value in next(iter(states.values())).items()
                )

    @torch.no_grad()
    def share_moments(self, number: int) -> None:
        """Give the optimizer of a training its state, so that it can be saved."""
        trainer, own = self._trainers[number], self._owned[number]
        for index, block in enumerate(self.blocks):
            state = self.optimizer.state(index, number)
            sizes = [shape.numel() for shape in block.shapes.values()]
            parts = {key: value.split(sizes) for key, value in state.items() if key != "step"}
            for i, (name, shape) in enumerate(block.shapes.items()):
                moments = {key: values[i].view(shape) for key, values in parts.items()}
                trainer.optimizer.state[own[name]] = {"step": state["step"].clone(), **moments} if state else {}

    @staticmethod
    def _joined(names: Sequence[str] | Mapping[str, Any], owned: Sequence[Mapping[str, Any]], key: str = "") -> Tensor:
        """Some tensors of every training in one row each; key: the tensors are in states, under this key."""
        return torch.stack(
            [torch.cat([(own[name][key] if key else own[name]).detach().flatten() for name in names]) for own in owned]
        )


class RowOptimizer:
    """The optimizer of the settings, with the rows of all blocks as its parameters.

    It does not change a row without gradient, its moments or its step count.
    """

    def __init__(
        self,
        rows: Sequence[Tensor],
        blocks: Sequence[Block],
        groups: Sequence[Mapping[str, Any]],
        kind: type[torch.optim.Optimizer],
    ) -> None:
        self._blocks = blocks
        self._options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        self._rows = [matrix.unbind() for matrix in rows]
        self._optimizer = kind([{"params": [row for own in self._rows for row in own]}])  # type: ignore[call-arg]
        self._update = {torch.optim.Adam: torch._fused_adam_, torch.optim.AdamW: torch._fused_adamw_}.get(kind)

    def state(self, block: int, number: int) -> dict[str, Tensor]:
        """The state of a training's row in a block; empty before its first step."""
        state: dict[str, Tensor] = self._optimizer.state[self._rows[block][number]]
        return state

    @torch.no_grad()
    def step(
        self,
        gradients: Sequence[Tensor],
        slots: Mapping[int, int],
        labels: Mapping[int, int],
        factors: Mapping[int, float],
        clip_norm: float | None,
    ) -> None:
        """A step of some trainings.

        gradients: n x P of each block
        slots: the row of each training in the gradients
        labels: the class of each training's bag
        factors: each training's factor of the base learning rate
        """
        gradients = self._clipped(gradients, clip_norm)
        for number, slot in slots.items():
            for group, options in enumerate(self._options):
                reached = [
                    index
                    for index, block in enumerate(self._blocks)
                    if block.group == group and labels[number] in block.classes
                ]
                if reached:
                    lr = options["base_lr"] * factors[number]
                    self._step_rows(options, lr, number, reached, [gradients[index][slot] for index in reached])

    def _step_rows(
        self, options: Mapping[str, Any], lr: float, number: int, blocks: Sequence[int], gradients: list[Tensor]
    ) -> None:
        rows = [self._rows[index][number] for index in blocks]
        if self._update is None:
            for row, gradient in zip(rows, gradients, strict=True):
                row.grad = gradient
            self._optimizer.param_groups = [{**options, "lr": lr, "params": rows}]
            self._optimizer.step()
            for row in rows:
                row.grad = None
            return
        states = [self._adam_state(row) for row in rows]
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

    def _adam_state(self, row: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self._optimizer.state[row]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=row.device)
            state["exp_avg"] = torch.zeros_like(row)
            state["exp_avg_sq"] = torch.zeros_like(row)
        return state

    def _clipped(self, gradients: Sequence[Tensor], clip_norm: float | None) -> Sequence[Tensor]:
        """The gradients with the norm of each training clipped, as `clip_gradients` does for one model."""
        limits = [options.get("clip_norm") for options in self._options]
        for limit, groups in [
            *((own, {group}) for group, own in enumerate(limits) if own is not None),
            (clip_norm, {group for group, own in enumerate(limits) if own is None}),
        ]:
            members = [i for i, block in enumerate(self._blocks) if block.group in groups]
            if limit is None or not members:
                continue
            norms = torch.stack([torch.linalg.vector_norm(gradients[i], dim=1) for i in members])
            factor = (limit / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
            for i in members:
                gradients[i].mul_(factor.unsqueeze(1))
        return gradients


def _blocks(
    trainer: Trainer, owned: Mapping[str, Tensor], reached: Mapping[str, frozenset[int]]
) -> list[Block]:
    names = {id(tensor): name for name, tensor in owned.items()}
    blocks: dict[tuple[int, frozenset[int]], Block] = {}
    for group, options in enumerate(trainer.optimizer.param_groups):
        for parameter in options["params"]:
            name = names[id(parameter)]
            if name in reached:
                block = blocks.setdefault((group, reached[name]), Block(group, reached[name], {}))
                block.shapes[name] = parameter.shape
    return list(blocks.values())


def _named_tensors(form: BagLoss) -> dict[str, Tensor]:
    return dict(form.named_parameters()) | dict(form.named_buffers())


def _over(per_training: Tensor, values: Tensor) -> Tensor:
    """R -> R x 1 x ... x 1."""
    return per_training.view(-1, *(1,) * (values.ndim - 1))
