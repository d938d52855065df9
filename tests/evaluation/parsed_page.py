"""Pages, parsed."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "rect", "br", "wbr"}


class Page(HTMLParser):
    """Checks that tags close in order and collects what was seen."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.pictures: list[str] = []
        self.words: list[str] = []
        self.inside_word = False
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside_word = tag == "wbr"
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]
        self.pictures += [value or "" for key, value in attrs if tag == "img" and key == "alt"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.inside_word:
            self.words[-1] += data
        else:
            self.words.append(data)
        self.inside_word = False
