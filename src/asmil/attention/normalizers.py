"""From scores to attention, in the log domain: softmax with a temperature, and the normalized sigmoid (NSF).

Scores are A x N (rows: branches, heads, tokens; columns: tiles); every row is normalized over its tiles.
Both functions have the form `attention = softmax(g(z))` with an elementwise g, which is what makes them exact
for scores of any size and lets a bag be pooled chunk by chunk:

    softmax  g(z) = z / T
    nsf      g(z) = log sigmoid(z / T)          since  sigmoid(z_i) / sum_j sigmoid(z_j) = softmax(log sigmoid(z))_i

A masked tile has the score minus infinity and gets the weight 0 from both.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.errors import AsmilError, did_you_mean


def softmax(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """Attention `exp(z_i / T) / sum_j exp(z_j / T)` over the last axis."""
    return torch.softmax(_tempered(scores, temperature), dim=-1)


def log_softmax(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """The logarithm of `softmax`."""
    return torch.log_softmax(_tempered(scores, temperature), dim=-1)


def nsf(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """Attention `sigmoid(z_i / T) / sum_j sigmoid(z_j / T)` over the last axis.

    Unlike softmax it is not invariant to a shift of all scores: far above 0 it is uniform, far below 0 it
    turns into softmax.
    """
    return torch.softmax(functional.logsigmoid(_tempered(scores, temperature)), dim=-1)


def log_nsf(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """The logarithm of `nsf`; finite where the plain quotient is 0/0."""
    return torch.log_softmax(functional.logsigmoid(_tempered(scores, temperature)), dim=-1)


def _tempered(scores: Tensor, temperature: float) -> Tensor:
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    return scores if temperature == 1.0 else scores / temperature


class Normalizer(nn.Module):
    """A rule that turns scores (A x N) into attention; `log` gives its logarithm.

    A rule that is a softmax of elementwise log-weights implements `log_weights` and can be streamed over chunks
    of tiles; any other rule overrides `forward` and `log` and leaves `streams` False.
    """

    streams: ClassVar[bool] = False

    def log_weights(self, scores: Tensor) -> Tensor:
        """g(z), elementwise, when `streams`."""
        raise AsmilError(f"{type(self).__name__} needs all scores of a bag at once and cannot be streamed")

    def forward(self, scores: Tensor) -> Tensor:
        return torch.softmax(self.log_weights(scores), dim=-1)

    def log(self, scores: Tensor) -> Tensor:
        """The logarithm of the attention."""
        return torch.log_softmax(self.log_weights(scores), dim=-1)


class Softmax(Normalizer):
    """`softmax(z / T)`: invariant to a shift of all scores."""

    streams = True

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = _positive(temperature)

    def log_weights(self, scores: Tensor) -> Tensor:
        return _tempered(scores, self.temperature)


class NSF(Normalizer):
    """The normalized sigmoid `sigmoid(z / T) / sum sigmoid(z / T)`."""

    streams = True

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = _positive(temperature)

    def log_weights(self, scores: Tensor) -> Tensor:
        return functional.logsigmoid(_tempered(scores, self.temperature))


NORMALIZERS: dict[str, type[Softmax] | type[NSF]] = {"softmax": Softmax, "nsf": NSF}


def build_normalizer(name: str, temperature: float = 1.0) -> Normalizer:
    """A normalizer by its name; an unknown name is answered with the nearest one."""
    if name not in NORMALIZERS:
        raise AsmilError(f"unknown normalizer {name!r}: {did_you_mean(name, NORMALIZERS)}")
    return NORMALIZERS[name](temperature)


def _positive(temperature: float) -> float:
    if not temperature > 0:
        raise AsmilError(f"temperature = {temperature}: it must be above 0")
    return float(temperature)
