"""Run a model on many bags at once: the bags are padded to one length, and the padding is masked.

A model is written for one bag; `torch.vmap` derives the batched form. Results are those of the bags one by one, up to
rounding. `padding_from` of a method states whether, and from how many tiles on, its bags may be padded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor, nn
from torch.func import vmap

from asmil.cohort.bag import Bag, PaddedBags
from asmil.errors import AsmilError
from asmil.models.base import MILModel, Output
from asmil.models.blocks.randomness import batched_draws


def keeps_statistics(part: nn.Module) -> bool:
    """Whether every bag in training changes the running statistics of a module."""
    return isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats


def refuse_batches(model: MILModel, what: str) -> None:
    """Raise if a method needs its bags one by one, in training or eval mode."""
    if model.batch_from is None or (model.training and any(map(keeps_statistics, model.modules()))):
        raise AsmilError(
            f"{what}: {type(model).__name__} with these settings needs its bags one by one, since padding would change "
            "its results; use training.accumulate for several bags per step"
        )


def run_batch(model: MILModel, batch: PaddedBags) -> list[Output]:
    """The outputs of the bags of a batch, as `model(bag)` gives each; scores and tile logits without the padding.

    Further tensors (`extras`) that belong to tiles keep the padded length.

    >>> import asmil, torch
    >>> model = asmil.build("abmil", in_features=8, n_outputs=2)
    >>> bags = [asmil.Bag(torch.randn(n, 8)) for n in (5, 3)]
    >>> outputs = run_batch(model, asmil.Bag.collate(bags))
    >>> [tuple(output.scores.shape) for output in outputs]
    [(1, 5), (1, 3)]
    """
    refuse_batches(model, "a batch")
    fewest = model.batch_from or 1
    for name, size in zip(batch.ids, batch.sizes, strict=True):
        if size < min(fewest, batch.features.shape[1]):
            raise AsmilError(
                f"{name}: its {size} tiles are too few to be padded, {type(model).__name__} needs {fewest} for that; "
                "give this bag to the model alone"
            )
    outputs, _ = run_padded(model, batch.features, batch.mask)
    for output, size in zip(outputs, batch.sizes, strict=True):
        if output.scores is not None:
            output.scores = output.scores[:, :size]
        if output.instance_logits is not None:
            output.instance_logits = output.instance_logits[:size]
    return outputs


def run_padded(model: MILModel, features: Tensor, mask: Tensor) -> tuple[list[Output], Tensor | None]:
    """Outputs for B x L x D features and B x L masks, and all their scores, B x A x L.

    Scores keep the padding, minus infinity there.
    """

    def tensors(bag: Bag) -> dict[str, Any]:
        output: Output = model(bag)
        values = {field.name: getattr(output, field.name) for field in fields(Output)}
        return {name: value for name, value in values.items() if value is not None}

    stacked = over_bags(tensors, features, mask)
    extras = {name: value.unbind() for name, value in stacked.pop("extras").items()}
    parts = {"scores": [None] * len(features)} | {name: value.unbind() for name, value in stacked.items()}
    outputs = [
        Output(
            **{name: values[i] for name, values in parts.items()},
            extras={name: values[i] for name, values in extras.items()},
        )
        for i in range(len(features))
    ]
    return outputs, stacked.get("scores")


def over_bags(read: Callable[[Bag], Any], features: Tensor, mask: Tensor) -> Any:
    """`read` of every bag of B x L x D features and B x L masks; its tensors get a first axis of B."""

    def read_bag(rows: Tensor, tiles: Tensor) -> Any:
        return read(Bag(rows, mask=tiles, validated=True))

    with batched_draws():
        return vmap(read_bag, randomness="different")(features, mask)
