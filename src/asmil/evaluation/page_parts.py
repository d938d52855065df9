"""What pages are made of: the frame, tables, images.

Figures are images with their content inside the address, so that a page needs no other file and nothing in them
can run. Names and texts given here are escaped; what is called content or a row is HTML already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from asmil.reporting import settings_table
from asmil.reporting.page import html_page, image_address


def whole_page(title: str, blocks: Iterable[str]) -> str:
    """A page of the given blocks of HTML, with its style inside."""
    return html_page(title, list(blocks))


def caveat_section(sentences: Iterable[str]) -> str:
    """What a reader must know, as a list at the end of a page."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<section><h2>How to read these numbers</h2><ul>{items}</ul></section>"


def settings_block(config: Mapping[str, Any]) -> str:
    """The settings of a run, folded away."""
    rows = [
        tag("th", escape(str(key)), scope="row") + tag("td", escape(str(value)))
        for key, value in settings_table(config).rows
    ]
    return f"<details><summary>Settings</summary>{html_table(['setting', 'value'], rows, css='settings')}</details>"


def image(picture: str | bytes | None, title: str) -> str:
    """A figure of SVG text or of PNG bytes; nothing for None."""
    if picture is None:
        return ""
    return f'<figure><img alt="{escape(title)}" src="{image_address(picture)}"></figure>'


def html_table(head: Iterable[str], rows: Iterable[str], css: str = "") -> str:
    """A table that scrolls sideways where it is too wide; a row is the HTML of its cells."""
    header = "".join(tag("th", escape(name), scope="col") for name in head)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{css}"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def tag(name: str, content: str, **attributes: str) -> str:
    """An element around HTML."""
    written = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{content}</{name}>"
