"""A document as one HTML file that needs nothing else.

Figures are embedded as images, so nothing in them can run. The template escapes all text.
"""

from __future__ import annotations

import base64
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from asmil.reporting.document import Document
from asmil.version import __version__


def html_document(document: Document) -> str:
    """The whole page as text."""
    return _environment().get_template("document.html").render(document=document, **_frame())


def image_address(content: str | bytes) -> str:
    """SVG text or PNG bytes as the address of an image."""
    kind, data = ("svg+xml", content.encode()) if isinstance(content, str) else ("png", content)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def prose(text: str) -> Markup:
    """Escaped text, with text between backticks set as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _frame() -> dict[str, Any]:
    style = files("asmil.reporting").joinpath("templates/page.css").read_text(encoding="utf-8")
    return {"style": Markup(style), "version": __version__}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("asmil.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = prose
    environment.filters["image_address"] = image_address
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment
