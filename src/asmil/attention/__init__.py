"""Normalizers, divergences and the anchor: all that concerns attention, whatever the model."""

from asmil.attention.anchor import Anchor
from asmil.attention.divergences import cross_entropy, jsd, kl, kl_to_softmax
from asmil.attention.normalizers import (
    NSF,
    Normalizer,
    Softmax,
    build_normalizer,
    log_nsf,
    log_softmax,
    nsf,
    softmax,
)

__all__ = [
    "NSF",
    "Anchor",
    "Normalizer",
    "Softmax",
    "build_normalizer",
    "cross_entropy",
    "jsd",
    "kl",
    "kl_to_softmax",
    "log_nsf",
    "log_softmax",
    "nsf",
    "softmax",
]
