"""Slide-level learning on whole-slide images, with honest metrics and checks of what attention shows.

The public names are listed in `__init__.pyi`. They are loaded when they are first used, so that `import asmil` imports
neither torch nor pandas.
"""

from asmil.machine.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
