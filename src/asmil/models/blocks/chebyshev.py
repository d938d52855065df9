"""A Chebyshev-KAN layer: every input has its own learned function, a sum of Chebyshev polynomials.

    u_i = tanh(x_i)
    y_o = sum_i sum_k c[i, o, k] T_k(u_i)          T_0 = 1, T_1 = u, T_k = 2 u T_(k-1) - T_(k-2)

No bias and no base activation. Inputs far from 0 saturate tanh and carry little gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChebyshevKAN(nn.Module):
    """... x I -> ... x O, with polynomials up to `degree`; computed in float32."""

    def __init__(self, in_features: int, out_features: int, degree: int) -> None:
        super().__init__()
        coefficients = torch.empty(in_features, out_features, degree + 1)
        self.coefficients = nn.Parameter(nn.init.xavier_normal_(coefficients))

    def forward(self, x: Tensor) -> Tensor:
        return kan(x.unsqueeze(-2), self.coefficients).squeeze(-2)


def kan(x: Tensor, coefficients: Tensor) -> Tensor:
    """The layer for rows ... x n x I and coefficients ... x I x O x (degree + 1): ... x n x O."""
    # bf16 has too few digits for the sum over polynomials, whose terms cancel
    with torch.autocast(x.device.type, enabled=False):
        basis = chebyshev(torch.tanh(x.to(coefficients.dtype)), coefficients.shape[-1] - 1)
        return basis.flatten(-2) @ coefficients.transpose(-1, -2).flatten(-3, -2)


def chebyshev(u: Tensor, degree: int) -> Tensor:
    """T_0(u) to T_degree(u), along a new last axis."""
    polynomials = [torch.ones_like(u), u]
    for _ in range(2, degree + 1):
        polynomials.append(2 * u * polynomials[-1] - polynomials[-2])
    return torch.stack(polynomials[: degree + 1], dim=-1)
