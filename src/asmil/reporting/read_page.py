"""Read a page back: the document that `html_document` wrote, without what is folded away.

Tables and figures for papers, and the cover of a study, are made from pages, so nothing is computed twice.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

from asmil.errors import AsmilError
from asmil.reporting.document import Block, Cell, Document, Figure, Heading, Note, Section, SideBySide, Table

VOID = frozenset({"meta", "img", "br", "wbr"})


def read_page(path: Path) -> Document:
    """The document of a page; an error if it was not written by asmil."""
    page = _Tree(path.read_text(encoding="utf-8")).root
    header = page.find(".//header")
    if header is None or (title := header.find("h1")) is None:
        raise AsmilError(f"{path} is not a page of asmil; write it again")
    answer = header.find("p[@class='answer']")
    kind, *about = [_text(element) for element in header.findall("p") if element is not answer]
    sections = [
        Section(_text(name), list(_blocks(section)))
        for section in page.iter("section")
        if (name := section.find("h2")) is not None
    ]
    return Document(kind, _text(title), "" if answer is None else _text(answer), sections, " ".join(about))


class _Tree(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("page")
        self.open = [self.root]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = SubElement(self.open[-1], tag, {name: value or "" for name, value in attrs})
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        SubElement(self.open[-1], tag, {name: value or "" for name, value in attrs})

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        parent = self.open[-1]
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + data
        else:
            parent.text = (parent.text or "") + data


def _blocks(parent: Element) -> Iterator[Block]:
    """The blocks of a section; the paragraph before a table is its caption."""
    caption = ""
    for element in parent:
        if caption and element.get("class") != "scroll":
            yield caption
        said, caption = caption, ""
        if element.tag == "p" and element.get("class") == "note":
            yield Note(_text(element))
        elif element.tag == "p":
            caption = _text(element)
        elif element.tag == "h3":
            yield Heading(_text(element))
        elif element.get("class") == "scroll":
            yield _table(element, said)
        elif element.tag == "figure":
            yield _figure(element)
        elif element.get("class") == "side":
            yield SideBySide([block for part in element for block in _blocks(part)])
    if caption:
        yield caption


def _figure(element: Element) -> Figure:
    image, caption = next(element.iter("img")), element.find("figcaption")
    kind, _, data = image.attrib["src"].partition(";base64,")
    content = base64.b64decode(data)
    shown = content.decode() if kind.endswith("svg+xml") else content
    return Figure(shown, image.attrib["alt"], "" if caption is None else _text(caption))


def _table(element: Element, caption: str) -> Table:
    columns = [_text(title) for title in element.findall(".//thead//th")]
    rows = [[_cell(cell) for cell in row] for row in element.findall(".//tbody/tr")]
    large = "summary" in element[0].get("class", "").split()
    return Table(columns, rows, caption=caption, emphasis=large)


def _cell(element: Element) -> Cell:
    span, strong = element[0], element.find("span/b")
    small = [_text(line) for line in span.findall("small")]
    interval = small.pop(0) if span.get("class") == "estimate" else ""
    share = element.get("style", "").removeprefix("--share:")
    if share:
        small.pop()  # the percentage
    spread, over = "", ""
    if interval and small and small[0].startswith("sd "):
        words = small.pop(0).removeprefix("sd ")
        over, _, spread = words.removeprefix("over ").rpartition(" ")
    return Cell(
        _text(span, without=("small", "svg")) if strong is None else _text(strong),
        tuple(small),
        interval,
        spread,
        over,
        strong is not None,
        shade=float(share) if share else None,
    )


def _text(element: Element, without: tuple[str, ...] = ()) -> str:
    """The words of an element; code is between backticks, as in documents."""
    return "".join(_words(element, without)).strip().replace("\u00a0%", " %")


def _words(element: Element, without: tuple[str, ...]) -> Iterator[str]:
    quote = "`" * (element.tag == "code")
    yield quote + (element.text or "")
    for child in element:
        if child.tag not in without:
            yield from _words(child, without)
        yield child.tail or ""
    yield quote
