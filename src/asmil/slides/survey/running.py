"""Survey many slides in parallel, in processes or threads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import cv2

from asmil.engine.inline import InlineEngine
from asmil.engine.jobs import Engine, Outcome, Progress, made_progress, same_anywhere
from asmil.engine.local import LocalEngine
from asmil.engine.watching import checked_timeout
from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.settings.config import flat
from asmil.settings.made_from import DoneBefore, MadeFrom, Record
from asmil.slides.discovery import SlideFile
from asmil.slides.file_names import slide_content
from asmil.slides.finished_rows import FinishedRows
from asmil.slides.image import SlideImage
from asmil.slides.opening import open_slide, refuse_absent
from asmil.slides.overview import Overview, read_overview
from asmil.slides.qc import PICTURE_SIDE_PX, draw_tissue, write_jpeg, write_mask
from asmil.slides.quality import TileQuality, artifact_notes, measure_quality, tissue_stain
from asmil.slides.settings import SLIDE_TIMEOUT_S, Artifact
from asmil.slides.survey.contact_sheet import contact_page, write_sheet
from asmil.slides.survey.folder import ADDED_SETTINGS, NOTE_SEPARATOR, Failure, SurveyConfig, SurveyFolder, SurveyRow
from asmil.slides.tiling import TileReader, place_tiles, tile_side_level0
from asmil.slides.tissue.files import tissue_content
from asmil.slides.tissue.finding import find_tissue
from asmil.slides.tissue.geojson import tissue_geojson
from asmil.slides.tissue.regions import Tissue
from asmil.tables.arrays import Booleans, Integers


@dataclass(frozen=True)
class SurveyResult:
    """The result of a survey.

    rows: rows of all given slides, including those of earlier calls
    already_done: slides that an earlier call surveyed
    """

    rows: tuple[SurveyRow, ...]
    failures: tuple[Failure, ...]
    already_done: int


def survey_slides(
    files: Sequence[SlideFile],
    folder: SurveyFolder,
    config: SurveyConfig,
    engine: Engine,
    progress: Progress | None = None,
    done_before: DoneBefore | None = None,
) -> SurveyResult:
    """Survey slides into a folder; slides of an earlier call with the same settings are not surveyed again.

    A slide that fails does not stop the others. When interrupted, finished slides are kept.

    progress: called with (slides done, slides in total) after every slide
    done_before: decides about slides that were replaced since they were surveyed; default: they are refused
    """
    done_before = done_before or DoneBefore()
    folder.claim(config, done_before.again)
    table = FinishedRows(folder.table, SurveyRow)
    kept = {
        file.name
        for file in files
        if file.name in table.rows
        and folder.has_files(file.name)
        and file.path.exists()
        and done_before.keeps(file.name, _with_added(table.records.get(file.name)), _made_from(file, config))
    }
    done_before.refuse(folder.path)
    to_do = [file for file in files if file.name not in kept]
    already_done = len(files) - len(to_do)
    failures: list[Failure] = []
    with closing(table.run(engine, partial(same_anywhere, partial(_survey, config, folder)), to_do)) as outcomes:
        for done, outcome in enumerate(outcomes, start=already_done + 1):
            if outcome.result is None:
                failures.append(_failure(outcome))
            if progress is not None:
                progress(done, len(files))
    failures.sort(key=lambda failure: failure.slide)
    in_order = [table.rows[name] for name in sorted(table.rows)]
    write_text(folder.page, contact_page(in_order, failures, config.tissue.method))
    write_sheet(folder, in_order)
    asked = {file.name for file in files}
    return SurveyResult(tuple(row for row in in_order if row.slide in asked), tuple(failures), already_done)


def survey_engine(workers: int, item_timeout: float | None) -> Engine:
    """An engine with `workers` processes in which a slide without progress fails; threads if there is no limit.

    item_timeout: seconds; 0: no limit; None: `SLIDE_TIMEOUT_S`
    """
    limit = checked_timeout(item_timeout, SLIDE_TIMEOUT_S)
    if limit is None:
        return InlineEngine(workers)
    return LocalEngine(workers, concurrency=1, item_timeout_s=limit)


def _survey(config: SurveyConfig, folder: SurveyFolder, file: SlideFile) -> tuple[SurveyRow, Record]:
    try:
        refuse_absent(file.path)
        record = _made_from(file, config).record()
        return survey_slide(file, config, folder), record
    except (OSError, MemoryError, cv2.error) as error:
        raise AsmilError(" ".join(str(error).split()) or type(error).__name__) from error


def _made_from(file: SlideFile, config: SurveyConfig) -> MadeFrom:
    settings = flat(config.model_dump(mode="json"))
    contents = {"slide image": slide_content(file.path), **tissue_content(file)}
    return MadeFrom({**settings, "mpp": file.mpp or config.mpp}, contents)


def _with_added(record: Record | None) -> Record | None:
    """The record, with settings that its version of asmil did not have."""
    if record is None:
        return None
    return record.model_copy(update={"values": {**ADDED_SETTINGS, **record.values}})


def _failure(outcome: Outcome) -> Failure:
    name, reason = outcome.job.name, " ".join(str(outcome.error).split())
    is_named = reason.startswith(name) or str(outcome.job.path) in reason
    return Failure(name, reason if is_named else f"{name}: {reason}")


def survey_slide(file: SlideFile, config: SurveyConfig, folder: SurveyFolder) -> SurveyRow:
    """Find the tissue and the tiles of a slide and write its mask, contours, thumbnail and overlay."""
    with open_slide(file.path, file.mpp or config.mpp) as image:
        made_progress()
        tissue = find_tissue(image, config.tissue, file.tissue)
        made_progress()
        coords, side, tile_notes = _tiles(image, tissue, config)
        overview, origin = read_overview(image, max_side=PICTURE_SIDE_PX), image.bounds_origin
        artifacts = _artifacts(image, tissue, overview, coords, side, config)
        row = _row(file.name, image, tissue, config, coords, tile_notes, artifacts)
    write_mask(folder.mask(file.name), tissue.mask)
    write_text(folder.contours(file.name), json.dumps(tissue_geojson(tissue, origin)) + "\n")
    write_jpeg(folder.thumbnail(file.name), overview.pixels)
    drawn = draw_tissue(overview.pixels, overview.downsample, tissue, coords, side, artifacts)
    write_jpeg(folder.overlay(file.name), drawn)
    return row


def _artifacts(
    image: SlideImage, tissue: Tissue, overview: Overview, coords: Integers | None, side: int, config: SurveyConfig
) -> dict[Artifact, Booleans]:
    """Which tiles are blurred and folded; nothing if it is not asked for, or tiles are not placed."""
    if not config.measure_quality or coords is None or image.resolution is None:
        return {}
    reader, stain = TileReader(image, side, config.tiling.tile_px), tissue_stain(overview, image.resolution, tissue)
    quality = TileQuality.unmeasured(len(coords))
    for rows in reader.groups(coords):
        quality.put(rows, measure_quality(reader.read(coords[rows]), config.tiling.mpp, stain))
        made_progress()
    return quality.flags(config.quality)


def _tiles(image: SlideImage, tissue: Tissue, config: SurveyConfig) -> tuple[Integers | None, int, tuple[str, ...]]:
    """Corners of the tiles and their side at level 0; or no tiles and the reason, if their side is unknown."""
    if image.resolution is None:
        return None, 0, ("tiles not placed without --mpp",)
    try:
        side = tile_side_level0(config.tiling, image.resolution, image.name)
    except AsmilError as error:
        return None, 0, (f"tiles not placed: {error}",)
    return place_tiles(image, tissue, config.tissue, config.tiling, side), side, ()


def _row(
    name: str,
    image: SlideImage,
    tissue: Tissue,
    config: SurveyConfig,
    coords: Integers | None,
    tile_notes: tuple[str, ...],
    artifacts: Mapping[Artifact, Booleans],
) -> SurveyRow:
    resolution = image.resolution
    area_px = float(tissue.mask.sum()) * tissue.downsample[0] * tissue.downsample[1]
    return SurveyRow(
        slide=name,
        width_px=image.size[0],
        height_px=image.size[1],
        mpp=round(resolution.mpp, 5) if resolution else None,
        mpp_source=resolution.source if resolution else "",
        method=config.tissue.method,
        threshold=tissue.threshold,
        tissue_share=round(tissue.share, 5),
        tissue_mm2=round(area_px * resolution.mpp_x * resolution.mpp_y / 1e6, 4) if resolution else None,
        regions=len(tissue.regions),
        tiles=len(coords) if coords is not None else None,
        notes=NOTE_SEPARATOR.join((*tissue.notes, *tile_notes, *artifact_notes(artifacts))),
        **{name: int(tiles.sum()) for name, tiles in artifacts.items()},
    )
