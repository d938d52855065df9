"""Many slides surveyed at once, in threads: reading and image work let each other run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import cv2

from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.slides.discovery import SlideFile
from asmil.slides.survey.folder import SurveyFolder
from asmil.slides.survey.page import contact_page
from asmil.slides.survey.row import Failure, SurveyRow, read_rows, rows_to_csv
from asmil.slides.survey.settings import SurveyConfig
from asmil.slides.survey.sheet import write_sheet
from asmil.slides.survey.slide import survey_slide

SAVE_EVERY_S = 2.0
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SurveyResult:
    """What a survey did.

    rows: of all slides asked for, those of earlier calls too
    already_done: slides that an earlier call surveyed
    """

    rows: tuple[SurveyRow, ...]
    failures: tuple[Failure, ...]
    already_done: int


def survey_slides(
    files: Sequence[SlideFile],
    folder: SurveyFolder,
    config: SurveyConfig,
    workers: int,
    progress: Progress | None = None,
) -> SurveyResult:
    """Survey slides into a folder; a slide done before with the same settings is not done again.

    A slide that fails does not stop the others. When interrupted, the slides under way are ended and kept.

    progress: called with (slides done, slides in all) after every slide.
    """
    folder.claim(config)
    rows = {row.slide: row for row in read_rows(folder.table)}
    to_do = [file for file in files if file.name not in rows or not folder.has_files(file.name)]
    for file in to_do:
        rows.pop(file.name, None)
    already_done = len(files) - len(to_do)
    pool = ThreadPoolExecutor(max_workers=workers)
    futures = [pool.submit(_attempt, file, config, folder) for file in to_do]
    saved_at = time.monotonic()
    try:
        for done, future in enumerate(as_completed(futures), start=already_done + 1):
            _add(rows, [future.result()])
            if time.monotonic() - saved_at > SAVE_EVERY_S:
                write_text(folder.table, rows_to_csv(rows.values()))
                saved_at = time.monotonic()
            if progress is not None:
                progress(done, len(files))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        ended = [future.result() for future in futures if _ended_well(future)]
        _add(rows, ended)
        write_text(folder.table, rows_to_csv(rows.values()))
    failures = sorted((item for item in ended if isinstance(item, Failure)), key=lambda failure: failure.slide)
    in_order = sorted(rows.values(), key=lambda row: row.slide)
    write_text(folder.page, contact_page(in_order, failures, config.tissue.method))
    write_sheet(folder, in_order)
    asked = {file.name for file in files}
    return SurveyResult(tuple(row for row in in_order if row.slide in asked), tuple(failures), already_done)


def _attempt(file: SlideFile, config: SurveyConfig, folder: SurveyFolder) -> SurveyRow | Failure:
    try:
        return survey_slide(file, config, folder)
    except (AsmilError, OSError, MemoryError, cv2.error) as error:
        return Failure(file.name, " ".join(str(error).split()) or type(error).__name__)


def _ended_well(future: Future[SurveyRow | Failure]) -> bool:
    return not future.cancelled() and future.exception() is None


def _add(rows: dict[str, SurveyRow], items: Iterable[SurveyRow | Failure]) -> None:
    rows.update({item.slide: item for item in items if isinstance(item, SurveyRow)})
