"""Helpers for all figures: the common style, SVG and PNG output, and tiles as an image."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from asmil.reporting.document import Table
from asmil.reporting.formats import format_significant
from asmil.tables.arrays import Floats, Integers

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#39424e", "#8c510a")
"""The palette of Okabe and Ito, which color-blind readers can tell apart, without its yellow and black."""
ONE_COLUMN, TWO_COLUMNS = 4.6, 9.2
"""Widths of figures in inches: printed in one column (85 mm) or two (180 mm), their text is at least 6 points high."""
GUIDE, EDGE, TEXT = "#b9c0c8", "#8a94a0", "#39424e"
"""Colors of reference lines, axes and labels."""
DARK_SHARE = 0.55
"""The text on cells of a matrix with a larger share is white."""
NARROW_DECADES = 2.5
"""A logarithmic axis with a smaller range also gets ticks at 2 and 5."""
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": TEXT,
    "axes.grid": True,
    "grid.color": "#e6e9ed",
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "asmil",
}
ANY_GROUND_INK = "#7a8490"
ANY_GROUND = dict.fromkeys(
    ("text_color", "axes_titlecolor", "axes_labelcolor", "xtick_color", "ytick_color"), ANY_GROUND_INK
)
"""The style of figures without paper: a gray that has contrast on white and on black."""


@contextmanager
def new_figure(width: float, height: float, **style: Any) -> Iterator[Figure]:
    """An empty figure of this size in inches, in the common style; draw and save it within the context.

    style: changes to the style, with `_` for the dots in the names of matplotlib's parameters
    """
    changes: dict[Any, Any] = {name.replace("_", "."): value for name, value in style.items()}
    with rc_context({**STYLE, **changes}):
        yield Figure(figsize=(width, height), layout="constrained")


def plain_text(text: str) -> str:
    """Text escaped so that matplotlib does not interpret it as a formula."""
    return text.replace("\\", "\\\\").replace("$", r"\$")


def svg_text(figure: Figure) -> str:
    """The figure as SVG; equal figures give identical text."""
    buffer = io.StringIO()
    # `savefig` draws twice: first without output, for the layout, which drawing makes anyway
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def png_bytes(figure: Figure, dots_per_inch: int) -> bytes:
    """The figure as PNG without paper, for maps, whose colors stay as they are on a dark page (style: ANY_GROUND)."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch, transparent=True, metadata={"Software": None})
    return buffer.getvalue()


def make_logarithmic(axes: Axes, which: str) -> None:
    """Make the x or y axis logarithmic; call it after drawing."""
    axes.set(**{f"{which}scale": "log"})
    axis: Axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    narrow = math.log10(high / low) < NARROW_DECADES
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=12 if narrow else 7))
    axis.set_minor_locator(NullLocator())
    if narrow:
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_significant(value)))


def tile_pitch(coords: Integers) -> float:
    """The distance between neighboring tiles, in the unit of the coordinates: the median over tiles.

    It is the larger of the distances in x and y to the nearest other tile, so on a grid it is the step.
    """
    corners = np.unique(coords, axis=0)
    if len(corners) == 1:
        return 1.0
    from scipy.spatial import cKDTree

    distances, _ = cKDTree(corners).query(corners, k=2, p=np.inf)
    return float(np.median(distances[:, 1]))


def tile_cells(coords: Integers, max_cells: int) -> tuple[Integers, tuple[int, int]]:
    """The cell of each tile in a flattened image, and the rows and columns of that image.

    If there are more than `max_cells` tiles along the longer side, several tiles share a cell.
    """
    corner = coords.min(axis=0)
    extent = (coords.max(axis=0) - corner).astype(np.float64)
    pitch = max(tile_pitch(coords), float(extent.max()) / (max_cells - 1))
    cells = np.floor((coords - corner) / pitch + 1e-6).astype(np.int64)
    columns, rows = (cells.max(axis=0) + 1).tolist()
    return cells[:, 1] * columns + cells[:, 0], (rows, columns)


def raster(values: Floats, cells: Integers, shape: tuple[int, int]) -> Floats:
    """An image of the values of tiles: the largest value in each cell, NaN in cells without a tile."""
    image = np.full(shape[0] * shape[1], -np.inf)
    np.maximum.at(image, cells, values)
    image[np.isneginf(image)] = np.nan
    return image.reshape(shape)


def matrix_figure(table: Table) -> str:
    """A table of counts whose cells are shaded, such as a confusion matrix, as SVG: counts and shares of their row."""
    rows = list(table.cells())
    shares = np.array([[cell.shade or 0.0 for cell in row[1:]] for row in rows])
    with new_figure(ONE_COLUMN, 1.4 + 0.55 * len(rows), axes_grid=False) as figure:
        axes = figure.add_subplot()
        axes.set(xlim=(-0.5, shares.shape[1] - 0.5), ylim=(len(rows) - 0.5, -0.5))
        for row, column in np.ndindex(*shares.shape):
            share, cell = shares[row, column], rows[row][column + 1]
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=COLORS[0], alpha=0.9 * share))
            ink = "white" if share > DARK_SHARE else TEXT
            axes.text(column, row, f"{cell.text}\n{100 * share:.0f} %", ha="center", va="center", color=ink)
        axes.set_xticks(range(shares.shape[1]), ["\n".join(wrap(plain_text(name), 14)) for name in table.columns[1:]])
        axes.set_yticks(range(len(rows)), ["\n".join(wrap(plain_text(row[0].text), 20)) for row in rows])
        axes.set(ylabel=plain_text(table.columns[0]))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        return svg_text(figure)
