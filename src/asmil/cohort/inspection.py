"""Inspect the feature files of many slides; an unreadable file does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from asmil.cohort.file_inspection import Inspected, inspect_file
from asmil.cohort.fingerprint import remember_fingerprint
from asmil.cohort.manifest import Slide
from asmil.cohort.pack.files import is_pack
from asmil.cohort.problems import CohortError, Problem, problems_of
from asmil.cohort.source import FeatureInfo, FeatureSource
from asmil.cohort.tile_hashes import remember_tiles
from asmil.engine.guarded import WORTH_A_PROCESS, guard_limit, guarded
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError
from asmil.machine.cores import own_cores

MOST_PROCESSES = 4
"""That read whole files at the same time; the disk limits what more would gain."""
ITEM_TIMEOUT_S = 600.0
"""Default time limit for one feature file; even many gigabytes on a slow disk take less."""


def inspect_slides(
    slides: Sequence[Slide], deep: bool = False, item_timeout_s: float | None = 0.0, tiles: bool = False
) -> Iterator[tuple[Slide, FeatureInfo | AsmilError]]:
    """Every slide with the header of its feature file, or with an error if the file cannot be used.

    deep: also read the bags, which detects damage inside the files
    item_timeout_s: a file that takes longer is skipped with an error; 0: no limit, and no second process; None:
        `ITEM_TIMEOUT_S` if there are many files. A script that sets a limit needs the usual
        `if __name__ == "__main__":`.
    tiles: also read all tiles once, to compare slides by them

    Fingerprints, which the cohort checks need next, are computed at the same time, and sketches of the tiles if all
    tiles are read.
    """
    # rows that share a file are reported elsewhere; the file is read only once
    firsts = {(slide.source, slide.mpp): slide for slide in reversed(slides)}
    different = [slide for slide in slides if firsts[slide.source, slide.mpp] is slide]
    # the headers of a pack are in its index, a small file that this process reads anyway
    single_files = [slide for slide in different if deep or tiles or not is_pack(slide.source.path)]
    limit = guard_limit(item_timeout_s, len(single_files), ITEM_TIMEOUT_S)
    named = [(slide.source, slide.slide, slide.mpp) for slide in different]
    processes = _reading_processes(len(named)) if deep or tiles else 1
    answers = guarded(partial(inspect_file, deep, tiles), named, limit if single_files else None, processes)
    known: dict[tuple[FeatureSource, float | None], Inspected | AsmilError] = {}
    for slide in slides:
        key = slide.source, slide.mpp
        if key not in known:
            known[key] = next(answers)
        inspected = known[key]
        if isinstance(inspected, AsmilError):
            yield slide, _naming(slide, inspected)
        else:
            remember_fingerprint(slide.source, inspected.fingerprint)
            if inspected.tiles is not None:
                remember_tiles(slide.source, inspected.tiles)
            yield slide, inspected.info


def _reading_processes(files: int) -> int:
    """How many processes read so many whole files; each takes a while to start."""
    return max(1, min(MOST_PROCESSES, own_cores(), files // WORTH_A_PROCESS))


def usable_headers(
    slides: Sequence[Slide], deep: bool = False, item_timeout_s: float | None = 0.0, progress: Progress | None = None
) -> tuple[dict[str, FeatureInfo], list[Problem]]:
    """The headers of the feature files that can be used, by slide, and the problems of the others."""
    infos: dict[str, FeatureInfo] = {}
    problems: list[Problem] = []
    for done, (slide, inspected) in enumerate(inspect_slides(slides, deep, item_timeout_s), start=1):
        if isinstance(inspected, AsmilError):
            problems += problems_of(inspected, f"slide '{slide.slide}'")
        else:
            infos[slide.slide] = inspected
        if progress is not None:
            progress(done, len(slides))
    return infos, problems


def headers_of(
    slides: Sequence[Slide],
    item_timeout_s: float | None = 0.0,
    *,
    tiles: bool = False,
    progress: Progress | None = None,
) -> list[FeatureInfo]:
    """The headers of the feature files of all slides; the first file that cannot be used raises its error."""
    headers = []
    for _, header in inspect_slides(slides, item_timeout_s=item_timeout_s, tiles=tiles):
        if isinstance(header, AsmilError):
            raise header
        headers.append(header)
        if progress is not None:
            progress(len(headers), len(slides))
    return headers


def _naming(slide: Slide, error: AsmilError) -> AsmilError:
    """Add the file name to errors of the reading process; errors of the reader already contain it."""
    if isinstance(error, CohortError) or any(str(path) in str(error) for path in slide.source.paths):
        return error
    return AsmilError(f"{slide.source}: {error}")
