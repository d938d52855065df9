"""Write a cohort of synthetic slides to disk: slides, annotations, manifest, truth, and settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import pandas as pd

from asmil.engine.inline import InlineEngine
from asmil.engine.jobs import Engine, Progress, one_line, same_anywhere
from asmil.engine.local import LocalEngine
from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.machine.cores import usable_cores
from asmil.slides.annotations.writing import write_asap, write_geojson
from asmil.slides.pyramid_tiff import write_pyramid
from asmil.synthetic.plan import MANIFEST, claim_cohort, generator, write_manifest
from asmil.synthetic.slides.cells import place_cells
from asmil.synthetic.slides.layout import Layout, SlideTruth, draw_layout, slide_truth
from asmil.synthetic.slides.plan import SlidePlan, Stream, SyntheticSlidesConfig, plan_slides
from asmil.synthetic.slides.rendering import SlideRenderer, draw_light, draw_stain

SETTINGS_FILE = "synthetic_slides.yaml"
TUMOR_LABEL = "tumor"


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

    workers: number of processes; default: the number of cores; with 1 the slides are made in this process
    again: replace a cohort with different settings
    """
    folder = Path(folder)
    made = ("truth.csv", "slides/slide-*.tif", "annotations/slide-*")
    claim_cohort(folder / SETTINGS_FILE, config.model_dump(mode="json"), "synthetic slides", again, made)
    plans = plan_slides(config)
    manifest, truth_table = folder / MANIFEST, folder / "truth.csv"
    if manifest.is_file() and truth_table.is_file() and all(_is_whole(folder, plan) for plan in plans):
        return manifest
    truths: dict[int, SlideTruth] = {}
    for index, truth in _make_all(config, plans, folder, workers or usable_cores()):
        truths[index] = truth
        if progress is not None:
            progress(len(truths), len(plans))
    in_order = [truths[plan.index] for plan in plans]
    columns = {
        "slide": [plan.slide for plan in plans],
        "tumor_mm2": [round(truth.tumor_mm2, 4) for truth in in_order],
        "tissue_mm2": [round(truth.tissue_mm2, 4) for truth in in_order],
        "foci": [len(truth.regions) for truth in in_order],
    }
    write_text(truth_table, pd.DataFrame(columns).to_csv(index=False))
    images = [slide_files(folder, plan).image.relative_to(folder).as_posix() for plan in plans]
    return write_manifest(folder, plans, {"label": [plan.label for plan in plans]}, {"image": images})


def _is_whole(folder: Path, plan: SlidePlan) -> bool:
    files = slide_files(folder, plan)
    return all(path.is_file() for path in (files if plan.has_tumor else files[:1]))


def _make_all(
    config: SyntheticSlidesConfig, plans: list[SlidePlan], folder: Path, workers: int
) -> Iterator[tuple[int, SlideTruth]]:
    """The truth of every slide, yielded when the slide is done."""
    processes = min(workers, len(plans))
    engine: Engine = InlineEngine()
    if processes > 1:
        # one thread per process: the processes already use all cores
        engine = LocalEngine(processes, concurrency=1, threads_per_worker=1)
    with closing(engine.run(partial(same_anywhere, partial(_make, config, folder)), plans)) as outcomes:
        for outcome in outcomes:
            if outcome.result is None:
                raise AsmilError(f"{outcome.job.slide}: {outcome.error}")
            yield outcome.job.index, outcome.result


def _make(config: SyntheticSlidesConfig, folder: Path, plan: SlidePlan) -> SlideTruth:
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)  # on some CPUs the filters of OpenCV round differently with several threads
    try:
        return make_slide(config, plan, folder)
    except OSError as error:
        raise AsmilError(one_line(str(error))) from error
    finally:
        cv2.setNumThreads(threads)


class SlideFiles(NamedTuple):
    """The paths of the files of a slide."""

    image: Path
    asap: Path
    geojson: Path


def slide_files(folder: Path, plan: SlidePlan) -> SlideFiles:
    """The files of a slide in a cohort's folder; annotations are written for slides with tumor."""
    names = (f"slides/{plan.slide}.tif", f"annotations/{plan.slide}.xml", f"annotations/{plan.slide}.geojson")
    return SlideFiles(*(folder / name for name in names))


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
