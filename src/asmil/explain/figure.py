"""The figure of a slide: panels with the slide, its maps and annotations, each with a legend and a scale bar.

Maps are drawn as they were computed: one color per tile without blur, the same opacity for every tile, and the slide
below a map in gray, so that all colors belong to the map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray
from shapely import MultiPolygon, get_coordinates, get_parts, get_rings

from asmil.explain import canvas
from asmil.explain.canvas import Box, write
from asmil.explain.caveats import NO_CAVEATS, Caveats
from asmil.explain.color_scale import ColorScale, lookup_table
from asmil.explain.tile_map import SlideFrame, TileMap
from asmil.explain.tile_raster import NO_TILE, TileRaster, tile_raster
from asmil.slides.image import Pixels, SlideImage
from asmil.slides.overview import read_overview
from asmil.slides.pixel_regions import resize
from asmil.slides.qc import SUBPIXEL_BITS, subpixel_points
from asmil.tables.arrays import Floats

PANEL_PX = 900
"""The longer side of a panel."""
LARGEST_OVERVIEW = 4096
MARGIN_TILES = 2.0
GAP, EDGE, TITLE, PANEL_TITLE, LEGEND = 24, 20, 84, 40, 104
"""In pixels: space between panels and around the figure, and the heights of texts."""
SMALLEST_PANEL, SMALL_LEGEND = 320, 92
READABLE = 6 / 72 * 25.4 / 180
"""Height of text that is 6 points if the figure is printed 180 mm wide, as a share of its width."""
WIDE_PANEL = 560
"""Panels of at least this width have larger text."""
GLASS = 244
"""The gray of the background, and of a canvas without a slide."""
OPACITY = 0.65
CONTOUR_HALO, CONTOUR_INK = (255, 255, 255), (10, 10, 10)


@dataclass(frozen=True)
class View:
    """A part of the slide as a picture.

    pixels: height x width x 3; None if there is no slide image
    left, top: level-0 position of its corner; downsample: level-0 pixels per pixel of the picture, (x, y)
    """

    pixels: Pixels | None
    width: int
    height: int
    left: float
    top: float
    downsample: tuple[float, float]

    def tiles(self, raster: TileRaster) -> NDArray[np.int32]:
        """The tile at every pixel of the view, or NO_TILE."""
        x = self.left + (np.arange(self.width) + 0.5) * self.downsample[0]
        y = self.top + (np.arange(self.height) + 0.5) * self.downsample[1]
        return raster.at(x, y)


def tissue_view(frame: SlideFrame, image: SlideImage | None, side_px: int = PANEL_PX) -> View:
    """The part of a slide that contains its tiles, with a margin, at most `side_px` wide and high."""
    margin = MARGIN_TILES * frame.tile_px
    left, top = (max(0.0, float(low) - margin) for low in frame.coords.min(axis=0))
    ends = frame.coords.max(axis=0) + frame.tile_px + margin
    right, bottom = (min(float(size), float(end)) for size, end in zip(frame.size_px, ends, strict=True))
    right, bottom = max(right, left + frame.tile_px), max(bottom, top + frame.tile_px)
    longest = max(right - left, bottom - top)
    if image is None:
        width, height = (max(1, round(side_px * side / longest)) for side in (right - left, bottom - top))
        return View(None, width, height, left, top, ((right - left) / width, (bottom - top) / height))
    wanted = side_px / longest * max(image.size)
    overview = read_overview(image, max_side=max(1, round(min(wanted, LARGEST_OVERVIEW))))
    step_x, step_y = overview.downsample
    first_column, first_row = int(left / step_x), int(top / step_y)
    last_column = min(overview.pixels.shape[1], math.ceil(right / step_x))
    last_row = min(overview.pixels.shape[0], math.ceil(bottom / step_y))
    cut = overview.pixels[first_row:last_row, first_column:last_column]
    # small slides are enlarged, to have enough space for text and maps
    grow = side_px / max(cut.shape[:2])
    width, height = (max(1, round(side * grow)) for side in (cut.shape[1], cut.shape[0]))
    step = (step_x * cut.shape[1] / width, step_y * cut.shape[0] / height)
    return View(resize(cut, width, height), width, height, first_column * step_x, first_row * step_y, step)


def draw_map(view: View, raster: TileRaster, values: Floats, scale: ColorScale, opacity: float = OPACITY) -> Pixels:
    """The view in gray with the colors of the tiles over it; without a slide, on a plain background."""
    tiles = view.tiles(raster)
    picture = _gray(view)
    shown = tiles != NO_TILE
    shown[shown] = ~np.isnan(values[tiles[shown]])
    opacity = opacity if view.pixels is not None else 1.0
    blended = picture[shown] * (1 - opacity) + scale.colors(values)[tiles[shown]] * opacity
    picture[shown] = np.rint(blended).astype(np.uint8)
    return picture


def draw_contours(picture: Pixels, view: View, shapes: Sequence[MultiPolygon]) -> Pixels:
    """A copy of a picture with the outlines of annotations: a dark line with a light border, visible on every color."""
    drawn = picture.copy()
    rings = [get_coordinates(ring) for shape in shapes for ring in get_rings(get_parts(shape))]
    outlines = [subpixel_points(ring - (view.left, view.top), view.downsample) for ring in rings]
    for color, thickness in ((CONTOUR_HALO, 5), (CONTOUR_INK, 2)):
        cv2.polylines(drawn, outlines, True, color, thickness, cv2.LINE_AA, SUBPIXEL_BITS)
    return drawn


@dataclass(frozen=True)
class Panel:
    """One picture of a figure with its title and, for a map, the scale of its legend."""

    title: str
    pixels: Pixels
    scale: ColorScale | None = None
    unit: str = ""


def map_panels(
    frame: SlideFrame,
    view: View,
    maps: Sequence[TileMap],
    scales: Sequence[ColorScale],
    annotations: Sequence[MultiPolygon] | None = None,
    opacity: float = OPACITY,
    main: int = 0,
) -> list[Panel]:
    """The panels of a figure: the slide, one per map, and one with annotations, if there are any.

    annotations: outlines, in level-0 pixels; main: index of the map that they are drawn on
    """
    raster = tile_raster(frame.coords, frame.tile_px)
    drawn = []
    for tile_map, scale in zip(maps, scales, strict=True):
        picture = draw_map(view, raster, tile_map.values, scale, opacity)
        drawn.append(Panel(tile_map.title or tile_map.kind, picture, scale, tile_map.about or tile_map.kind))
    panels = [*([] if view.pixels is None else [Panel("slide", view.pixels.copy())]), *drawn]
    if annotations:
        ground = drawn[main]
        outlined = draw_contours(ground.pixels, view, annotations)
        panels.append(replace(ground, title=f"{ground.title} with annotations", pixels=outlined))
    for panel in panels:
        canvas.draw_scale_bar(panel.pixels, view.downsample[0], frame.mpp)
    return panels


def arrange(
    title: str,
    about: str,
    panels: Sequence[Panel],
    opacity: float = OPACITY,
    caveats: Caveats = NO_CAVEATS,
) -> tuple[Pixels, list[Box]]:
    """Panels of one size in rows under a title, each with its own title above it and its legend below.

    Also returns the boxes of the pictures and color bars; everything else is text.

    caveats: written below the title
    """
    height, width = panels[0].pixels.shape[:2]
    cell_width = max(width, SMALLEST_PANEL)
    columns = _columns(len(panels), cell_width, height)
    lines = math.ceil(len(panels) / columns)
    total_width = 2 * EDGE + columns * cell_width + (columns - 1) * GAP
    readable = math.ceil(READABLE * total_width)
    size = max(readable, 20 if cell_width >= WIDE_PANEL else 15)
    title_height, panel_title, legend = (round(part * max(1.0, size / 20)) for part in (TITLE, PANEL_TITLE, LEGEND))
    cell_height = panel_title + height + legend
    room = total_width - 2 * EDGE
    heading = title_height + caveats.height(room, size)
    total_height = 2 * EDGE + heading + lines * cell_height + (lines - 1) * GAP
    figure = np.full((total_height, total_width, 3), canvas.PAPER[0], dtype=np.uint8)
    write(figure, canvas.shortened(title, room, size + 8, bold=True), EDGE, EDGE, size + 8, bold=True)
    write(figure, canvas.shortened(about, room, size), EDGE, EDGE + size + 20, size, color=canvas.SOFT_INK)
    caveats.draw(figure, EDGE, EDGE + 2 * size + 28, room, size)
    pictures = []
    for number, panel in enumerate(panels):
        line, column = divmod(number, columns)
        left = EDGE + column * (cell_width + GAP)
        top = EDGE + heading + line * (cell_height + GAP)
        write(figure, canvas.shortened(panel.title, cell_width, size, bold=True), left, top + 8, size, bold=True)
        inset = left + (cell_width - width) // 2
        pictures.append(Box(inset, top + panel_title, width, height))
        figure[pictures[-1].pixels] = panel.pixels
        if panel.scale is not None:
            below = top + panel_title + height + 8
            pictures.append(_draw_legend(figure, left, below, cell_width, panel.scale, panel.unit, opacity, readable))
    return figure, pictures


def panel_with_legend(panel: Panel, opacity: float = OPACITY) -> Pixels:
    """A panel above its legend, without titles: RGBA, for a page that may be light or dark."""
    height, width = panel.pixels.shape[:2]
    total_width = max(width, SMALLEST_PANEL)
    inset = (total_width - width) // 2
    legend_height = 0 if panel.scale is None else LEGEND if total_width >= WIDE_PANEL else SMALL_LEGEND
    drawn = np.full((height + legend_height, total_width, 3), canvas.PAPER[0], dtype=np.uint8)
    pictures = [Box(inset, 0, width, height)]
    drawn[pictures[0].pixels] = panel.pixels
    if panel.scale is not None:
        pictures.append(_draw_legend(drawn, 0, height + 8, total_width, panel.scale, panel.unit, opacity))
    return canvas.on_any_ground(drawn, pictures)


def _draw_legend(
    figure: Pixels,
    left: int,
    top: int,
    width: int,
    scale: ColorScale,
    unit: str,
    opacity: float,
    smallest_text: int = 0,
) -> Box:
    """Draw a bar of the scale's colors as they look on the map, with numbers and their meaning; returns its box."""
    bar_left, bar_width = left + 36, min(width - 72, 640)
    size = max(smallest_text, 18 if width >= WIDE_PANEL else 15)
    codes = np.rint(np.linspace(0, 255, bar_width)).astype(np.uint8)
    colors = lookup_table(scale.color_map)[codes] * opacity + GLASS * (1 - opacity)
    if scale.kind == "absolute" and scale.high <= scale.low:
        colors[:] = colors[bar_width // 2]
    figure[top : top + 16, bar_left : bar_left + bar_width] = np.rint(colors).astype(np.uint8)
    ticks = scale.ticks()
    widest = max(canvas.text_width(part, size) for _, text in ticks for part in text.split("  "))
    if widest + size > bar_width / 4:
        ticks = ticks[::2]
    for position, text in ticks:
        x = bar_left + round(position * (bar_width - 1))
        figure[top + 16 : top + 21, x] = canvas.INK
        for line, part in enumerate(text.split("  ")):
            write(figure, part, x, top + 23 + (size + 3) * line, size, anchor="ma")
    below = top + 27 + (size + 3) * (2 if scale.kind == "percentile" else 1)
    caption, lines_left = scale.caption(unit), 1 if scale.kind == "percentile" else 2
    lines = canvas.wrapped(caption, width - 40, size)
    for sentence in lines if len(lines) <= lines_left else [canvas.shortened(caption, width - 40, size)]:
        write(figure, sentence, bar_left, below, size, color=canvas.SOFT_INK)
        below += size + 3
    return Box(bar_left, top, bar_width, 16)


def _gray(view: View) -> Pixels:
    """The slide in gray, a little lighter, so that dark tissue does not darken the colors over it."""
    if view.pixels is None:
        return np.full((view.height, view.width, 3), GLASS, dtype=np.uint8)
    gray = cv2.cvtColor(view.pixels, cv2.COLOR_RGB2GRAY)
    lighter = np.rint(gray * 0.75 + 255 * 0.25).astype(np.uint8)
    return np.repeat(lighter[..., None], 3, axis=2)


def _columns(panels: int, width: int, height: int) -> int:
    """So many that the figure is about twice as wide as high; up to three panels are in one row, none is alone."""
    if panels <= 4:
        return 2 if panels == 4 and width >= height else panels
    columns = max(1, min(panels, round(math.sqrt(2.0 * panels * (height + PANEL_TITLE + LEGEND) / width))))
    return columns - 1 if columns > 2 and panels % columns == 1 else columns
