"""Match annotation files to slides by name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asmil.errors import AsmilError
from asmil.slides.annotations.reading import ANNOTATION_SUFFIXES, annotation_suffix
from asmil.slides.file_names import walk_once
from asmil.tables.names import SLIDE_SUFFIXES

_ADDED = re.compile(r"[ ._-]+(?:annotations?|masks?)$")
_KIND = re.compile(r"[ ._-]+(?:evaluation|tumou?r)$")
"""Suffixes that may follow the name of a slide, `a_mask.tif`, `a.svs - annotations.geojson`, and what may come between,
`a_evaluation_mask.tif`."""


@dataclass(frozen=True)
class AnnotationFiles:
    """The files of a folder by slide.

    without_slide: files that belong to none of the slides
    beside: files that are not used, because another file of their slide is preferred
    clashing: slides with several files of the same kind, none of which is used
    """

    by_slide: dict[str, Path]
    without_slide: tuple[Path, ...]
    beside: dict[str, tuple[Path, ...]]
    clashing: dict[str, tuple[Path, ...]]


def find_annotations(
    source: Path | str, slides: Iterable[str], suffixes: Sequence[str] = ANNOTATION_SUFFIXES
) -> AnnotationFiles:
    """Match the annotation files of a folder and its subfolders (or one file) to slides by name.

    A file is named like its slide, ignoring case, with or without the slide's extension (`a.svs.geojson`), and may
    end in `_mask` or `_annotations`. If a slide has several files, GeoJSON is preferred to JSON, XML and masks.

    suffixes: of the files to consider, in order of preference
    """
    alike: dict[str, set[str]] = defaultdict(set)
    for slide in slides:
        alike[_without_ending(slide.lower())].add(slide)
    candidates: dict[str, list[Path]] = defaultdict(list)
    without_slide: list[Path] = []
    for path in _files(Path(source), suffixes):
        owner = _owner(path.name[: len(path.name) - len(annotation_suffix(path, suffixes))], alike)
        if owner is None:
            without_slide.append(path)
        else:
            candidates[owner].append(path)
    by_slide, beside, clashing = {}, {}, {}
    for slide, paths in candidates.items():
        ranks = [suffixes.index(annotation_suffix(path, suffixes)) for path in paths]
        best = [path for path, rank in zip(paths, ranks, strict=True) if rank == min(ranks)]
        if len(best) > 1:
            clashing[slide] = tuple(paths)
            continue
        by_slide[slide] = best[0]
        if len(paths) > 1:
            beside[slide] = tuple(path for path in paths if path != best[0])
    return AnnotationFiles(by_slide, tuple(without_slide), beside, clashing)


def _files(source: Path, suffixes: Sequence[str]) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise AsmilError(f"{source}: the folder of annotations does not exist; fix the path")
    files = [
        folder / name
        for folder, _, names in walk_once(source)
        for name in names
        if not name.startswith(".") and annotation_suffix(Path(name), suffixes)
    ]
    if not files:
        raise AsmilError(f"{source}: there is no annotation file in the folder ({', '.join(suffixes)})")
    return sorted(files)


def _owner(stem: str, alike: Mapping[str, set[str]]) -> str | None:
    """The slide that a file is named after; None if there is none or more than one."""
    for reading in _readings(stem.lower()):
        slides = alike.get(reading, set())
        if stem in slides:
            return stem
        if slides:
            return next(iter(slides)) if len(slides) == 1 else None
    return None


def _readings(name: str) -> Iterator[str]:
    """A name, and shorter versions without the suffixes that tools add.

    >>> list(_readings("a.svs - annotations"))
    ['a.svs - annotations', 'a.svs', 'a']
    """
    added = _ADDED.search(_without_ending(name)) is not None
    before = None
    while name != before:
        yield name
        before, name = name, _shortened(name, added)


def _shortened(name: str, added: bool) -> str:
    for shorter in (_without_ending(name), _ADDED.sub("", name), _KIND.sub("", name) if added else name):
        if shorter != name:
            return shorter
    return name


def _without_ending(name: str) -> str:
    for suffix in SLIDE_SUFFIXES:
        name = name.removesuffix(suffix)
    return name.removesuffix(".ome")
