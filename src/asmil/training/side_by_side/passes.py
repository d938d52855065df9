"""Parts of a training pass as one kernel each, forward and backward, in the recorded steps of many trainings.

    embedding        h = ReLU(W x + b), with dropout: everything after the product
    scores           z = w . (tanh(V h + b_V) * sigmoid(U h + b_U)) + b_w, with dropout: everything after both products
    pooling          softmax(z) h
    head             a linear layer with few outputs, of few rows
    cross-entropy    of each slide
    anchor           KL(t || softmax(z)) with t from a softmax or a normalized sigmoid
    clustering loss  of CLAM, with cross-entropy: from the choice of the tiles to the loss

The bags are short, so what counts is how many kernels a step has. Random numbers are those of `CountedDraws`, in the
order of the operations that are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.attention import divergences
from asmil.attention.normalizers import NSF, Normalizer, Softmax
from asmil.cohort.bag import Bag
from asmil.models import clam, hdmil
from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Output
from asmil.models.blocks import instance_loss
from asmil.models.blocks.embedding import TileEmbedding
from asmil.models.blocks.instance_loss import InstanceLossConfig, excludes
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.training.side_by_side.counted_draws import CountedDraws
from asmil.training.side_by_side.pass_kernels import (
    cluster_backward,
    cluster_forward,
    cross_entropy_kernel,
    gate_backward,
    gate_forward,
    head_backward,
    head_forward,
    kl_kernel,
    pool_backward,
    pool_forward,
    relu_backward,
    relu_forward,
)
from asmil.training.side_by_side.plain_forms import Replacement, plain_cross_entropy, plain_kl_to_softmax, plain_linear
from asmil.training.side_by_side.stacked_function import StackedFunction

ROWS, COLUMNS = 16, 64
"""A program computes so many tiles and values of each at once; half of the ones or the others if it goes over many."""
MOST_TILES = 2048
"""Tiles of a bag whose scores one program holds at once."""
FEW = 16
"""Rows and outputs of a head up to which it is no matrix product."""
CHOSEN_COLUMNS = 512
"""Values of the chosen tiles that it reads at once: there is one program per bag, and it waits for its memory."""


def single_passes(draws: CountedDraws) -> list[Replacement]:
    """The operations that are replaced, and their forms with these random numbers."""
    plain_layer, plain_scores, plain_pool = TileEmbedding.layer, ScoreNetwork.forward, AttentionPoolModel.pool_bag
    plain_logits, plain_clustering = instance_loss.cluster_logits, instance_loss._any_class

    def layer(embedding: TileEmbedding, linear: nn.Linear, rows: Tensor, drops: bool) -> Tensor:
        if embedding.activation is not functional.relu_:
            return plain_layer(embedding, linear, rows, drops)
        p = _probability(embedding.dropout) if drops else 0.0
        return _ReluDropout.apply(rows @ linear.weight.t(), linear.bias, *draws.take(1, p), p)  # type: ignore[no-untyped-call, no-any-return]

    def attend(network: ScoreNetwork, embedded: Tensor, mask: Tensor | None, *, pools: bool) -> tuple[Tensor, ...]:
        assert network.gate is not None
        layers, p = (network.value, network.gate, network.weight), _probability(network.dropout)
        parameters = (parameter for layer in layers for parameter in (layer.weight, layer.bias))
        return _GatedAttention.apply(embedded, *parameters, mask, *draws.take(2, p), p, pools)  # type: ignore[no-untyped-call, no-any-return]

    def scores(network: ScoreNetwork, embedded: Tensor) -> Tensor:
        if not _is_gated(network):
            return plain_scores(network, embedded)
        return attend(network, embedded, None, pools=False)[0]

    def pool_bag(model: AttentionPoolModel, embedded: Tensor, bag: Bag) -> tuple[Tensor, ...]:
        if not _is_gated_pool(model):
            return plain_pool(model, embedded, bag)
        assert isinstance(model.attention, ScoreNetwork)
        return attend(model.attention, embedded, bag.mask, pools=True)[:2]

    def logits_of_clusters(
        embedded: Tensor,
        scores: Tensor,
        heads: Iterable[nn.Linear],
        config: InstanceLossConfig,
        mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        if config.instance_loss != "ce" or len(embedded) > MOST_TILES:
            return plain_logits(embedded, scores, heads, config, mask)
        weights, biases = (torch.stack([getattr(head, name) for head in heads]) for name in ("weight", "bias"))
        inputs = {"embedded": embedded, "scores": scores.detach(), "mask": mask, "weights": weights, "biases": biases}
        return {f"cluster_{name}": value for name, value in inputs.items() if value is not None}

    def clustering(output: Output, label: Tensor, config: InstanceLossConfig) -> Tensor:
        extras = output.extras
        if "cluster_embedded" not in extras:
            return plain_clustering(output, label, config)
        inputs = (extras.get(f"cluster_{name}") for name in ("embedded", "scores", "mask", "weights", "biases"))
        is_half, excluding = config.k_rule == "half", excludes(config, len(output.logits))
        return _Clustering.apply(*inputs, label[0], config.k_sample, is_half, excluding)[0]  # type: ignore[no-untyped-call, no-any-return]

    return [
        (TileEmbedding, "layer", layer),
        (ScoreNetwork, "forward", scores),
        (AttentionPoolModel, "pool_bag", pool_bag),
        (nn.Linear, "forward", _linear),
        (functional, "cross_entropy", _cross_entropy),
        (divergences._KLToSoftmax, "apply", staticmethod(_kl_to_softmax)),
        (instance_loss, "_any_class", clustering),
        *((method, "cluster_logits", logits_of_clusters) for method in (clam, hdmil)),
    ]


def _probability(dropout: Dropout) -> float:
    return dropout.p if dropout.training else 0.0


def _is_gated(network: nn.Module) -> bool:
    return isinstance(network, ScoreNetwork) and network.gate is not None and network.is_tanh


def _is_gated_pool(model: AttentionPoolModel) -> bool:
    """Whether a method pools by the softmax of gated scores, and nothing else."""
    normalizer, own = model.normalizer, type(model)
    scores = own.score is AttentionPoolModel.score and own.score_bag is AttentionPoolModel.score_bag
    is_softmax = type(normalizer) is Softmax and normalizer.temperature == 1.0
    return scores and is_softmax and not model.smoothed and _is_gated(model.attention)


def _linear(layer: nn.Linear, rows: Tensor) -> Tensor:
    if rows.ndim > 2 or layer.out_features > FEW or rows.numel() > FEW * layer.in_features:
        return plain_linear(layer, rows)
    heads = _Head.apply(rows.reshape(-1, layer.in_features), layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return heads.view(*rows.shape[:-1], layer.out_features)  # type: ignore[no-any-return]


def _cross_entropy(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    if options != {"reduction": "none"} or logits.ndim != 2 or targets.is_floating_point():
        return plain_cross_entropy(logits, targets, **options)
    return _CrossEntropy.apply(logits, targets)[0]  # type: ignore[no-untyped-call, no-any-return]


def _kl_to_softmax(target_scores: Tensor, normalizer: Normalizer, scores: Tensor) -> Tensor:
    if type(normalizer) not in (Softmax, NSF) or scores.shape[1] > MOST_TILES:
        return plain_kl_to_softmax(target_scores, normalizer, scores)
    assert isinstance(normalizer, Softmax | NSF)
    is_sigmoid = type(normalizer) is NSF
    return _KL.apply(target_scores.detach(), scores, normalizer.temperature, is_sigmoid)[0]  # type: ignore[no-untyped-call, no-any-return]


class _ReluDropout(StackedFunction):
    """Products, n x N x I, and the bias, n x I -> n x N x I."""

    @staticmethod
    def forward(products: Tensor, bias: Tensor | None, seeds: Tensor, use: int, p: float) -> Tensor:
        products, (count, rows, width) = products.contiguous(), products.shape
        out = torch.empty_like(products)
        relu_forward[(_blocks(rows, ROWS) * _blocks(width, COLUMNS), count)](
            products, *_with_stride(bias), seeds, out, use, p, 1 / (1 - p), rows, width, p > 0, ROWS, COLUMNS
        )
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.has_bias, ctx.p = inputs[1] is not None, inputs[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (out,), gradient = ctx.saved_tensors, gradients[0].contiguous()
        count, rows, width = out.shape
        of_products = torch.empty_like(out)
        of_bias = out.new_empty(count, width, dtype=torch.float32) if ctx.has_bias else None
        relu_backward[(_blocks(width, COLUMNS // 2), count)](
            out, gradient, of_products, of_bias, 1 / (1 - ctx.p), rows, width, ROWS, COLUMNS // 2
        )
        return of_products, of_bias, None, None, None


class _GatedAttention(StackedFunction):
    """The scores, n x K x N, if it `pools` the pooled tiles, n x K x I, and for the backward pass both products.

    embedded: n x N x I; value, gate: n x L x I; weight: n x K x L; their biases: n x L, n x L, n x K; mask: n x N
    """

    @staticmethod
    def forward(
        embedded: Tensor,
        value: Tensor,
        value_bias: Tensor | None,
        gate: Tensor,
        gate_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        seeds: Tensor,
        use: int,
        p: float,
        pools: bool,
    ) -> tuple[Tensor, ...]:
        embedded, values, gates = embedded.contiguous(), embedded @ value.mT, embedded @ gate.mT
        (count, rows, hidden), branches, width = values.shape, weight.shape[1], embedded.shape[2]
        scores = values.new_empty(count, branches, rows, dtype=torch.float32)
        gate_forward[(_blocks(rows, ROWS // 2), count)](
            values, gates, *_with_stride(value_bias), *_with_stride(gate_bias), *_with_stride(weight),
            *_with_stride(bias), seeds, None if mask is None else mask.contiguous().view(torch.int8), scores, use, p,
            1 / (1 - p), rows, hidden, branches, p > 0, _power_of_2(branches), ROWS // 2, COLUMNS,
        )  # fmt: skip
        if not pools:
            return scores, values, gates
        pooled = embedded.new_empty(count, branches, width)
        pool_forward[(_blocks(width, COLUMNS // 2), branches, count)](
            embedded, scores, pooled, rows, width, branches, ROWS, COLUMNS // 2
        )
        return scores, pooled, values, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, _, seeds, ctx.use, ctx.p, pools = inputs
        ctx.mark_non_differentiable(*output[-2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, seeds, *(output if pools else (output[0], None, *output[1:])))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        embedded, value, value_bias, gate, gate_bias, weight, bias, seeds, scores, pooled, values, gates = (
            ctx.saved_tensors
        )
        (count, rows, hidden), branches, width = values.shape, weight.shape[1], embedded.shape[2]
        of_scores, of_pooled = gradients[0], None if pooled is None else gradients[1]
        if of_scores is not None:
            of_scores = of_scores.contiguous()
        of_embedded = torch.empty_like(embedded)
        if of_pooled is not None:
            of_own, of_scores = of_scores, torch.empty_like(scores)
            pool_backward[(_blocks(rows, ROWS // 2), count)](
                embedded, scores, pooled, of_pooled.contiguous(), of_own, of_scores, of_embedded, rows, width, branches,
                _power_of_2(branches), ROWS // 2, COLUMNS,
            )  # fmt: skip
        of_values, of_gates = torch.empty_like(values), torch.empty_like(gates)
        of_value_bias, of_gate_bias, of_weight, of_bias = (
            None if one is None else one.new_empty(one.shape) for one in (value_bias, gate_bias, weight, bias)
        )
        gate_backward[(_blocks(hidden, COLUMNS // 2), count)](
            values, gates, *_with_stride(value_bias), *_with_stride(gate_bias), *_with_stride(weight), seeds,
            of_scores, of_values, of_gates, of_value_bias, of_gate_bias, of_weight, of_bias, ctx.use, ctx.p,
            1 / (1 - ctx.p), rows, hidden, branches, ctx.p > 0, _power_of_2(branches), ROWS, COLUMNS // 2,
        )  # fmt: skip
        kind = values.dtype
        of_value, of_gate = (products.mT @ embedded.to(kind) for products in (of_values, of_gates))
        # added in place, which takes no operation of its own
        of_embedded.baddbmm_(of_values, value.to(kind), beta=0 if of_pooled is None else 1)
        of_embedded.baddbmm_(of_gates, gate.to(kind))
        found = of_value, of_value_bias, of_gate, of_gate_bias, of_weight, of_bias
        return of_embedded, *found, None, None, None, None, None


class _Head(StackedFunction):
    """n x A x I, n x O x I, n x O -> n x A x O."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, (count, rows, width), outputs = x.contiguous(), x.shape, weight.shape[1]
        out = x.new_empty(count, rows, outputs)
        head_forward[(rows, count)](
            x, *_with_stride(weight), *_with_stride(bias), out, rows, width, outputs, _power_of_2(outputs), 4 * COLUMNS
        )
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        (count, rows, width), outputs = x.shape, weight.shape[1]
        found = [None if one is None else one.new_empty(one.shape) for one in (x, weight, bias)]
        head_backward[(_blocks(width, COLUMNS), count)](
            x.contiguous(), *_with_stride(weight), gradients[0].contiguous(), *found, rows, width, outputs,
            _power_of_2(outputs), COLUMNS,
        )  # fmt: skip
        return tuple(found)


class _CrossEntropy(StackedFunction):
    """n x B x C, n x B -> the losses, n x B, and the gradient of each, n x B x C."""

    @staticmethod
    def forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits, targets, classes = logits.contiguous(), targets.contiguous(), logits.shape[-1]
        losses, slopes = logits.new_empty(targets.shape), torch.empty_like(logits)
        cross_entropy_kernel[(_blocks(targets.numel(), ROWS),)](
            logits, targets, losses, slopes, targets.numel(), classes, ROWS, _power_of_2(classes)
        )
        return losses, slopes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return gradients[0].unsqueeze(-1) * slopes, None


class _KL(StackedFunction):
    """Twice n x A x N scores -> the divergence of each row, n x A, and its gradient, n x A x N."""

    @staticmethod
    def forward(target_scores: Tensor, scores: Tensor, temperature: float, is_sigmoid: bool) -> tuple[Tensor, Tensor]:
        target_scores, scores, tiles = target_scores.contiguous(), scores.contiguous(), scores.shape[-1]
        per_row = scores.new_empty(scores.shape[:-1], dtype=torch.float32)
        slopes = torch.empty_like(scores, dtype=torch.float32)
        kl_kernel[(per_row.numel(),)](
            target_scores, scores, per_row, slopes, float(temperature), tiles, is_sigmoid, _power_of_2(tiles)
        )
        return per_row, slopes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return None, gradients[0].unsqueeze(-1) * slopes, None, None


class _Clustering(StackedFunction):
    """The clustering loss of each bag, n; its samples, and the gradients of their margins.

    embedded: n x N x I, scores: n x A x N, mask: n x N, weights: n x C x 2 x I, biases: n x C x 2, label: n
    """

    @staticmethod
    def forward(
        embedded: Tensor,
        scores: Tensor,
        mask: Tensor | None,
        weights: Tensor,
        biases: Tensor,
        label: Tensor,
        k: int,
        is_half: bool,
        excluding: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        embedded, scores, weights, biases = (one.contiguous() for one in (embedded, scores, weights, biases))
        (count, rows, width), (branches, heads) = embedded.shape, (scores.shape[1], weights.shape[1])
        k = min(k, rows)
        loss = embedded.new_empty(count, dtype=torch.float32)
        slopes = embedded.new_empty(count, heads, _power_of_2(2 * k), dtype=torch.float32)
        tiles = torch.empty_like(slopes, dtype=torch.int32)
        cluster_forward[(count,)](
            embedded, scores, None if mask is None else mask.contiguous().view(torch.int8), weights, biases,
            label.contiguous(), tiles, slopes, loss, rows, width, k, branches, heads, is_half, excluding,
            _power_of_2(rows), slopes.shape[-1], min(CHOSEN_COLUMNS, _power_of_2(width)),
        )  # fmt: skip
        return loss, tiles, slopes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], inputs[3], *output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        embedded, weights, tiles, slopes = ctx.saved_tensors
        embedded, weights = embedded.contiguous(), weights.contiguous()
        (count, rows, width), heads = embedded.shape, weights.shape[1]
        of_embedded, of_weights = torch.empty_like(embedded), torch.empty_like(weights)
        of_biases = weights.new_empty(count, heads, 2)
        cluster_backward[(_blocks(width, COLUMNS), count)](
            embedded, weights, tiles, slopes, gradients[0].contiguous(), of_embedded, of_weights, of_biases, rows,
            width, heads, ROWS, slopes.shape[-1], COLUMNS,
        )  # fmt: skip
        return of_embedded, None, None, of_weights, of_biases, None, None, None, None


def _with_stride(parameter: Tensor | None) -> tuple[Tensor | None, int]:
    """A parameter, n x ..., whose slots are contiguous, and the stride between them."""
    if parameter is None:
        return None, 0
    parameter = parameter if parameter[0].is_contiguous() else parameter.contiguous()
    return parameter, parameter.stride(0)


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _power_of_2(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
