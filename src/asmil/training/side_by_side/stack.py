"""The stacked tensors of R models of the same architecture, and their optimizer, with one step count per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asmil.attention.ema import EmaCopy
from asmil.training.loop import Trainer
from asmil.training.side_by_side.rehearsal import BagLoss, Rehearsal


class Stack:
    """All tensors of R trainings, R x ... each, by their names in a `BagLoss`.

    The trained parameters of one optimizer group are in one matrix with one row per training. An optimizer with the
    rows as its parameters takes R steps at once; it does not change a row without gradient, its moments or its step
    count. The models, stabilizers and optimizers of the trainings become views of these tensors, so that the training
    loop reads and saves them as they are.
    """

    def __init__(self, trainers: Sequence[Trainer], rehearsal: Rehearsal) -> None:
        self._trainers = trainers
        self._owned = [_named_tensors(BagLoss(trainer)) for trainer in trainers]
        names = {id(tensor): name for name, tensor in self._owned[0].items()}
        groups = [
            ([name for name in map(names.__getitem__, map(id, group["params"])) if name in rehearsal.reached], group)
            for group in trainers[0].optimizer.param_groups
        ]
        groups = [(trained, group) for trained, group in groups if trained]
        self._shapes = [{name: self._owned[0][name].shape for name in trained} for trained, _ in groups]
        self.rows = [self._joined(trained, self._owned).requires_grad_() for trained, _ in groups]
        moved = {name for trained, _ in groups for name in trained}
        self.fixed = {
            name: torch.stack([own[name].detach() for own in self._owned])
            for name in _named_tensors(rehearsal.form)
            if name not in moved
        }
        self.buffers = [name for name, _ in rehearsal.form.named_buffers() if name in self.fixed]
        self.optimizer = RowOptimizer(self.rows, [group for _, group in groups], type(trainers[0].optimizer))
        self._copies = {
            f"stabilizers.{name}.copy.": stabilizer
            for name, stabilizer in rehearsal.form.stabilizers.items()
            if isinstance(stabilizer, EmaCopy) and stabilizer.update_when == "step"
        }
        self._adopt_moments()

    def bind(self, form: BagLoss) -> None:
        """Turn the tensors of the trainings into views of the stacked ones; what the form dropped is dropped."""
        stacked = self.tensors()
        for number, (trainer, own) in enumerate(zip(self._trainers, self._owned, strict=True)):
            for name, stabilizer in trainer.stabilizers.items():
                if isinstance(stabilizer, EmaCopy):
                    state, kept = stabilizer.state_dict(), form.stabilizers[name].state_dict()
                    stabilizer.load_state_dict({key: state[key] for key in kept})
            for name, values in stacked.items():
                own[name].data = values.detach()[number]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the form, R x ..., with gradients to `rows`."""
        tensors = dict(self.fixed)
        for rows, shapes in zip(self.rows, self._shapes, strict=True):
            parts = rows.split([shape.numel() for shape in shapes.values()], dim=1)
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                tensors[name] = part.view(-1, *shape)
        return tensors

    @torch.no_grad()
    def move_copies(self, active: Tensor) -> None:
        """Update the EMA copies that move with every step, in the active trainings (R booleans)."""
        for prefix, copied in self._copies.items():
            online = self.tensors()
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
        """Replace buffers in the chosen trainings (R booleans)."""
        for name, value in values.items():
            self.fixed[name].copy_(torch.where(_over(chosen, value), value, self.fixed[name]))

    @torch.no_grad()
    def _adopt_moments(self) -> None:
        """Take over the optimizer states of trainings that are resumed."""
        for group, shapes in enumerate(self._shapes):
            for number, (trainer, own) in enumerate(zip(self._trainers, self._owned, strict=True)):
                states = {name: trainer.optimizer.state.get(own[name]) or {} for name in shapes}
                self.optimizer.state(group, number).update(
                    (key, value.clone() if key == "step" else self._joined(shapes, [states], key)[0])
                    for key, value in next(iter(states.values())).items()
                )

    @torch.no_grad()
    def share_moments(self, number: int) -> None:
        """Give the optimizer of a training its state, so that it can be saved."""
        trainer, own = self._trainers[number], self._owned[number]
        for group, shapes in enumerate(self._shapes):
            state = self.optimizer.state(group, number)
            sizes = [shape.numel() for shape in shapes.values()]
            parts = {key: value.split(sizes) for key, value in state.items() if key != "step"}
            for i, (name, shape) in enumerate(shapes.items()):
                moments = {key: values[i].view(shape) for key, values in parts.items()}
                trainer.optimizer.state[own[name]] = {"step": state["step"].clone(), **moments} if state else {}

    @staticmethod
    def _joined(names: Sequence[str] | Mapping[str, Any], owned: Sequence[Mapping[str, Any]], key: str = "") -> Tensor:
        """Some tensors of every training in one row each; key: the tensors are in states, under this key."""
        return torch.stack(
            [torch.cat([(own[name][key] if key else own[name]).detach().flatten() for name in names]) for own in owned]
        )


class RowOptimizer:
    """The optimizer of the settings, with the rows of all matrices as its parameters."""

    def __init__(
        self, rows: Sequence[Tensor], groups: Sequence[Mapping[str, Any]], kind: type[torch.optim.Optimizer]
    ) -> None:
        self._options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        self._rows = [[row.requires_grad_() for row in matrix.detach().unbind()] for matrix in rows]
        self._optimizer = kind(self._by_factor(dict.fromkeys(range(len(rows[0])), 1.0)))  # type: ignore[call-arg]

    def state(self, group: int, number: int) -> dict[str, Tensor]:
        """The state of a training's row in a group; empty before its first step."""
        state: dict[str, Tensor] = self._optimizer.state[self._rows[group][number]]
        return state

    def step(self, gradients: Sequence[Tensor], factors: Mapping[int, float], clip_norm: float | None) -> None:
        """A step of the trainings in `factors`, which maps each to its factor of the base learning rate."""
        for own, gradient in zip(self._rows, gradients, strict=True):
            for number in factors:
                own[number].grad = gradient[number]
        for number in factors:
            self._clip(number, clip_norm)
        # the optimizer state belongs to the row, so rows with the same learning rate can form one group
        self._optimizer.param_groups = self._by_factor(factors)
        self._optimizer.step()

    def _by_factor(self, factors: Mapping[int, float]) -> list[dict[str, Any]]:
        return [
            {**options, "lr": options["base_lr"] * factor, "params": [own[r] for r in factors if factors[r] == factor]}
            for options, own in zip(self._options, self._rows, strict=True)
            for factor in set(factors.values())
        ]

    def _clip(self, number: int, clip_norm: float | None) -> None:
        """Clip the gradient of one training, like `clip_gradients` for one model."""
        shared: list[Tensor] = []
        for options, own in zip(self._options, self._rows, strict=True):
            if options.get("clip_norm") is None:
                shared.append(own[number])
            else:
                nn.utils.clip_grad_norm_(own[number], options["clip_norm"])
        if clip_norm is not None and shared:
            nn.utils.clip_grad_norm_(shared, clip_norm)


def _named_tensors(form: BagLoss) -> dict[str, Tensor]:
    return dict(form.named_parameters()) | dict(form.named_buffers())


def _over(per_training: Tensor, values: Tensor) -> Tensor:
    """R -> R x 1 x ... x 1."""
    return per_training.view(-1, *(1,) * (values.ndim - 1))
