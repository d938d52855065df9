"""The stacked tensors of R models of the same architecture, and their optimizer, with one step count per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asmil.attention.ema import EmaCopy
from asmil.training.lockstep.rehearsal import BagLoss, Rehearsal
from asmil.training.loop import Trainer


class Stack:
    """All tensors of R replicas, R x ... each, by their names in a `BagLoss`.

    The trained parameters of one optimizer group are in one matrix with one row per replica. An optimizer with the rows
    as its parameters takes R steps at once; it does not change a row without gradient, its moments or its step count.
    """

    def __init__(self, trainers: Sequence[Trainer], rehearsal: Rehearsal) -> None:
        forms = [BagLoss(trainer) for trainer in trainers]
        names = {id(parameter): name for name, parameter in forms[0].named_parameters()}
        groups = [
            ([name for name in map(names.__getitem__, map(id, group["params"])) if name in rehearsal.reached], group)
            for group in trainers[0].optimizer.param_groups
        ]
        groups = [(trained, group) for trained, group in groups if trained]
        tensors = [dict(form.named_parameters()) | dict(form.named_buffers()) for form in forms]
        self._shapes = [{name: tensors[0][name].shape for name in trained} for trained, _ in groups]
        self.rows = [
            torch.stack(
                [torch.cat([own[name].detach().flatten() for name in trained]) for own in tensors]
            ).requires_grad_()
            for trained, _ in groups
        ]
        moved = {name for trained, _ in groups for name in trained}
        kept = [*dict(rehearsal.form.named_parameters()), *dict(rehearsal.form.named_buffers())]
        self.fixed = {name: torch.stack([own[name].detach() for own in tensors]) for name in kept if name not in moved}
        self.buffers = [name for name, _ in rehearsal.form.named_buffers() if name in self.fixed]
        self.optimizer = RowOptimizer(self.rows, [group for _, group in groups], type(trainers[0].optimizer))
        self._copies = _ema_copies(rehearsal.form)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the form, R x ..., with gradients to `rows`."""
        found = dict(self.fixed)
        for rows, shapes in zip(self.rows, self._shapes, strict=True):
            parts = rows.split([shape.numel() for shape in shapes.values()], dim=1)
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                found[name] = part.view(-1, *shape)
        return found

    @torch.no_grad()
    def move_copies(self, when: str, active: Tensor) -> None:
        """Update the EMA copies that are due at `when`, in the active replicas (R booleans)."""
        for prefix, copied in self._copies.items():
            if copied.update_when != when:
                continue
            online = self.tensors()
            share = (1.0 - copied.momentum) * active
            for name, mine in self.fixed.items():
                if not name.startswith(prefix):
                    continue
                theirs = online["model." + name.removeprefix(prefix)]
                if name in self.buffers:
                    self.fixed[name] = torch.where(_over(active, mine), theirs, mine)
                else:
                    mine.lerp_(theirs, _over(share, mine))

    @torch.no_grad()
    def set_buffers(self, values: Mapping[str, Tensor], chosen: Tensor) -> None:
        """Replace buffers in the chosen replicas (R booleans)."""
        for name, value in values.items():
            self.fixed[name] = torch.where(_over(chosen, value), value, self.fixed[name])


class RowOptimizer:
    """The optimizer of the settings, with the rows of all matrices as its parameters."""

    def __init__(
        self, rows: Sequence[Tensor], groups: Sequence[Mapping[str, Any]], kind: type[torch.optim.Optimizer]
    ) -> None:
        self._options = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        self._rows = [[row.requires_grad_() for row in matrix.detach().unbind()] for matrix in rows]
        self._optimizer = kind(self._by_factor(dict.fromkeys(range(len(rows[0])), 1.0)))  # type: ignore[call-arg]

    def step(self, gradients: Sequence[Tensor], factors: Mapping[int, float], clip_norm: float | None) -> None:
        """A step of the replicas in `factors`, which maps each to its factor of the base learning rate."""
        for own, gradient in zip(self._rows, gradients, strict=True):
            for replica in factors:
                own[replica].grad = gradient[replica]
        for replica in factors:
            self._clip(replica, clip_norm)
        # the optimizer state belongs to the row, so rows with the same learning rate can form one group
        self._optimizer.param_groups = self._by_factor(factors)
        self._optimizer.step()

    def _by_factor(self, factors: Mapping[int, float]) -> list[dict[str, Any]]:
        return [
            {**options, "lr": options["base_lr"] * factor, "params": [own[r] for r in factors if factors[r] == factor]}
            for options, own in zip(self._options, self._rows, strict=True)
            for factor in set(factors.values())
        ]

    def _clip(self, replica: int, clip_norm: float | None) -> None:
        """Clip the gradient of one replica, like `clip_gradients` for one model."""
        shared: list[Tensor] = []
        for options, own in zip(self._options, self._rows, strict=True):
            if options.get("clip_norm") is None:
                shared.append(own[replica])
            else:
                nn.utils.clip_grad_norm_(own[replica], options["clip_norm"])
        if clip_norm is not None and shared:
            nn.utils.clip_grad_norm_(shared, clip_norm)


def _ema_copies(form: BagLoss) -> dict[str, EmaCopy]:
    """The EMA copies by the prefix of their tensor names."""
    return {
        f"stabilizers.{name}.copy.": stabilizer
        for name, stabilizer in form.stabilizers.items()
        if isinstance(stabilizer, EmaCopy)
    }


def _over(per_replica: Tensor, values: Tensor) -> Tensor:
    """R -> R x 1 x ... x 1."""
    return per_replica.view(-1, *(1,) * (values.ndim - 1))
