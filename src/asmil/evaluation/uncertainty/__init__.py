"""How certain a prediction is, and whether a slide is like the training slides; docs/uncertainty.md explains the use.

The public names are listed in `__init__.pyi` and loaded when they are first used.
"""

from asmil.machine.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
