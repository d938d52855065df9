"""A picture with the words that belong under it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asmil.files import replacing, write_text


@dataclass(frozen=True)
class Picture:
    """What the page shows and a file holds.

    name: of its file, without the ending
    content: SVG text or PNG bytes; None where there is nothing to draw, and the caption says why
    """

    name: str
    title: str
    content: str | bytes | None
    caption: str


def write_pictures(pictures: Iterable[Picture], folder: Path) -> None:
    """Write every picture to a file of its own."""
    for picture in pictures:
        if isinstance(picture.content, str):
            write_text(folder / f"{picture.name}.svg", picture.content)
        elif picture.content is not None:
            with replacing(folder / f"{picture.name}.png") as partial:
                partial.write_bytes(picture.content)
