"""Figures of pages as files for print: PDF, SVG and PNG in the column widths of journals.

A page holds the drawing of a figure as the SVG that matplotlib wrote. It is drawn again from this SVG, so any page can
be printed, without its data. Text stays text in a PDF, so that journals can edit it.
"""

from __future__ import annotations

import html
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args
from xml.etree.ElementTree import Element

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.transforms import Affine2D
from PIL import Image

from asmil.reporting.page import image_address

Width = Literal[85, 180]
"""In mm: one column and two columns of a journal."""
DOTS_PER_INCH = 300
SMALLEST_TEXT_PT = 6.0
MM_PER_INCH, POINTS_PER_INCH = 25.4, 72.0
SVG, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
CODES = {"M": (Outline.MOVETO, 1), "L": (Outline.LINETO, 1), "Q": (Outline.CURVE3, 2), "C": (Outline.CURVE4, 3)}
CAPS = {"square": "projecting"}
UNITS_PER_EM = 100.0
"""Of the glyphs in the SVG: their scale is the size of the text divided by this."""


def print_files(content: str | bytes, width: Width | None = None) -> dict[str, bytes]:
    """The PDF, SVG and PNG files of a figure, by their endings; content: SVG of matplotlib, or a PNG.

    width: default: one column if the text is readable then, else two
    """
    width = width or column_width(content)
    figure = _vector(content, width) if isinstance(content, str) else _picture(content, width)
    written = {"svg": _with_width(content, width)}
    with rc_context({"pdf.fonttype": 42}):
        for ending, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, dpi=DOTS_PER_INCH, metadata=metadata)
            written[ending] = buffer.getvalue()
    return written


def column_width(content: str | bytes) -> Width:
    """One column if all text is at least 6 points high then, else two; pictures get two."""
    if isinstance(content, bytes):
        return 180
    smallest = min((size for size in _Drawing.read(content).text_sizes()), default=np.inf)
    return next((width for width in _widths() if smallest * _factor(content, width) >= SMALLEST_TEXT_PT), 180)


def _widths() -> tuple[Width, ...]:
    return get_args(Width)


def _factor(svg: str, width: Width) -> float:
    return _inches(width) * POINTS_PER_INCH / _Drawing.read(svg).size[0]


def _inches(width: Width) -> float:
    """The width, so that it has a whole number of dots."""
    return round(width / MM_PER_INCH * DOTS_PER_INCH) / DOTS_PER_INCH


def _with_width(content: str | bytes, width: Width) -> bytes:
    """The figure as SVG of this width."""
    if isinstance(content, bytes):
        across, down = Image.open(io.BytesIO(content)).size
        address = image_address(content)
        size = f'width="{width}mm" height="{width * down / across:.3f}mm" viewBox="0 0 {across} {down}"'
        picture = f'<image width="{across}" height="{down}" xlink:href="{address}"/>'
        spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        return f"<svg {spaces} {size}>{picture}</svg>\n".encode()
    points = _Drawing.read(content).size
    size = f'width="{width}mm" height="{width * points[1] / points[0]:.3f}mm"'
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', size, content, count=1).encode()


def _picture(content: bytes, width: Width) -> Figure:
    """A picture on white paper."""
    image = Image.open(io.BytesIO(content)).convert("RGBA")
    paper = Image.new("RGBA", image.size, "white")
    paper.alpha_composite(image)
    inches = _inches(width)
    figure = Figure(figsize=(inches, inches * image.height / image.width))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(np.asarray(paper.convert("RGB")), aspect="auto", interpolation="antialiased")
    axes.set_axis_off()
    return figure


def _vector(svg: str, width: Width) -> Figure:
    drawing = _Drawing.read(svg)
    factor = _factor(svg, width)
    across, down = drawing.size
    figure = Figure(figsize=(across * factor / POINTS_PER_INCH, down * factor / POINTS_PER_INCH))
    to_inches = Affine2D().translate(0, -down).scale(factor, -factor).scale(1 / POINTS_PER_INCH)
    for artist in drawing.artists(to_inches + figure.dpi_scale_trans, factor):
        figure.add_artist(artist)
    return figure


@dataclass(frozen=True)
class _Drawing:
    """The SVG of matplotlib: its size in points, and its elements by their names."""

    root: Element
    size: tuple[float, float]
    named: Mapping[str, Element]

    @classmethod
    def read(cls, svg: str) -> _Drawing:
        parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
        root = ElementTree.fromstring(svg, parser)
        _, _, across, down = map(float, root.attrib["viewBox"].split())
        named = {element.attrib["id"]: element for element in root.iter() if "id" in element.attrib}
        return cls(root, (across, down), named)

    def texts(self) -> Iterator[tuple[str, Element]]:
        """The lines of text, each with the element of its glyphs."""
        for group in self.root.iter(f"{SVG}g"):
            yield from _lines(group)

    def text_sizes(self) -> Iterator[float]:
        """In points."""
        for _, glyphs in self.texts():
            yield UNITS_PER_EM * _numbers(glyphs.attrib["transform"], "scale")[0]

    def artists(self, transform: Any, factor: float) -> Iterator[Artist]:
        """Everything that is drawn, in order; factor: of line widths and text."""
        yield from self._within(self.root, transform, factor, None)

    def _within(self, parent: Element, transform: Any, factor: float, clip: Element | None) -> Iterator[Artist]:
        if parent.attrib.get("id", "").startswith("text_"):
            for text, glyphs in _lines(parent):
                yield _text(text, glyphs, transform, factor)
            return
        for element in parent:
            within = self._clip(element, clip)
            if element.tag == f"{SVG}g":
                yield from self._within(element, transform, factor, within)
            elif element.tag == f"{SVG}path" and "d" in element.attrib:
                artist = _patch(element.attrib["d"], _style(element), transform, factor)
                yield _clipped(artist, within, transform)
            elif element.tag == f"{SVG}use":
                marker = self.named[element.attrib[LINK][1:]]
                moved = Affine2D().translate(float(element.attrib["x"]), float(element.attrib["y"])) + transform
                artist = _patch(marker.attrib["d"], _style(element) | _style(marker), moved, factor)
                yield _clipped(artist, within, transform)

    def _clip(self, element: Element, outer: Element | None) -> Element | None:
        name = re.fullmatch(r"url\(#(\w+)\)", element.attrib.get("clip-path", ""))
        return self.named[name[1]][0] if name else outer


def _lines(group: Element) -> Iterator[tuple[str, Element]]:
    """The lines of a text: matplotlib writes each as a comment, followed by its glyphs."""
    for comment, glyphs in pairwise(group):
        # the tag of a comment is the function that makes comments
        if callable(comment.tag) and glyphs.tag == f"{SVG}g":
            yield html.unescape((comment.text or "").strip()), glyphs


def _text(text: str, glyphs: Element, transform: Any, factor: float) -> Artist:
    from matplotlib.text import Text

    written = glyphs.attrib["transform"]
    angle = _numbers(written, "rotate")
    style = _style(glyphs)
    left, bottom = _numbers(written, "translate")
    return Text(
        left,
        bottom,
        text,
        transform=transform,
        fontsize=UNITS_PER_EM * _numbers(written, "scale")[0] * factor,
        rotation=-angle[0] if angle else 0,
        rotation_mode="anchor",
        verticalalignment="baseline",
        color=style.get("fill", "#000000"),
        alpha=float(style.get("opacity", 1)),
        fontweight="bold" if any("-Bold" in use.attrib[LINK] for use in glyphs.iter(f"{SVG}use")) else "normal",
    )


def _numbers(transform: str, name: str) -> list[float]:
    """The arguments of a function in a transform; empty if it has none of this name."""
    given = re.search(rf"{name}\(([^)]*)\)", transform)
    return [float(number) for number in re.split(r"[ ,]+", given[1])] if given else []


def _style(element: Element) -> dict[str, str]:
    pairs = (part.partition(":") for part in element.attrib.get("style", "").split(";") if part.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _patch(outline: str, style: Mapping[str, str], transform: Any, factor: float) -> PathPatch:
    def color(name: str, default: str) -> tuple[str, float] | str:
        value = style.get(name, default)
        return value if value == "none" else (value, opacity * float(style.get(f"{name}-opacity", 1)))

    opacity = float(style.get("opacity", 1))
    dashes = [factor * float(length) for length in style.get("stroke-dasharray", "").split(",") if length]
    cap = style.get("stroke-linecap", "butt")
    return PathPatch(
        _outline(outline),
        transform=transform,
        facecolor=color("fill", "#000000"),
        edgecolor=color("stroke", "none"),
        linewidth=factor * float(style.get("stroke-width", 1)) if "stroke" in style else 0,
        linestyle=(factor * float(style.get("stroke-dashoffset", 0)), dashes) if dashes else "-",
        capstyle=CAPS.get(cap, cap),
        joinstyle=style.get("stroke-linejoin", "round"),
    )


def _outline(text: str) -> Outline:
    vertices: list[tuple[float, float]] = []
    codes: list[int] = []
    words = iter(text.split())
    for word in words:
        if word == "z":
            vertices.append((0.0, 0.0))
            codes.append(int(Outline.CLOSEPOLY))
            continue
        code, points = CODES[word]
        vertices += [(float(next(words)), float(next(words))) for _ in range(points)]
        codes += [int(code)] * points
    return Outline(np.array(vertices).reshape(-1, 2), codes)


def _clipped(artist: Artist, clip: Element | None, transform: Any) -> Artist:
    if clip is not None:
        left, top, width, height = (float(clip.attrib[name]) for name in ("x", "y", "width", "height"))
        artist.set_clip_path(Rectangle((left, top), width, height, transform=transform))
    return artist
