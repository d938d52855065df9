"""Normalizers, the theorem on them, and the loss of the anchor; sections are told apart by what their rows hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asmil.attention import (
    NSF,
    cross_entropy,
    entmax,
    kl,
    kl_to_softmax,
    log_nsf,
    log_softmax,
    mixture,
    nsf,
    softmax,
    sparsemax,
)
from asmil.attention.theorem import (
    highest_temperature,
    highest_temperature_as_printed,
    lowest_temperature,
    nsf_low_bound,
    nsf_ratio_bound,
)
from asmil.errors import AsmilError
from oracles.sheet import Allowance, Content, Kind, OrNull, is_rows

Row = Mapping[str, Any]
Answer = Callable[[Row], dict[str, Any]]

THEOREM_GIVEN = {"tau", "gamma", "h", "l", "epsilon", "kappa"}
GIVEN = frozenset({"name", "z", "w", "rule", "seed", "n", "z_anchor", "z_online"} | THEOREM_GIVEN)
EXACT = re.compile(r"^(support|argmax|feasible)$")
VALUE_ERROR, GRADIENT_ERROR = 1e-9, 1e-7
NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
RULES: Mapping[str, Callable[..., Tensor]] = {
    rf"softmax_T{NUMBER}": softmax,
    "softmax": softmax,
    rf"nsf_T{NUMBER}": nsf,
    "nsf": nsf,
    "sparsemax": sparsemax,
    rf"entmax_{NUMBER}": entmax,
    rf"mix_xi{NUMBER}": mixture,
}
DRAWN = re.compile(rf"z = (?:{NUMBER} \* )?numpy Generator\(PCG64\((\d+)\)\)\.standard_normal\((\d+)\)")
WEIGHTS = re.compile(rf"w_i = cos\({NUMBER} i\) \+ {NUMBER}")


def recognizes(content: Content) -> bool:
    """Whether a section has rows of a kind that is answered here."""
    return any(_answerer(row) is not None for rows in content.values() if is_rows(rows) for row in rows)


def answer(sheet: Content) -> dict[str, Any]:
    """The answers to all rows that are known."""
    return {name: [_answer_row(row) for row in rows] for name, rows in sheet.items() if is_rows(rows)}


def allowance(key: str, official: NDArray[np.float64], beside: Content) -> Allowance:
    """1e-9 for values and 1e-7 for gradients; relative for the theorem's bounds and for values above 1."""
    if EXACT.search(key):
        return Allowance(0.0)
    size = float(np.abs(official).max(initial=0.0))
    scale = size if "tau" in beside else max(1.0, size)
    return Allowance(scale * (GRADIENT_ERROR if key.startswith("grad") else VALUE_ERROR), scale)


def _answerer(row: Row) -> Answer | None:
    return next((answerer for keys, answerer in _ANSWERERS if keys <= row.keys()), None)


def _answer_row(row: Row) -> dict[str, Any]:
    answerer = _answerer(row)
    return {} if answerer is None else answerer(row)


def _normalized(row: Row) -> dict[str, Any]:
    scores = torch.tensor(row["z"], dtype=torch.float64) if "z" in row else _drawn_scores(row)
    weights = torch.tensor(row["w"], dtype=torch.float64) if "w" in row else _drawn_weights(row, len(scores))
    found = {}
    for name in row["out"]:
        normalizer = _normalizer(name)
        if normalizer is not None:
            found[name] = _describe(normalizer, scores.clone().requires_grad_(), weights)
    return {"out": found}


def _normalizer(name: str) -> Callable[[Tensor], Tensor] | None:
    for pattern, rule in RULES.items():
        match = re.fullmatch(pattern, name)
        if match is not None:
            return partial(_apply, rule, [float(number) for number in match.groups()])
    return None


def _apply(rule: Callable[..., Tensor], options: list[float], scores: Tensor) -> Tensor:
    return rule(scores, *options)


def _drawn_scores(row: Row) -> Tensor:
    rule = DRAWN.search(row["rule"])
    if rule is None:
        raise AsmilError(f"the rule {row['rule']!r} that draws the scores is not understood")
    seed, n = int(row.get("seed", rule[2])), int(row.get("n", rule[3]))
    noise = np.random.Generator(np.random.PCG64(seed)).standard_normal(n)
    return torch.from_numpy(float(rule[1] or 1) * noise)


def _drawn_weights(row: Row, n: int) -> Tensor:
    rule = WEIGHTS.search(row.get("rule", ""))
    frequency, offset = (0.7, 0.1) if rule is None else (float(rule[1]), float(rule[2]))
    return torch.cos(frequency * torch.arange(n, dtype=torch.float64)) + offset


def _describe(normalizer: Callable[[Tensor], Tensor], scores: Tensor, weights: Tensor) -> dict[str, Any]:
    attention = normalizer(scores)
    weighted = (weights * attention).sum()
    (gradient,) = torch.autograd.grad(weighted, scores)
    p = attention.detach()
    return {
        "p": p.tolist(),
        "grad_of_w_dot_p": gradient.tolist(),
        "sum": float(p.sum()),
        "support": int((p > 0).sum()),
        "max": float(p.max()),
        "argmax": int(p.argmax()),
        "first5": p[:5].tolist(),
        "entropy": float(-torch.xlogy(p, p).sum()),
        "sum_of_squares": float(p.square().sum()),
        "w_dot_p": float(weighted.detach()),
        "grad_first5": gradient[:5].tolist(),
        "grad_l2": float(gradient.norm()),
        "grad_sum": float(gradient.sum()),
    }


def _bounds(row: Row) -> dict[str, float]:
    tau, gamma, h = float(row["tau"]), float(row["gamma"]), int(row["h"])
    spread = _weights_of(nsf, [tau + gamma] + [tau] * (h - 1))
    lows = [-tau] + [-torch.inf] * (int(row.get("l", 1)) - 1)
    return {
        "worst_ratio": float(spread.max() / spread.min()),
        "bound_ratio": nsf_ratio_bound(tau, gamma),
        "loose_bound": nsf_ratio_bound(tau),
        "worst_low": float(_weights_of(nsf, [tau] * h + lows)[h]),
        "bound_low": nsf_low_bound(tau, h),
    }


def _temperatures(row: Row) -> dict[str, Any]:
    tau, h, epsilon = float(row["tau"]), int(row["h"]), float(row["epsilon"])
    lowest = lowest_temperature(float(row["gamma"]), float(row["kappa"]))
    highest = highest_temperature(tau, h, epsilon)
    at_highest = float(_weights_of(lambda scores: softmax(scores, highest), [tau] * h + [-tau])[h])
    without_limit = highest == torch.inf
    return {
        "T_min_equalisation": lowest,
        "T_max_suppression_proof": OrNull(highest) if without_limit else highest,
        "T_max_suppression_as_printed_in_theorem": highest_temperature_as_printed(tau, h, epsilon),
        "low_weight_at_T_max_proof": OrNull(at_highest) if without_limit else at_highest,
        "feasible": lowest <= highest,
    }


def _weights_of(normalizer: Callable[[Tensor], Tensor], scores: list[float]) -> Tensor:
    return normalizer(torch.tensor(scores, dtype=torch.float64))


def _divergences(row: Row) -> dict[str, Any]:
    anchor = torch.tensor(row["z_anchor"], dtype=torch.float64)
    online = torch.tensor(row["z_online"], dtype=torch.float64, requires_grad=True)
    loss = kl_to_softmax(anchor.unsqueeze(0), NSF(), online.unsqueeze(0)).sum()
    (gradient,) = torch.autograd.grad(loss, online)
    log_target, log_attention = log_nsf(anchor), log_softmax(online.detach())
    return {
        "alpha_nsf": nsf(anchor).tolist(),
        "alpha": softmax(online.detach()).tolist(),
        "kl_anchor_online": float(kl(log_target, log_attention)),
        "grad_online": gradient.tolist(),
        "reverse_kl_online_anchor": float(kl(log_attention, log_target)),
        "cross_entropy": float(cross_entropy(log_target, log_attention)),
    }


_ANSWERERS: tuple[tuple[frozenset[str], Answer], ...] = (
    (frozenset({"z", "out"}), _normalized),
    (frozenset({"rule", "out"}), _normalized),
    (frozenset({"tau", "gamma", "h", "epsilon", "kappa"}), _temperatures),
    (frozenset({"tau", "gamma", "h"}), _bounds),
    (frozenset({"z_anchor", "z_online"}), _divergences),
)

KIND = Kind("normalizers", recognizes, GIVEN, answer, allowance)
