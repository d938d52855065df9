"""Slide-level learning on whole-slide images with attention that can be trusted.

The names below are loaded when they are first used, so that `import asmil` imports neither torch nor scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from asmil.errors import AsmilError, AsmilWarning
from asmil.version import __version__

if TYPE_CHECKING:
    from asmil.attention.anchor import Anchor
    from asmil.cohort.bag import Bag
    from asmil.models.base import MILModel, Output
    from asmil.models.registry import build, methods
    from asmil.training.estimator import MILClassifier

_HOMES = {
    "Anchor": "asmil.attention.anchor",
    "Bag": "asmil.cohort.bag",
    "MILClassifier": "asmil.training.estimator",
    "MILModel": "asmil.models.base",
    "Output": "asmil.models.base",
    "build": "asmil.models.registry",
    "methods": "asmil.models.registry",
}

__all__ = [
    "Anchor",
    "AsmilError",
    "AsmilWarning",
    "Bag",
    "MILClassifier",
    "MILModel",
    "Output",
    "__version__",
    "build",
    "methods",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'asmil' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
