"""One synthetic slide, from its plan to its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asmil.slides.annotations.writing import write_asap, write_geojson
from asmil.slides.pyramid_tiff import write_pyramid
from asmil.slides.synthetic.artifacts import draw_light
from asmil.slides.synthetic.cells import place_cells
from asmil.slides.synthetic.layout import Layout, draw_layout
from asmil.slides.synthetic.plan import SlidePlan, Stream
from asmil.slides.synthetic.rendering import SlideRenderer
from asmil.slides.synthetic.settings import SyntheticSlidesConfig
from asmil.slides.synthetic.stain import draw_stain
from asmil.slides.synthetic.truth import SlideTruth, slide_truth
from asmil.synthetic_plan import generator

TUMOR_LABEL = "tumor"


@dataclass(frozen=True)
class SlideFiles:
    """Where the files of a slide lie."""

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
    """All that the pixels of a slide depend on."""
    return SlideRenderer(
        layout,
        place_cells(generator(config.seed, Stream.CELLS, plan.index), layout),
        draw_stain(config.seed, plan),
        draw_light(config, plan, layout),
        generator(config.seed, Stream.RENDERING, plan.index),
    )
