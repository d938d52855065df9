"""The two streams of DSMIL, shared by the methods that build on it.

    c_i   = W_0 x_i + b_0                                 stream 1: every tile is classified
    m_k   = argmax_i c_ik                                 the critical tile of class k
    z_ik  = q(x_i) . q(x_{m_k}) / sqrt(Q)                 stream 2: how alike a tile is to the critical one
    B_k   = sum_i softmax(z_:k)_i v(x_i)
    bag logits = W [B_1; ...; B_C] + b                    every class reads the bag vectors of all classes

The head is what the official code writes as a convolution whose kernel is as long as a bag vector.
A linear q folds away: z_ik = (W_q^T q(x_{m_k})) . x_i + q(x_{m_k}) . b_q, so no tile's query is formed: N D C products
instead of N D Q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.attention.normalizers import Normalizer
from asmil.errors import AsmilError
from asmil.models.base import Loss, Output
from asmil.models.blocks.layers import TileLinear, floating
from asmil.models.blocks.randomness import Dropout
from asmil.models.official import Tensors, renamed
from asmil.tasks.base import Task

Query = Literal["linear", "nonlinear"]
Prediction = Literal["bag", "mean"]
LossKind = Literal["task", "bce"]
"""`task`: the task's own loss. `bce`: binary cross-entropy of every output against the one-hot class."""


@dataclass(frozen=True)
class TwoStreams:
    """The results of both streams for the tiles, before pooling.

    instance_logits: N x C; max_logits, critical: C, of the critical tiles; scores: C x N
    """

    instance_logits: Tensor
    max_logits: Tensor
    critical: Tensor
    scores: Tensor


class DualStream(nn.Module):
    """Instance classifier, query map and value map: everything before the head.

    query_hidden: the width inside the nonlinear query (by default `query_width`)
    values: v is dropout, a linear layer and ReLU; otherwise v is the identity
    """

    def __init__(
        self,
        in_features: int,
        n_outputs: int,
        *,
        query: Query = "nonlinear",
        query_width: int = 128,
        query_hidden: int | None = None,
        values: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.instance = nn.Linear(in_features, n_outputs)
        hidden = query_width if query_hidden is None else query_hidden
        widths = [(in_features, query_width)] if query == "linear" else [(in_features, hidden), (hidden, query_width)]
        self.query = nn.ModuleList(TileLinear(before, after) for before, after in widths)
        self.scale = 1 / math.sqrt(query_width)
        self.value = TileLinear(in_features, in_features) if values else None
        self.dropout = Dropout(dropout)

    def forward(
        self, features: Tensor, normalizer: Normalizer, mask: Tensor | None = None
    ) -> tuple[TwoStreams, Tensor]:
        """N x D -> the results of the streams for the tiles, and the bag vectors (C x D); mask: N, true for tiles."""
        features = self.as_computed(features)
        streams = self.attend(features, mask)
        return streams, self.pool(normalizer(streams.scores), features)

    def as_computed(self, features: Tensor) -> Tensor:
        """The features in the type of the products, converted once for all of them."""
        device = features.device.type
        autocast = torch.is_autocast_enabled(device)
        return features.to(torch.get_autocast_dtype(device) if autocast else self.instance.weight.dtype)

    def attend(self, features: Tensor, mask: Tensor | None = None) -> TwoStreams:
        """Both streams up to the scores; no value is formed. features: `as_computed`; mask: N, true for tiles."""
        layer = self.instance
        per_class = torch.addmm(layer.bias.unsqueeze(1), layer.weight, features.t())
        compared = per_class.detach()
        critical = (compared if mask is None else compared.masked_fill(~mask, -torch.inf)).argmax(dim=1)
        tiles = features[critical]
        # Read at the critical tiles alone: the same numbers, and the backward pass leaves the other tiles out.
        max_logits = (layer.weight * tiles).sum(dim=1) + layer.bias
        scores = self._scores(tiles, features)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return TwoStreams(per_class.t(), max_logits, critical, scores)

    def pool(self, attention: Tensor, features: Tensor) -> Tensor:
        """The bag vector of every class: C x N and N x D -> C x D."""
        values = features if self.value is None else functional.relu(self.value(self.dropout(features)))
        return attention.to(values.dtype) @ values

    def _scores(self, tiles: Tensor, features: Tensor) -> Tensor:
        """C x D and N x D -> C x N."""
        queries = self._queries(tiles) * self.scale
        if len(self.query) > 1:
            return queries @ self._queries(features).t()
        (layer,) = self.query
        assert isinstance(layer, nn.Linear)
        vectors, constants = queries @ layer.weight, queries @ layer.bias
        return torch.addmm(constants.unsqueeze(1).to(vectors.dtype), vectors, features.t())

    def _queries(self, rows: Tensor) -> Tensor:
        queries: Tensor = self.query[0](rows)
        return torch.tanh(self.query[1](functional.relu_(queries))) if len(self.query) > 1 else queries


STREAM_LOGITS = ("bag_logits", "max_logits")
"""Extras of `two_stream_output` that `two_stream_loss` compares with the target."""


def two_stream_output(streams: TwoStreams, pooled: Tensor, bag_logits: Tensor, predict: Prediction = "bag") -> Output:
    """The output of a method with two streams; `predict` decides what its logits are. pooled: C x D."""
    extras = {"max_logits": streams.max_logits, "bag_logits": bag_logits, "critical_index": streams.critical}
    logits = bag_logits if predict == "bag" else mean_prediction(streams.max_logits, bag_logits)
    return Output(logits, streams.scores, pooled.flatten(), streams.instance_logits, extras)


def mean_prediction(first: Tensor, second: Tensor) -> Tensor:
    """Logits (C) whose probabilities are the mean of those of two sets of logits.

    They are log-probabilities, up to a constant; with a single output, the logit of the mean of two sigmoids.
    """
    if len(first) > 1:
        return torch.logaddexp(first.log_softmax(dim=0), second.log_softmax(dim=0)) - math.log(2)
    positive = torch.logaddexp(functional.logsigmoid(first), functional.logsigmoid(second))
    negative = torch.logaddexp(functional.logsigmoid(-first), functional.logsigmoid(-second))
    return positive - negative


def two_stream_loss(outputs: Sequence[Output], targets: Tensor, task: Task, kind: LossKind = "task") -> Loss:
    """Half the loss of the bag logits and half that of the critical tiles' logits (`max`)."""
    bag, critical = (torch.stack([output.extras[name] for output in outputs]) for name in STREAM_LOGITS)
    name = task.loss_name if kind == "task" else kind
    parts = {name: logits_loss(kind, bag, targets, task), "max": logits_loss(kind, critical, targets, task)}
    return Loss(0.5 * parts[name] + 0.5 * parts["max"], parts)


INSTANCE, HEAD = "i_classifier.fc.0", "b_classifier.fcc"
LINEAR_QUERY, NONLINEAR_QUERY = ("b_classifier.q",), ("b_classifier.q.0", "b_classifier.q.2")


def official_layers(query: Sequence[str]) -> tuple[str, ...]:
    """The layers that identify the official layout with this query."""
    return (INSTANCE, *query, HEAD)


def from_official(tensors: Tensors, query: Sequence[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options of `DualStream`, and the state of a model with its `streams` and `head`, from an official layout."""
    layers = {"streams.instance": INSTANCE, "head": HEAD}
    layers |= {f"streams.query.{i}": layer for i, layer in enumerate(query)}
    values = "b_classifier.v.1.weight" in tensors
    if values:
        layers["streams.value"] = "b_classifier.v.1"
    state = renamed(tensors, layers)
    state["head.weight"] = state["head.weight"].flatten(start_dim=1)
    options = {
        "query": "linear" if len(query) == 1 else "nonlinear",
        "query_width": len(state[f"streams.query.{len(query) - 1}.weight"]),
        "query_hidden": len(state["streams.query.0.weight"]) if len(query) > 1 else None,
        "values": values,
    }
    return options, state


def logits_loss(kind: LossKind, logits: Tensor, targets: Tensor, task: Task) -> Tensor:
    """The mean loss over the bags of a step, of the given kind: logits B x C."""
    if kind == "task":
        return task.loss(logits, targets)
    classes = task.class_index(targets)
    if classes is None:
        raise AsmilError("model.loss = bce needs classes, and the task has none; set model.loss=task")
    return multilabel_bce(logits, classes)


def multilabel_bce(logits: Tensor, classes: Tensor) -> Tensor:
    """Binary cross-entropy with logits, mean over bags and outputs: logits B x C, classes B.

    A class index of C or more (the negative class) is the vector of zeros; with one output the class is the target.
    """
    logits = floating(logits)
    n_outputs = logits.shape[1]
    positive = 1 if n_outputs == 1 else torch.arange(n_outputs, device=logits.device)
    wanted = (classes.unsqueeze(1) == positive).to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, wanted)
