"""Pictures of slides for reports: the slide, its map, and the tiles that are called positive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress

import cv2
import numpy as np
from shapely import MultiPolygon

from asmil.errors import AsmilError
from asmil.explain.asked_slides import cohort_slides, image_files
from asmil.explain.caveats import Caveats, attention_finding
from asmil.explain.color_scale import average_weight, color_scale, natural_scale
from asmil.explain.figure import OPACITY, Panel, draw_contours, map_panels, panel_with_legend, tissue_view
from asmil.explain.run_explainer import RunExplainer
from asmil.explain.tile_map import SlideFrame, TileMap, pixel_coords, slide_frame
from asmil.reporting import Figure
from asmil.reporting.formats import format_number
from asmil.runs.cohort import RunCohort
from asmil.runs.run import Run
from asmil.slides.discovery import SlideFile
from asmil.slides.image import Pixels
from asmil.slides.opening import open_slide
from asmil.tables.arrays import Booleans

SIDE_PX = 420
MOST_TRAININGS = 10
"""Runs with more models are not loaded for a report; `asmil heatmap` draws their maps."""


def known_images(cohort: RunCohort) -> dict[str, SlideFile]:
    """The slide images of a cohort by name; empty if they cannot be found."""
    try:
        return image_files(cohort)
    except AsmilError:
        return {}


def slide_panels(
    frame: SlideFrame,
    image: SlideFile | None,
    heat: TileMap,
    calls: Mapping[str, Booleans] | None = None,
    outline: MultiPolygon | None = None,
    alarms: Sequence[str] = (),
) -> list[Figure]:
    """The slide (if there is an image), its map with a legend, and one picture per set of called tiles.

    calls: by title, whether each tile is called
    outline: of the annotated tumor, in level-0 pixels
    alarms: of the run, a few words each, for the caption of the map; the page has them at its top
    """
    average = average_weight(heat.kind, heat.values)
    finding = "" if average is None else attention_finding(heat.values, average)
    caveats = Caveats(tuple(alarms), (finding,) if finding else ())
    shown = [
        TileMap(np.where(called, 1.0, np.nan), "called", title=title)
        for title, called in (calls or {}).items()
        if called.any()
    ]
    marked = color_scale([1.0], limits=(0.0, 1.35), color_map="inferno")
    scales = [natural_scale(heat.kind, heat.values, average), *[marked] * len(shown)]
    with ExitStack() as stack:
        opened = None
        if image is not None:
            with suppress(AsmilError):
                opened = stack.enter_context(open_slide(image.path, image.mpp))
        view = tissue_view(frame, opened, SIDE_PX)
        panels = map_panels(frame, view, [heat, *shown], scales)
    opacity = OPACITY if view.pixels is not None else 1.0
    figures = []
    for panel in panels:
        pixels = panel.pixels if outline is None else draw_contours(panel.pixels, view, [outline])
        scale = panel.scale if panel.unit == heat.kind else None
        title = f"{frame.slide}: {panel.title}"
        caption = title if scale is None else " ".join([f"{title}.", *caveats.texts])
        figures.append(
            Figure(_png(panel_with_legend(Panel(title, pixels, scale, panel.unit), opacity)), title, caption)
        )
    return figures


def run_panels(run: Run, names: Iterable[str], alarms: Sequence[str] = ()) -> dict[str, list[Figure]]:
    """Slides of a run with the map of models that were not trained on them; those without features are left out.

    alarms: of the run, a few words each
    """
    if len(list(run.layout.trainings())) > MOST_TRAININGS:
        return {}
    panels: dict[str, list[Figure]] = {}
    with suppress(AsmilError):
        cohort, images = cohort_slides(run.cohort), known_images(run.cohort)
        known = [cohort[name] for name in names if name in cohort]
        if not known:
            return {}
        explainer = RunExplainer(run)
        for slide in known:
            with suppress(AsmilError):
                bag, (info,) = run.bag(slide)
                heat = explainer.explain(bag)
                frame = slide_frame(slide.slide, pixel_coords(bag, info), info, None, slide.mpp)
                shown, named = format_number(heat.shown, 2), len(explainer.names) > 1
                said = f" for {heat.name}, probability" if named else f"; predicted {heat.name}"
                title = f"{heat.kind}{said} {shown}"
                drawn = TileMap(heat.values, heat.kind, title=title)
                panels[slide.slide] = slide_panels(frame, images.get(slide.slide), drawn, alarms=alarms)
    return panels


def _png(pixels: Pixels) -> bytes:
    return bytes(cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGBA2BGRA))[1])
