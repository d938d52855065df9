"""Tests and intervals for numbers that are to be published; see docs/statistics.md for which answers what.

The public names are listed in `__init__.pyi` and loaded when they are first used.
"""

from asmil.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
