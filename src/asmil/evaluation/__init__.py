"""Evaluate and compare runs, with confidence intervals; every metric and statistical test is also a plain function.

The public names are listed in `__init__.pyi` and loaded when they are first used.
"""

from asmil.machine.lazy_names import lazy_names

_LOCALIZATION = "asmil.evaluation.localization"

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    __file__,
    moved={"dice": _LOCALIZATION, "rank_tiles": _LOCALIZATION, "specificity": _LOCALIZATION},
)
