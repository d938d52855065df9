"""Names of slides, patients, runs and files: which can be file names, and which are two spellings of one name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from asmil.errors import HIDDEN, AsmilError

SLIDE_SUFFIXES = (
    *(".svs", ".tif", ".tiff", ".ndpi", ".mrxs", ".scn", ".svslide", ".bif", ".vms", ".vmu", ".czi", ".dcm"),
)
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
"""Plain pictures: one level, no resolution."""
FEATURE_SUFFIXES = (".h5", ".hdf5", ".h5ad", ".pt", ".pth", ".npz", ".npy", ".zarr")
"""Endings of feature files, the preferred first: HDF5 files also hold coordinates. Those of `.zarr` are folders."""
FORMULA_STARTS = ("=", "@")
"""Spreadsheets compute cells that begin with these; `+` and `-` are left out, since labels and values use them."""
LONGEST_PART = 200
"""In bytes: file systems allow 255, and endings are added."""
_DRIVE = re.compile(r"[A-Za-z]:")
_INVISIBLE = "Cf"
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_NO_WIDTH = "\u00ad\u200b\u200e\u200f\u2060\ufeff"
"""Soft hyphen, zero-width space, direction marks, word joiner, byte order mark: invisible, and pasted unnoticed."""
_PLAIN_SPACES = str.maketrans(dict.fromkeys(_SPACES, " ") | dict.fromkeys(_NO_WIDTH, ""))


def unique_names(folders: Sequence[Path]) -> list[str]:
    """The names of folders, such as runs, with as many parent folders as are needed to tell them apart.

    >>> unique_names([Path("/lab/runs/abmil"), Path("/lab/runs/asmil")])
    ['abmil', 'asmil']
    >>> unique_names([Path("/lab/first/abmil"), Path("/lab/second/abmil")])
    ['first/abmil', 'second/abmil']
    """
    parts = [folder.resolve().parts for folder in folders]
    wanted = len(set(parts))
    for length in range(1, max(map(len, parts), default=0)):
        names = ["/".join(path[-length:]) for path in parts]
        if len(set(names)) == wanted:
            return names
    return list(map(str, folders))


def text_problem(text: str) -> str | None:
    """Why a label or a site cannot be used: it would change a terminal or run in a spreadsheet; None if it can."""
    if hidden := HIDDEN.search(text):
        return f"contains the control character {hidden[0]!a}"
    if text.startswith(FORMULA_STARTS):
        return f"begins with '{text[0]}', which spreadsheets read as a formula"
    return None


def name_problem(name: str) -> str | None:
    r"""Why the name of a slide or a patient cannot be used, None if it can.

    Files are named after slides and patients, so a name must stay in the folder it is written to. `site_a/slide_1`
    does: it becomes a file in a subfolder.

    >>> name_problem("TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF"), name_problem("site_a/slide 1")
    (None, None)
    >>> name_problem("../escaped")
    "would become a file outside its folder ('..')"
    """
    if problem := text_problem(name):
        return problem
    if "\\" in name:
        return "contains a backslash, which separates folders on Windows"
    if name.startswith("/") or _DRIVE.match(name):
        return "is an absolute path"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f"would become a file outside its folder ('{part}')" if part == ".." else "has an empty part"
        if len(part.encode("utf-8")) > LONGEST_PART:
            return f"is longer than the {LONGEST_PART} bytes that a file name may have"
    return None


def file_in(folder: Path, name: str, suffix: str) -> Path:
    """The file of a slide or a patient in a folder; a name that would leave the folder is an error.

    >>> file_in(Path("out"), "a.1", ".h5").as_posix()
    'out/a.1.h5'
    """
    if problem := name_problem(name):
        raise AsmilError(f"the name '{name}' {problem}; rename it")
    return folder / f"{name}{suffix}"


def is_feature_file(path: Path) -> bool:
    """Whether a path has the ending of a feature file."""
    return path.suffix.lower() in FEATURE_SUFFIXES


def without_extension(name: str) -> str:
    """A name without the ending of a slide, picture or feature file; other dots belong to the name.

    >>> [without_extension(name) for name in ("a.1.svs", "b.h5", "c.1", "d.ome.tif")]
    ['a.1', 'b', 'c.1', 'd']
    """
    lower = name.lower()
    for suffix in (".ome.tif", ".ome.tiff", *SLIDE_SUFFIXES, *PICTURE_SUFFIXES, *FEATURE_SUFFIXES):
        if lower.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return name


def plain_spaces(text: str) -> str:
    r"""The text of a cell, stripped: every kind of space becomes a blank, and invisible characters are removed.

    >>> plain_spaces("small\u00a0cell\u200b "), plain_spaces("\ufeffslide")
    ('small cell', 'slide')
    """
    return (text if text.isascii() else text.translate(_PLAIN_SPACES)).strip()


def folded(name: str) -> str:
    r"""The common form of all spellings of a name: Unicode form, case, blanks and invisible characters are ignored.

    >>> folded("P\u200b1 ") == folded("p1"), folded("Mu\u0308ller") == folded("m\u00fcller")
    (True, True)
    """
    if not name.isascii():
        plain = unicodedata.normalize("NFKC", name)
        name = "".join(letter for letter in plain if unicodedata.category(letter) != _INVISIBLE)
    return " ".join(name.casefold().split())


def lookalikes(names: Iterable[str], key: Callable[[str], str] = folded) -> list[list[str]]:
    """Groups of different names that are spellings of one: those with the same key."""
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        groups.setdefault(key(name), {})[name] = None
    return [list(group) for group in groups.values() if len(group) > 1]


def spelled(names: Iterable[str]) -> str:
    r"""Names in quotes; names that look the same are written with escapes.

    >>> spelled(["p1", "P1"]), spelled(["u\u0308", "\u00fc"])
    ("'p1' and 'P1'", "'u\\u0308' and '\\xfc'")
    """
    known = list(names)
    look_the_same = len({unicodedata.normalize("NFKC", name) for name in known}) < len(known)
    return " and ".join(map(ascii if look_the_same else repr, known))
