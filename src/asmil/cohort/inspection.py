"""Inspect the feature files of many slides; an unreadable file does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from asmil.cohort.features import info_of, read_bag
from asmil.cohort.fingerprint import fingerprint_of, remember_fingerprint
from asmil.cohort.manifest import Slide
from asmil.cohort.pack.files import is_pack
from asmil.cohort.problems import CohortError
from asmil.cohort.reader import open_features
from asmil.cohort.source import FeatureInfo, FeatureSource
from asmil.engine.guarded import guard_limit, guarded
from asmil.errors import AsmilError

ITEM_TIMEOUT_S = 600.0
"""Default time limit for one feature file; even many gigabytes on a slow disk take less."""


@dataclass(frozen=True)
class _Inspected:
    info: FeatureInfo
    fingerprint: str


def inspect_slides(
    slides: Sequence[Slide], deep: bool = False, item_timeout_s: float | None = 0.0
) -> Iterator[tuple[Slide, FeatureInfo | AsmilError]]:
    """Every slide with the header of its feature file, or with an error if the file cannot be used.

    deep: also read the bags, which detects damage inside the files
    item_timeout_s: a file that takes longer is skipped with an error; 0: no limit, and no second process; None:
        `ITEM_TIMEOUT_S` if there are many files. A script that sets a limit needs the usual
        `if __name__ == "__main__":`.

    Fingerprints, which the cohort checks need next, are computed at the same time.
    """
    # rows that share a file are reported elsewhere; the file is read only once
    firsts = {(slide.source, slide.mpp): slide for slide in reversed(slides)}
    different = [slide for slide in slides if firsts[slide.source, slide.mpp] is slide]
    # the headers of a pack are in its index, a small file that this process reads anyway
    single_files = [slide for slide in different if deep or not is_pack(slide.source.path)]
    limit = guard_limit(item_timeout_s, len(single_files), ITEM_TIMEOUT_S)
    answers = guarded(partial(_inspect, deep), different, limit if single_files else None)
    known: dict[tuple[FeatureSource, float | None], _Inspected | AsmilError] = {}
    for slide in slides:
        key = slide.source, slide.mpp
        if key not in known:
            known[key] = next(answers)
        found = known[key]
        if isinstance(found, AsmilError):
            yield slide, _naming(slide, found)
        else:
            remember_fingerprint(slide.source, found.fingerprint)
            yield slide, found.info


def _inspect(deep: bool, slide: Slide) -> _Inspected:
    with open_features(slide.source, mmap=True) as file:
        found = _Inspected(info_of(file), fingerprint_of(file))
    if deep or found.info.n_tiles == 0:
        read_bag(slide.source, slide.slide, slide.mpp, verify=True)
    return found


def _naming(slide: Slide, error: AsmilError) -> AsmilError:
    """Add the file name to errors of the reading process; errors of the reader already contain it."""
    if isinstance(error, CohortError) or str(slide.source.path) in str(error):
        return error
    return AsmilError(f"{slide.source}: {error}")
