"""Logarithmic axes that stay readable over few powers of ten."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from asmil.reporting.formats import format_significant

NARROW_DECADES = 2.5
"""An axis that spans less gets a tick at 2 and 5 as well."""


def make_logarithmic(axes: Axes, which: str) -> None:
    """Make the x or the y axis logarithmic; to be called when everything is drawn."""
    axes.set(**{f"{which}scale": "log"})
    axis: Axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    narrow = math.log10(high / low) < NARROW_DECADES
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=12 if narrow else 7))
    axis.set_minor_locator(NullLocator())
    if narrow:
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_significant(value)))
