"""Drawing on pictures: text and scale bars."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from asmil.slides.image import Pixels

INK, SOFT_INK, PAPER = (30, 36, 44), (96, 105, 116), (255, 255, 255)
ALARM_INK = (176, 32, 32)
BAR_SHARE = 0.25
"""Length of a scale bar, as a share of the picture's width."""
LARGEST_BAR_TEXT = 36
NICE = (1, 2, 5)
PICTURE_BOXES = "asmil pictures"
"""Key of the PNG text that says where the pictures of a figure are, so that a page can replace its background."""
ANY_GROUND_INK = (122, 132, 144)
"""A gray that has contrast on white and on black."""


class Box(NamedTuple):
    """A rectangle of a picture, in pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def pixels(self) -> tuple[slice, slice]:
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


def boxes_text(boxes: Iterable[Box]) -> str:
    """Boxes as one line of text.

    >>> boxes_text([Box(1, 2, 30, 40), Box(5, 6, 7, 8)])
    '1 2 30 40; 5 6 7 8'
    """
    return "; ".join(" ".join(map(str, box)) for box in boxes)


def boxes_of(text: str) -> list[Box]:
    """The boxes of a line of `boxes_text`."""
    return [Box(*map(int, numbers.split())) for numbers in text.split(";")]


def on_any_ground(figure: Pixels, pictures: Iterable[Box]) -> Pixels:
    """A figure on white paper as RGBA for a page that may be light or dark.

    pictures: what keeps its colors; all other dark text on white becomes gray text on a transparent background
    """
    coverage = np.minimum(1.0, 1.7 * (1 - figure.mean(axis=2) / 255.0))
    drawn = np.empty((*figure.shape[:2], 4), dtype=np.uint8)
    drawn[..., :3] = ANY_GROUND_INK
    drawn[..., 3] = np.rint(255 * coverage)
    for box in pictures:
        drawn[box.pixels][..., :3] = figure[box.pixels]
        drawn[box.pixels][..., 3] = 255
    return drawn


@cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """The font that is part of matplotlib, so that pictures look the same everywhere."""
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def write(
    picture: Pixels,
    text: str,
    x: int,
    y: int,
    size: int = 14,
    bold: bool = False,
    color: tuple[int, int, int] = INK,
    anchor: str = "la",
) -> None:
    """Write one line into a picture; `anchor` as in Pillow: l, m, r for x and a (top), m, s (baseline) for y."""
    # only the rows of the line are converted, since pictures are large
    top, bottom = max(0, y - 2 * size), min(picture.shape[0], y + 2 * size)
    if bottom <= top:
        return
    strip = Image.fromarray(picture[top:bottom])
    ImageDraw.Draw(strip).text((x, y - top), text, font=font(size, bold), fill=color, anchor=anchor)
    picture[top:bottom] = np.asarray(strip)


def text_width(text: str, size: int = 14, bold: bool = False) -> int:
    """Width of a line in pixels."""
    return int(np.ceil(font(size, bold).getlength(text)))


def shortened(text: str, width: int, size: int = 14, bold: bool = False) -> str:
    """The text; the middle is left out if it is wider than `width` pixels."""
    short, kept = text, len(text)
    while kept > 2 and text_width(short, size, bold) > width:
        kept -= 1
        short = text[: -(-kept // 2)] + "…" + text[len(text) - kept // 2 :]
    return short


def wrapped(text: str, width: int, size: int = 14, bold: bool = False) -> list[str]:
    """The text in lines of at most `width` pixels; the middle of a longer word is left out."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, bold) <= width:
            lines[-1] = longer
        else:
            lines.append(shortened(word, width, size, bold))
    return lines


def draw_scale_bar(picture: Pixels, downsample: float, mpp: float | None) -> None:
    """A bar of a round length in the lower left corner, in microns or millimeters; in pixels if mpp is unknown.

    downsample: level-0 pixels per pixel of the picture
    """
    height, width = picture.shape[:2]
    per_pixel = downsample * (mpp or 1.0)
    length = nice_length(BAR_SHARE * width * per_pixel)
    pixels = max(2, round(length / per_pixel))
    text = f"{length:g} {'px' if mpp is None else 'µm'}"
    if mpp is not None and length >= 1000:
        text = f"{length / 1000:g} mm"
    size = max(11, min(LARGEST_BAR_TEXT, width // 20))
    box_width, box_height = max(pixels, text_width(text, size)) + 16, size + 22
    left, top = 10, height - box_height - 10
    if box_width + left > width or top < 0:
        return
    box = picture[top : top + box_height, left : left + box_width]
    box[:] = np.rint(box * 0.15 + 255 * 0.85).astype(np.uint8)
    picture[top + box_height - 12 : top + box_height - 8, left + 8 : left + 8 + pixels] = INK
    write(picture, text, left + 8, top + 5, size)


def nice_length(length: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is not above `length`.

    >>> nice_length(730.0), nice_length(49.0), nice_length(0.3)
    (500.0, 20.0, 0.2)
    """
    power = 10.0 ** np.floor(np.log10(length))
    return float(max(step * power for step in NICE if step * power <= length * (1 + 1e-9)))
