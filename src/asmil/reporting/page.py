"""Render a document as a self-contained HTML file.

Figures are embedded as images, so scripts in them cannot run. The template escapes all text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from asmil.reporting.document import Document, Link
from asmil.version import __version__

LINKS_START, LINKS_END = "<!-- links -->", "<!-- end of links -->"
LINKS = re.compile(f"{LINKS_START}.*?{LINKS_END}", re.DOTALL)
"""Where `asmil index` puts links to the other pages."""
WIDE_PT, WIDE_PX = 560.0, 900
"""Figures wider than this, in points or pixels, keep their size on a phone."""


def html_document(document: Document) -> str:
    """The whole page as text."""
    style = files("asmil.reporting").joinpath("templates/page.css").read_text(encoding="utf-8")
    frame = {"style": Markup(style), "version": __version__, "no_links": Markup(LINKS_START + LINKS_END)}
    return _environment().get_template("document.html").render(document=document, **frame)


def with_links(page: str, links: Sequence[Link]) -> str:
    """A page with links to other pages at its top, in place of those it had; a page without room for them as it is."""
    listed = " · ".join(f'<a href="{escape(link.address)}">{escape(link.text)}</a>' for link in links)
    content = f'<nav class="pages">{listed}</nav>' if links else ""
    return LINKS.sub(lambda _: f"{LINKS_START}{content}{LINKS_END}", page, count=1)


def image_address(content: str | bytes) -> str:
    """SVG text or PNG bytes as a data URL."""
    kind, data = ("svg+xml", content.encode()) if isinstance(content, str) else ("png", content)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def is_wide(content: str | bytes) -> bool:
    """Whether a figure would be too small to read on a phone, where it gets a scroll bar instead."""
    if isinstance(content, bytes):
        return int.from_bytes(content[16:20]) > WIDE_PX  # the width in the header of a PNG
    width = re.search(r'<svg[^>]*? width="([\d.]+)pt"', content)
    return width is not None and float(width[1]) > WIDE_PT


def prose(text: str) -> Markup:
    """Escaped text; text between backticks becomes code, and a number and its percent sign stay on one line."""
    kept_together = re.sub(r"(?<=\d) %", "\u00a0%", str(escape(text)))
    return Markup(re.sub("`([^`]*)`", _code, kept_together))


def breakable(text: str) -> Markup:
    """An escaped name that wraps after a dot, underscore, slash or equals sign, but not within words."""
    return Markup(re.sub(r"(?<=\w\w)([._/=])(?=[^\W\d]\w)", r"\1<wbr>", str(escape(text))))


def _code(match: re.Match[str]) -> str:
    # browsers wrap lines after the hyphens of an option
    words = re.sub(r"(?<!\S)--?[\w-]+", r"<span>\g<0></span>", match[1])
    return f"<code>{words}</code>"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("asmil.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {function.__name__: function for function in (prose, is_wide, breakable, image_address)}
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment
