"""What pages are made of: the frame, tables, images.

Figures are images with their content inside the address, so that a page needs no other file and nothing in them
can run. Names and texts given here are escaped; what is called content or a row is HTML already.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from asmil.version import __version__


def whole_page(title: str, blocks: Iterable[str]) -> str:
    """A page of the given blocks of HTML, with its style inside."""
    style = files("asmil.evaluation").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(blocks)
        + f"\n<footer>Written by asmil {escape(__version__)}.</footer>\n</main>\n</body>\n</html>\n"
    )


def caveat_section(sentences: Iterable[str]) -> str:
    """What a reader must know, as a list at the end of a page."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<section><h2>How to read these numbers</h2><ul>{items}</ul></section>"


def settings_block(config: Mapping[str, Any]) -> str:
    """The settings of a run, folded away."""
    rows = [tag("th", escape(key), scope="row") + tag("td", escape(value)) for key, value in _flat(config)]
    return f"<details><summary>Settings</summary>{html_table(['setting', 'value'], rows, css='settings')}</details>"


def image(picture: str | bytes | None, title: str) -> str:
    """A figure of SVG text or of PNG bytes; nothing for None."""
    if picture is None:
        return ""
    kind, content = ("svg+xml", picture.encode()) if isinstance(picture, str) else ("png", picture)
    data = base64.b64encode(content).decode()
    return f'<figure><img alt="{escape(title)}" src="data:image/{kind};base64,{data}"></figure>'


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


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{key}", "not set" if value is None else str(value)
