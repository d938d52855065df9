"""Sm: values of tiles smoothed over neighboring tiles (Castro-Macias et al., 2024).

    w_ij = 1 for the up to 8 tiles around tile i on the grid, A_ij = w_ij / sqrt(deg_i deg_j),   L = I - A
    Sm(U) = the G that minimizes ||G - U||^2 + gamma tr(G^T L G),   gamma = alpha / (1 - alpha)
          = (1 - alpha) (I - alpha A)^-1 U                                        exact
    G_0 = U,   G_t = alpha A G_{t-1} + (1 - alpha) U,   t = 1 .. T                approximate

alpha is between 0 (U itself) and 1. The operator is linear in U and symmetric, so the gradient of U is the smoothed
gradient of the result g. The approximate form is a polynomial in A, so the powers of A times g give both gradients:

    Sm(U) = sum_j c_j A^j U,   c_j = (1 - alpha) alpha^j for j < T,   c_T = alpha^T
    dU = sum_j c_j A^j g,      dalpha = sum_j (dc_j / dalpha) <A^j g, U>          approximate
    dU = Sm(g),                dalpha = <Sm(g), A G - U> / (1 - alpha)            exact

and no step is kept for the backward pass. The exact form is solved by conjugate gradients. Channels are processed in
blocks. A tile without neighbors is multiplied by 1 - alpha; a bag of one tile keeps its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.blocks.graph import Adjacency, adjacency, weighted_sum
from asmil.models.blocks.layers import floating, full_precision
from asmil.models.blocks.neighbors import given_edges, nearest_edges

GRAPH = "smoothing_graph"
"""Key of a bag's extras with A, as `adjacency` gives it."""
CHANNELS = 128
PRECISION = 1e-7
MOST_ITERATIONS = 1000
AROUND = 8
WITHIN = 1.5
"""Tiles up to sqrt(2) strides apart touch each other; the next are 2 strides apart."""


def with_graph(bag: Bag, method: str, *, own_edges: bool = False) -> Bag:
    """The bag with A in its extras.

    method: for the error message
    own_edges: use the bag's own `edges` and `edge_weights` (all of A) where it has them
    """
    if GRAPH in bag.extras:
        return bag
    edges, weights = (given_edges(bag), bag.extras.get("edge_weights")) if own_edges else (None, None)
    if edges is None:
        edges, weights = touching(bag, method), None
    elif weights is None:
        edges = in_both_directions(edges, len(bag))
    if len(bag) == 1 and weights is None:
        edges = torch.zeros(2, 1, dtype=torch.int64, device=bag.features.device)
    if weights is None:
        degrees = torch.bincount(edges[0], minlength=len(bag)).double()
        weights = (degrees[edges[0]] * degrees[edges[1]]).rsqrt().float()
    elif len(weights) != edges.shape[1]:
        raise AsmilError(f"{bag.id}: {len(weights)} edge weights for {edges.shape[1]} edges; they must match")
    elif not is_symmetric(edges, weights, len(bag)):
        raise AsmilError(
            f"{bag.id}: its edge weights are not symmetric; give every edge in both directions with the same weight, "
            "or leave edge_weights out"
        )
    matrix = adjacency(edges[0], edges[1], len(bag), weights)
    return replace(bag, extras={**bag.extras, GRAPH: matrix})


def touching(bag: Bag, method: str) -> Tensor:
    """The tiles that touch each other, in both directions: 2 x E, [center, neighbor].

    They are at most `WITHIN` strides apart. The stride of a slide is the distance of a tile to the nearest other that a
    tenth of its tiles do not exceed: low, so that a random part of the tiles has the stride of the whole.
    """
    edges = nearest_edges(bag, AROUND, method)
    if edges.shape[1] == 0:
        return edges
    assert bag.places is not None
    places = bag.places.to(edges.device).double()
    distances = (places[edges[0]] - places[edges[1]]).norm(dim=1)
    nearest = torch.full((len(bag),), torch.inf, dtype=torch.float64, device=edges.device)
    nearest.scatter_reduce_(0, edges[0], distances.masked_fill(distances == 0, torch.inf), "amin")
    slides = torch.zeros(len(bag), dtype=torch.int64) if bag.slide_index is None else bag.slide_index
    slides = slides.to(edges.device)
    strides = torch.zeros_like(nearest)
    for slide in slides.unique():
        known = nearest[(slides == slide) & nearest.isfinite()]
        if len(known):
            strides[slides == slide] = known.sort().values[len(known) // 10]
    near = edges[:, distances <= WITHIN * strides[edges[0]]]
    return in_both_directions(near, len(bag))


def in_both_directions(edges: Tensor, n_tiles: int) -> Tensor:
    """Every edge (2 x E) and its reverse, once each."""
    both = torch.cat([edges, edges.flip(0)], dim=1)
    numbers = (both[0] * n_tiles + both[1]).unique()
    return torch.stack([numbers // n_tiles, numbers % n_tiles])


def is_symmetric(edges: Tensor, weights: Tensor, n_tiles: int) -> bool:
    """Whether every edge (2 x E) has a reverse with the same weight (E)."""
    (forth, order), (back, reverse) = (
        (rows * n_tiles + columns).sort(stable=True) for rows, columns in (edges, edges.flip(0))
    )
    return torch.equal(forth, back) and torch.allclose(weights[order], weights[reverse])


class Smoothing(nn.Module):
    """Sm of the module's text: N x m and A -> N x m, in float32 at least.

    alpha: how strongly the neighbors count, the start of a trainable one
    steps: T of the approximate form
    """

    logit: Tensor

    def __init__(self, alpha: float, steps: int, *, exact: bool, trainable: bool) -> None:
        super().__init__()
        self.steps = steps
        self.exact = exact
        logit = torch.tensor(math.log(alpha / (1 - alpha)))
        if trainable:
            self.logit = nn.Parameter(logit)
        else:
            self.register_buffer("logit", logit)

    @property
    def alpha(self) -> Tensor:
        """alpha, between 0 and 1."""
        return torch.sigmoid(floating(self.logit))

    def forward(self, values: Tensor, matrix: Adjacency) -> Tensor:
        return smooth(values, matrix, self.alpha, None if self.exact else self.steps)


def smooth(values: Tensor, matrix: Adjacency, alpha: Tensor, steps: int | None) -> Tensor:
    """Sm of N x m values; steps: T of the approximate form, None: the exact form."""
    values = floating(values)
    with full_precision(values):
        return _Smooth.apply(values, alpha.to(values.device, values.dtype), matrix, steps)  # type: ignore[no-untyped-call]


class _Smooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, alpha: Tensor, matrix: Adjacency, steps: int | None) -> Tensor:
        result = _by_channels(lambda part: _smoothed(part, alpha, matrix, steps), values)
        for_alpha = [values, result] if steps is None else [values]
        ctx.save_for_backward(alpha, *(for_alpha if ctx.needs_input_grad[1] else []))
        ctx.matrix, ctx.steps = matrix, steps
        return result

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (gradient,), (alpha, *kept) = upstream, ctx.saved_tensors
        matrix, steps = ctx.matrix, ctx.steps
        if steps is not None and kept:
            return *_through_powers(gradient, kept[0], alpha, matrix, steps), None, None
        smoothed = _by_channels(lambda part: _smoothed(part, alpha, matrix, steps), gradient)
        if not kept:
            return smoothed, None, None, None
        values, result = kept
        d_alpha = _by_channels(lambda g, u, s: _dot(s, weighted_sum(matrix, g) - u), result, values, smoothed)
        return smoothed, d_alpha.sum() / (1 - alpha), None, None


def _by_channels(function: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """`function(*values)` for a function that treats every channel (column) on its own, in blocks."""
    parts = zip(*(value.split(CHANNELS, dim=1) for value in values), strict=True)
    return torch.cat([function(*(part.contiguous() for part in block)) for block in parts], dim=1)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """The sums over tiles of the products, 1 x m."""
    return (left * right).sum(dim=0, keepdim=True)


def _smoothed(values: Tensor, alpha: Tensor, matrix: Adjacency, steps: int | None) -> Tensor:
    if steps is None:
        return _solved(values * (1 - alpha), alpha, matrix)
    result = values
    for _ in range(steps):
        result = torch.lerp(values, weighted_sum(matrix, result), alpha)
    return result


def _through_powers(
    gradient: Tensor, values: Tensor, alpha: Tensor, matrix: Adjacency, steps: int
) -> tuple[Tensor, Tensor]:
    """The gradients of the values (N x m) and of alpha in the approximate form, from the powers of A."""
    powers = torch.arange(steps + 1, device=alpha.device, dtype=alpha.dtype)
    last = powers == steps
    factors = torch.where(last, 1, 1 - alpha) * alpha**powers
    slopes = torch.where(last, 1, 1 - alpha) * powers * alpha ** (powers - 1) - torch.where(last, 0, alpha**powers)
    d_alpha, d_values = torch.zeros_like(alpha), []
    for power, some in zip(gradient.split(CHANNELS, dim=1), values.split(CHANNELS, dim=1), strict=True):
        power = power.contiguous()
        total = factors[0] * power
        d_alpha += slopes[0] * (power * some).sum()
        for factor, slope in zip(factors[1:], slopes[1:], strict=True):
            power = weighted_sum(matrix, power)
            total.addcmul_(power, factor)
            d_alpha += slope * (power * some).sum()
        d_values.append(total)
    return torch.cat(d_values, dim=1), d_alpha


def _solved(right: Tensor, alpha: Tensor, matrix: Adjacency) -> Tensor:
    """x with (I - alpha A) x = right, by conjugate gradients, every channel on its own."""
    x, residual, direction = torch.zeros_like(right), right, right
    size = _dot(residual, residual)
    enough = size * PRECISION**2
    for _ in range(MOST_ITERATIONS):
        if bool((size <= enough).all()):
            break
        image = direction - alpha * weighted_sum(matrix, direction)
        # a channel that is solved, such as one of zeros, stays as it is
        open_channels = size > enough
        step = torch.where(open_channels, size / _dot(direction, image).masked_fill(~open_channels, 1), 0)
        x, residual = x + step * direction, residual - step * image
        before, size = size, _dot(residual, residual)
        direction = residual + size / before.masked_fill(before == 0, 1) * direction
    return x
