"""Rows of attention statistics: one attention over tiles, or two over the same tiles."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.attention import measures
from oracles.sheet import Content

TOP_MASS = re.compile(r"top(\d+)_mass")
TOP_OVERLAP = re.compile(r"top(\d+)_overlap_jaccard")
TILES_FOR = re.compile(r"tiles_for_(\d+)_percent")
ATTENTION_NUMBER = re.compile(
    r"entropy_.*|normalised_entropy|effective_number|inverse_simpson|gini|top\d+_.*|tiles_for_.*"
    r"|jsd_.*|scipy_.*|kl_.*|total_variation|spearman|kendall_.*"
)
"""What is asked of an attention."""


def attention_numbers(row: Content) -> dict[str, Any]:
    """The numbers of an attention `p` over N tiles, and of `p` beside `q` where there is one."""
    p = np.array(row["p"], dtype=np.float64)
    entropy = float(measures.entropy(p))
    answers: dict[str, Any] = {
        "entropy_nats": entropy,
        "entropy_bits": measures.bits(entropy),
        "normalised_entropy": _null_if_nan(measures.normalized_entropy(p)),
        "effective_number": float(measures.effective_tiles(p)),
        "inverse_simpson": measures.inverse_simpson(p),
        "gini": float(measures.gini(p)),
    }
    for key in row:
        if (asked := TOP_MASS.fullmatch(key)) is not None:
            answers[key] = measures.top_k_mass(p, int(asked[1]))
        elif (asked := TILES_FOR.fullmatch(key)) is not None:
            answers[key] = measures.tiles_for_share(p, int(asked[1]) / 100)
    return answers | (_two_attentions(row, p) if "q" in row else {})


def _two_attentions(row: Content, p: NDArray[np.float64]) -> dict[str, Any]:
    q = np.array(row["q"], dtype=np.float64)
    jsd = float(measures.jsd(p, q))
    answers: dict[str, Any] = {
        "jsd_nats": jsd,
        "jsd_bits": measures.bits(jsd),
        "scipy_jensenshannon_distance": math.sqrt(jsd),
        "kl_p_q": measures.kl_divergence(p, q),
        "total_variation": measures.total_variation(p, q),
        "spearman": _null_if_nan(float(measures.rank_correlation(p, q))),
        "kendall_tau_b": _null_if_nan(measures.kendall_tau_b(p, q)),
    }
    for key in row:
        asked = TOP_OVERLAP.fullmatch(key)
        if asked is not None:
            answers[key] = measures.top_k_jaccard(p, q, int(asked[1]))
    return answers


def _null_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
