"""From scores to attention: the rules, each as a function, its logarithm and a small module with the rule's options.

Scores are A x N (rows: branches, heads, tokens; columns: tiles); every row is normalized over its tiles:

    softmax           exp(z_i / T) / sum_j exp(z_j / T)
    nsf               sigmoid(z_i / T) / sum_j sigmoid(z_j / T), the normalized sigmoid
    standardized_nsf  nsf(kappa ((z_i - mean) / sd - offset)), mean and sd over the tiles of the row
    mixture           zeta softmax(z) + (1 - zeta) nsf(z), zeta = sigmoid(xi), xi trained from 0
    entmax            [(alpha - 1) z_i - tau]_+ ^ (1 / (alpha - 1)), tau such that the sum is 1; 1 < alpha <= 2
    sparsemax         entmax with alpha = 2

A masked tile has the score minus infinity, gets the weight 0 from all rules and enters no sum. The first three have the
form `softmax(g(z))`, which keeps them exact for scores of any size:

    sigmoid(z_i) / sum_j sigmoid(z_j) = softmax(log sigmoid(z))_i
"""

from __future__ import annotations

from typing import ClassVar

import entmax as _entmax_package
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


def standardized_nsf(scores: Tensor, kappa: float = 2.0, offset: float = 1.0) -> Tensor:
    """The normalized sigmoid of scores that were standardized over the last axis: `nsf(kappa (s - offset))`.

    It does not change when all scores are shifted or scaled: a tile counts as high when it lies `offset` standard
    deviations above the mean, and `kappa` is the sharpness of that border.
    """
    return nsf(kappa * (_standardized(scores) - offset))


def log_standardized_nsf(scores: Tensor, kappa: float = 2.0, offset: float = 1.0) -> Tensor:
    """The logarithm of `standardized_nsf`."""
    return log_nsf(kappa * (_standardized(scores) - offset))


def mixture(scores: Tensor, xi: Tensor | float = 0.0) -> Tensor:
    """Attention `zeta softmax(z) + (1 - zeta) nsf(z)` with `zeta = sigmoid(xi)`, over the last axis."""
    zeta = torch.sigmoid(torch.as_tensor(xi, dtype=_working_type(scores), device=scores.device))
    return zeta * softmax(scores) + (1 - zeta) * nsf(scores)


def log_mixture(scores: Tensor, xi: Tensor | float = 0.0) -> Tensor:
    """The logarithm of `mixture`."""
    xi = torch.as_tensor(xi, dtype=_working_type(scores), device=scores.device)
    terms = functional.logsigmoid(xi) + log_softmax(scores), functional.logsigmoid(-xi) + log_nsf(scores)
    # A masked tile is minus infinity in both terms, where the derivative of logaddexp is not defined.
    masked = scores == -torch.inf
    return torch.logaddexp(*(term.masked_fill(masked, 0) for term in terms)).masked_fill(masked, -torch.inf)


def entmax(scores: Tensor, alpha: float = 1.5) -> Tensor:
    """Sparse attention over the last axis: the larger `alpha`, the fewer tiles; 1 is softmax, 2 sparsemax.

    `alpha` 1.5 and 2 are solved by sorting, others by bisection (the `entmax` package).
    """
    if not 1 <= alpha <= 2:
        raise AsmilError(f"alpha = {alpha}: entmax takes values from 1 (softmax) to 2 (sparsemax)")
    if alpha == 1:
        return softmax(scores)
    scores = scores.to(_working_type(scores))
    # A tile whose score is 1 / (alpha - 1) below the maximum has the weight 0. Lower (or masked) scores are bounded, so
    # that sums stay accurate.
    scores = (scores - scores.amax(dim=-1, keepdim=True).detach()).clamp_min(-1 / (alpha - 1) - 1)
    if alpha == 1.5:
        return _entmax_package.entmax15(scores, dim=-1)
    if alpha == 2:
        return _entmax_package.sparsemax(scores, dim=-1)
    return _entmax_package.entmax_bisect(scores, alpha, dim=-1)


def log_entmax(scores: Tensor, alpha: float = 1.5) -> Tensor:
    """The logarithm of `entmax`: minus infinity outside its support."""
    if alpha == 1:
        return log_softmax(scores)
    attention = entmax(scores, alpha)
    outside = attention == 0
    return attention.masked_fill(outside, 1).log().masked_fill(outside, -torch.inf)  # a gradient is 0 outside, not NaN


def sparsemax(scores: Tensor) -> Tensor:
    """The Euclidean projection of the scores onto the simplex, `[z_i - tau]_+`."""
    return entmax(scores, 2.0)


def log_sparsemax(scores: Tensor) -> Tensor:
    """The logarithm of `sparsemax`: minus infinity outside its support."""
    return log_entmax(scores, 2.0)


def _working_type(scores: Tensor) -> torch.dtype:
    return torch.float32 if scores.dtype in (torch.float16, torch.bfloat16) else scores.dtype


def _tempered(scores: Tensor, temperature: float) -> Tensor:
    scores = scores.to(_working_type(scores))
    return scores if temperature == 1.0 else scores / temperature


def _standardized(scores: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the unmasked tiles; all 0 where they are equal, up to rounding."""
    scores = scores.to(_working_type(scores))
    seen = scores != -torch.inf
    known = scores.masked_fill(~seen, 0)
    count = seen.sum(dim=-1, keepdim=True).clamp_min(1)
    deviation = (known - known.sum(dim=-1, keepdim=True) / count).masked_fill(~seen, 0)
    variance = deviation.square().sum(dim=-1, keepdim=True) / count
    rounding = 128 * torch.finfo(scores.dtype).eps * known.abs().amax(dim=-1, keepdim=True).detach()
    floor = rounding.square().clamp_min(torch.finfo(scores.dtype).tiny)
    return (deviation * variance.clamp_min(floor).rsqrt()).masked_fill(~seen, -torch.inf)


_LOWEST_SIGMOID = -60.0
"""Above it the sigmoid is far from the smallest float32."""


class Normalizer(nn.Module):
    """A rule that turns scores (A x N) into attention; `log` gives its logarithm.

    A rule that is a softmax of elementwise log-weights implements `log_weights` and can be streamed over chunks
    of tiles; any other rule overrides `forward` and `log` and leaves `streams` False.
    """

    streams: ClassVar[bool] = False
    sparse: ClassVar[bool] = False
    """Whether unmasked tiles can get the weight 0."""
    options: ClassVar[tuple[str, ...]] = ()
    """The settings that the rule takes."""

    def log_weights(self, scores: Tensor) -> Tensor:
        """g(z), elementwise, when `streams`."""
        raise AsmilError(f"{type(self).__name__} needs all scores of a bag at once and cannot be streamed")

    def forward(self, scores: Tensor) -> Tensor:
        return torch.softmax(self.log_weights(scores), dim=-1)

    def log(self, scores: Tensor) -> Tensor:
        """The logarithm of the attention."""
        return torch.log_softmax(self.log_weights(scores), dim=-1)

    def unscaled(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithm of the attention, up to a constant per row, and its exponential."""
        logs = self.log_weights(scores) if self.streams else self.log(scores)
        logs = logs - logs.amax(dim=-1, keepdim=True)
        return logs, logs.exp()


class TemperedNormalizer(Normalizer):
    """A rule of `z / T`."""

    streams = True
    options = ("temperature",)

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = _positive("temperature", temperature)


class Softmax(TemperedNormalizer):
    """`softmax(z / T)`: invariant to a shift of all scores."""

    def log_weights(self, scores: Tensor) -> Tensor:
        return _tempered(scores, self.temperature)


class NSF(TemperedNormalizer):
    """The normalized sigmoid `sigmoid(z / T) / sum sigmoid(z / T)`."""

    def log_weights(self, scores: Tensor) -> Tensor:
        return functional.logsigmoid(_tempered(scores, self.temperature))

    def unscaled(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        tempered = _tempered(scores, self.temperature)
        if tempered.is_cuda or not bool(tempered.amin() > _LOWEST_SIGMOID):  # reading a number waits for a GPU
            return super().unscaled(scores)
        weights = torch.sigmoid(tempered)
        return weights.log(), weights


class StandardizedNSF(Normalizer):
    """The normalized sigmoid of standardized scores, `nsf(kappa ((z - mean) / sd - offset))` per row of a bag."""

    options = ("kappa", "offset")

    def __init__(self, kappa: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.kappa, self.offset = _positive("kappa", kappa), float(offset)

    def forward(self, scores: Tensor) -> Tensor:
        return standardized_nsf(scores, self.kappa, self.offset)

    def log(self, scores: Tensor) -> Tensor:
        return log_standardized_nsf(scores, self.kappa, self.offset)


class StandardizedSoftmax(Normalizer):
    """`softmax(kappa (z - mean) / sd)` per row of a bag: neither the level nor the scale of the scores matters."""

    options = ("kappa",)

    def __init__(self, kappa: float = 2.0) -> None:
        super().__init__()
        self.kappa = _positive("kappa", kappa)

    def forward(self, scores: Tensor) -> Tensor:
        return torch.softmax(self.kappa * _standardized(scores), dim=-1)

    def log(self, scores: Tensor) -> Tensor:
        return torch.log_softmax(self.kappa * _standardized(scores), dim=-1)


class Entmax(Normalizer):
    """Sparse attention, `alpha` from 1 (softmax) to 2 (sparsemax)."""

    sparse = True
    options: ClassVar[tuple[str, ...]] = ("alpha",)

    def __init__(self, alpha: float = 1.5) -> None:
        super().__init__()
        if not 1 < alpha <= 2:
            raise AsmilError(f"alpha = {alpha}: it must lie above 1 (softmax) and at most at 2 (sparsemax)")
        self.alpha = float(alpha)

    def forward(self, scores: Tensor) -> Tensor:
        return entmax(scores, self.alpha)

    def log(self, scores: Tensor) -> Tensor:
        return log_entmax(scores, self.alpha)


class Sparsemax(Entmax):
    """Entmax with `alpha` 2."""

    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__(2.0)


class Mixture(Normalizer):
    """`zeta softmax + (1 - zeta) nsf` with a trained `zeta = sigmoid(xi)`, from xi = 0 on."""

    def __init__(self) -> None:
        super().__init__()
        self.xi = nn.Parameter(torch.zeros(()))

    @property
    def zeta(self) -> float:
        """The share of softmax."""
        return float(torch.sigmoid(self.xi.detach()))

    def forward(self, scores: Tensor) -> Tensor:
        return mixture(scores, self.xi)

    def log(self, scores: Tensor) -> Tensor:
        return log_mixture(scores, self.xi)


NORMALIZERS: dict[str, type[Normalizer]] = {
    "softmax": Softmax,
    "nsf": NSF,
    "standardized_nsf": StandardizedNSF,
    "standardized_softmax": StandardizedSoftmax,
    "sparsemax": Sparsemax,
    "entmax": Entmax,
    "mixture": Mixture,
}


def build_normalizer(name: str, **options: float) -> Normalizer:
    """A normalizer by its name; an error for an unknown name suggests the nearest one."""
    if name not in NORMALIZERS:
        raise AsmilError(f"unknown normalizer {name!r}: {did_you_mean(name, NORMALIZERS)}")
    kind = NORMALIZERS[name]
    for option in options:
        if option not in kind.options:
            takes = " and ".join(kind.options) or "no options"
            raise AsmilError(f"the normalizer {name!r} has no {option!r}; it takes {takes}")
    return kind(**options)


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise AsmilError(f"{name} = {value}: it must be above 0")
    return float(value)
