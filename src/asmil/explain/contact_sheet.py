"""The tiles with the highest and the lowest values, as pictures with their numbers."""

from __future__ import annotations

import math

import numpy as np

from asmil.explain.canvas import PAPER, SOFT_INK, shortened, write
from asmil.explain.caveats import NO_CAVEATS, Caveats
from asmil.explain.color_scale import ColorScale
from asmil.explain.tile_map import SlideFrame, TileMap
from asmil.reporting.formats import format_alike
from asmil.slides.image import Pixels, SlideImage
from asmil.slides.tiling import TileReader
from asmil.tables.arrays import Floats, Integers

SHOWN_TILES = 12
TILE_PX = 224
COLUMNS = 6
EDGE, GAP, TITLE, HEADING, CAPTION, FRAME_PX = 20, 10, 60, 34, 40, 6


def top_tiles(values: Floats, count: int) -> Integers:
    """The tiles with the highest values, highest first; ties: the earlier tile. Tiles without a value are left out."""
    order = np.argsort(-values, kind="stable")
    return order[~np.isnan(values[order])][:count]


def bottom_tiles(values: Floats, count: int) -> Integers:
    """The tiles with the lowest values, lowest first."""
    return top_tiles(-values, count)


def extreme_tiles(values: Floats, count: int) -> tuple[Integers, Integers]:
    """The `count` highest and the `count` lowest tiles; fewer on a small slide, so that no tile is in both."""
    with_value = int((~np.isnan(values)).sum())
    return top_tiles(values, min(count, (with_value + 1) // 2)), bottom_tiles(values, min(count, with_value // 2))


def contact_sheet(
    frame: SlideFrame,
    image: SlideImage,
    shown: TileMap,
    scale: ColorScale,
    about: str,
    count: int = SHOWN_TILES,
    caveats: Caveats = NO_CAVEATS,
) -> Pixels:
    """The `count` highest and lowest tiles at full resolution, framed in their color, with value and position.

    caveats: written below the title
    """
    highest, lowest = extreme_tiles(shown.values, count)
    groups = [("highest", highest), *([("lowest", lowest)] if len(lowest) else [])]
    columns = max(1, min(COLUMNS, max(len(tiles) for _, tiles in groups)))
    cell = TILE_PX + 2 * FRAME_PX
    lines = [math.ceil(len(tiles) / columns) for _, tiles in groups]
    width = max(2 * EDGE + columns * cell + (columns - 1) * GAP, 600)
    heading_px = TITLE + caveats.height(width - 2 * EDGE, 14)
    height = 2 * EDGE + heading_px + sum(HEADING + count * (cell + CAPTION) for count in lines)
    sheet = np.full((height, width, 3), PAPER[0], dtype=np.uint8)
    write(sheet, shortened(frame.slide, width - 2 * EDGE, 22, bold=True), EDGE, EDGE, 22, bold=True)
    write(sheet, shortened(about, width - 2 * EDGE, 14), EDGE, EDGE + 32, 14, color=SOFT_INK)
    caveats.draw(sheet, EDGE, EDGE + 52, width - 2 * EDGE, 14)
    reader = TileReader(image, max(1, round(frame.tile_px)), TILE_PX)
    top = EDGE + heading_px
    values, unit = (scale.relative(shown.values), " × average") if scale.kind == "relative" else (shown.values, "")
    written = iter(format_alike([float(values[tile]) for _, tiles in groups for tile in tiles]))
    for (name, tiles), count_lines in zip(groups, lines, strict=True):
        heading = f"{name} {shown.kind}" + (f" ({shown.which})" if shown.which else "")
        write(sheet, heading, EDGE, top + 6, 15, bold=True)
        top += HEADING
        colors = scale.colors(shown.values[tiles])
        pictures = reader.read(frame.coords[tiles])
        for rank, (tile, picture, color) in enumerate(zip(tiles.tolist(), pictures, colors, strict=True)):
            line, column = divmod(rank, columns)
            left, at = EDGE + column * (cell + GAP), top + line * (cell + CAPTION)
            sheet[at : at + cell, left : left + cell] = color
            sheet[at + FRAME_PX : at + cell - FRAME_PX, left + FRAME_PX : left + cell - FRAME_PX] = picture
            x, y = frame.coords[tile].tolist()
            write(sheet, f"{rank + 1}.  {next(written)}{unit}", left, at + cell + 3, 13, bold=True)
            write(sheet, f"x {x}, y {y}", left, at + cell + 19, 12, color=SOFT_INK)
        top += count_lines * (cell + CAPTION)
    return sheet
