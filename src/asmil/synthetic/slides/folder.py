"""Write a cohort of synthetic slides to disk: slides, annotations, manifest, truth, and settings."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2

from asmil.engine.inline import InlineEngine
from asmil.engine.jobs import Engine, Place, Progress, one_line
from asmil.engine.local import LocalEngine, usable_cores
from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.settings.folder_settings import claim_folder, differing_settings
from asmil.slides.annotations.writing import write_asap, write_geojson
from asmil.slides.pyramid_tiff import write_pyramid
from asmil.synthetic.plan import generator
from asmil.synthetic.slides.cells import place_cells
from asmil.synthetic.slides.layout import Layout, SlideTruth, draw_layout, slide_truth
from asmil.synthetic.slides.plan import SlidePlan, Stream, SyntheticSlidesConfig, plan_slides
from asmil.synthetic.slides.rendering import SlideRenderer, draw_light, draw_stain

SETTINGS_FILE = "synthetic_slides.yaml"


def write_synthetic_slides(
    folder: Path | str,
    config: SyntheticSlidesConfig,
    progress: Progress | None = None,
    workers: int | None = None,
    again: bool = False,
) -> Path:
    """Write the cohort into a folder and return the path of its manifest.

    Written are `synthetic_slides.yaml` (the settings), `slides/<slide>.tif`, `annotations/<slide>.xml` and
    `.geojson` (slides with tumor), `truth.csv` (slide, tumor_mm2, tissue_mm2, foci) and, last, `cohort.csv`
    (slide, patient, label, split, site, image). A second call with the same settings writes missing
    files; different settings are an error, unless `again`.

    progress: called with (slides done, slides in total) after every slide
    workers: number of processes; default: the number of cores; with 1 the slides are made in this process
    again: replace a cohort with different settings
    """
    folder = Path(folder)
    _claim(folder, config, again)
    plans = plan_slides(config)
    manifest, truth_table = folder / "cohort.csv", folder / "truth.csv"
    if manifest.is_file() and truth_table.is_file() and all(_is_whole(folder, plan) for plan in plans):
        return manifest
    truths: dict[int, SlideTruth] = {}
    for index, truth in _make_all(config, plans, folder, workers or usable_cores()):
        truths[index] = truth
        if progress is not None:
            progress(len(truths), len(plans))
    write_text(truth_table, _truth_table(plans, truths))
    write_text(manifest, _manifest(folder, plans))
    return manifest


def _is_whole(folder: Path, plan: SlidePlan) -> bool:
    files = slide_files(folder, plan)
    wanted = [files.image, *([files.asap, files.geojson] if plan.has_tumor else [])]
    return all(path.is_file() for path in wanted)


def _make_all(
    config: SyntheticSlidesConfig, plans: list[SlidePlan], folder: Path, workers: int
) -> Iterator[tuple[int, SlideTruth]]:
    """The truth of every slide, yielded when the slide is done."""
    processes = min(workers, len(plans))
    engine: Engine = InlineEngine()
    if processes > 1:
        # one thread per process: the processes already use all cores
        engine = LocalEngine(processes, concurrency=1, threads_per_worker=1)
    with closing(engine.run(_SlideMaker(config, folder), plans)) as outcomes:
        for outcome in outcomes:
            if outcome.result is None:
                raise AsmilError(f"{outcome.job.slide}: {outcome.error}")
            yield outcome.job.index, outcome.result


@dataclass(frozen=True)
class _SlideMaker:
    """Makes one slide after another, in this process or in another."""

    config: SyntheticSlidesConfig
    folder: Path

    def __call__(self, place: Place) -> Callable[[SlidePlan], SlideTruth]:
        return self._make

    def _make(self, plan: SlidePlan) -> SlideTruth:
        try:
            with _one_thread():
                return make_slide(self.config, plan, self.folder)
        except OSError as error:
            raise AsmilError(one_line(str(error))) from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """OpenCV with one thread: on some CPUs its filters round differently with several."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def _claim(folder: Path, config: SyntheticSlidesConfig, again: bool) -> None:
    """Write the settings into the folder, or raise if it contains slides with different settings.

    again: remove those slides instead
    """
    note = folder / SETTINGS_FILE
    if not note.is_file() and (folder / "cohort.csv").exists():
        raise AsmilError(
            f"{folder} contains a cohort.csv but no {SETTINGS_FILE}, so it is not a cohort of synthetic slides; "
            "choose an empty folder"
        )
    settings = config.model_dump(mode="json")
    if again and differing_settings(note, settings):
        # the manifest first: without it the cohort counts as unfinished
        for name in ("cohort.csv", "truth.csv"):
            (folder / name).unlink(missing_ok=True)
        for path in (*(folder / "slides").glob("slide-*.tif"), *(folder / "annotations").glob("slide-*")):
            path.unlink()
    claim_folder(note, settings, "synthetic slides", again)


def _manifest(folder: Path, plans: list[SlidePlan]) -> str:
    rows = [
        (
            plan.slide,
            plan.patient,
            plan.label,
            plan.split,
            plan.site_name,
            slide_files(folder, plan).image.relative_to(folder).as_posix(),
        )
        for plan in plans
    ]
    return _csv(("slide", "patient", "label", "split", "site", "image"), rows)


def _truth_table(plans: list[SlidePlan], truths: dict[int, SlideTruth]) -> str:
    rows = [
        (
            plan.slide,
            round(truths[plan.index].tumor_mm2, 4),
            round(truths[plan.index].tissue_mm2, 4),
            len(truths[plan.index].regions),
        )
        for plan in plans
    ]
    return _csv(("slide", "tumor_mm2", "tissue_mm2", "foci"), rows)


def _csv(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


TUMOR_LABEL = "tumor"


@dataclass(frozen=True)
class SlideFiles:
    """The paths of the files of a slide."""

    image: Path
    asap: Path
    geojson: Path


def slide_files(folder: Path, plan: SlidePlan) -> SlideFiles:
    """The files of a slide in a cohort's folder; annotations are written for slides with tumor."""
    annotations = folder / "annotations"
    return SlideFiles(
        folder / "slides" / f"{plan.slide}.tif",
        annotations / f"{plan.slide}.xml",
        annotations / f"{plan.slide}.geojson",
    )


def make_slide(config: SyntheticSlidesConfig, plan: SlidePlan, folder: Path) -> SlideTruth:
    """Write the missing files of a slide, and return the truth about it."""
    layout = draw_layout(config, plan)
    truth = slide_truth(layout)
    files = slide_files(folder, plan)
    if plan.has_tumor and not files.asap.is_file():
        write_asap(files.asap, truth.regions, TUMOR_LABEL)
    if plan.has_tumor and not files.geojson.is_file():
        write_geojson(files.geojson, truth.regions, TUMOR_LABEL)
    if not files.image.is_file():
        write_pyramid(files.image, renderer(config, plan, layout).strips(), config.mpp, size=layout.size_px)
    return truth


def renderer(config: SyntheticSlidesConfig, plan: SlidePlan, layout: Layout) -> SlideRenderer:
    """The renderer of a slide, with everything that its pixels depend on."""
    return SlideRenderer(
        layout,
        place_cells(generator(config.seed, Stream.CELLS, plan.index), layout),
        draw_stain(config.seed, plan),
        draw_light(config, plan, layout),
        generator(config.seed, Stream.RENDERING, plan.index),
    )
