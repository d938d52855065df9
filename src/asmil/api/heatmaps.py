"""Heat maps of runs or of scores: from what a user names to picture files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from asmil.api.inputs import (
    PathLike,
    RunLike,
    as_path,
    names,
    run_paths,
    slide_engine,
    warn,
    warn_of_changed_labels,
)
from asmil.console import progress_bar
from asmil.errors import AsmilError
from asmil.explain.asked_slides import AskedSlide, asked_slides
from asmil.explain.dicom import require_dicom
from asmil.explain.heatmaps import HeatmapPlan, HeatmapResult, SlideOutlines, draw_heatmaps
from asmil.explain.settings import HeatmapSettings
from asmil.runs.cohort import RunCohort
from asmil.runs.run import Run
from asmil.settings.config import parse_settings
from asmil.settings.made_from import DoneBefore
from asmil.slides.annotations import find_annotations


def heatmap(
    runs: RunLike | Sequence[RunLike] = (),
    slides: PathLike | Sequence[PathLike] = (),
    out: PathLike = "heatmaps",
    *,
    kind: str | Sequence[str] = (),
    images: PathLike | None = None,
    features: PathLike | None = None,
    scores: PathLike | None = None,
    annotations: PathLike | None = None,
    mask_value: int | None = None,
    role: Literal["test", "val", "train", "all"] = "test",
    mpp: float | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    item_timeout: float | None = None,
    method: str | None = None,
    again: bool = False,
    progress: bool = True,
    **settings: Any,
) -> HeatmapResult:
    """Draw heat maps of slides into a folder: slide, map with its scale, annotations, top and bottom tiles.

    runs: one or several runs; none, to draw `scores`
    slides: names in the cohort, slide images, feature files or folders of them; none: those of the role
    out: the folder for the pictures
    kind: kinds of maps, see docs/explain.md; default: the method's own
    images, features: where slide images and features are; default: as the manifest of the first run says
    scores: values to draw instead of a run's: .npy, .csv (x, y, score), .h5, or a folder of them
    annotations, mask_value: outlines or masks to draw, and the value of tumor in masks with several values
    role: the part of the first run, if no slide is named
    mpp: microns per level-0 pixel; overrides the files
    engine, address, workers, device, item_timeout: as for `extract`
    method: confirms the runs' method if it is your own code
    again: draw maps again that were made from another model, other features or settings, instead of refusing
    settings: `name` (the class), `by`, `scale`, `limits`, `color_map`, `opacity`, `tiles`, `tiff`, `tiff_mpp`,
        `qupath`, `dicom`, `cut`, `side_px`, `magnification`, `tile_px`; see docs/heatmaps.md

    Slides that could not be drawn are in `failures` of the result.
    """
    from asmil.evaluation.run_alarms import alarm_findings

    asked = {**settings, "kinds": names(kind)} if kind else settings
    drawing, paths, values = parse_settings(HeatmapSettings, asked), run_paths(runs), as_path(scores)
    if drawing.dicom:
        require_dicom()
    named = [str(slide) for slide in ([slides] if isinstance(slides, Path | str) else slides)]
    drawn = find_slides(paths, named, values, role, as_path(features), as_path(images))
    if mpp is not None:
        drawn = [replace(slide, mpp=mpp) for slide in drawn]
    plan = HeatmapPlan(
        Path(out).absolute(),
        drawing,
        tuple(path.resolve() for path in paths),
        None if values is None else values.absolute(),
        None if annotations is None else _outlines(Path(annotations), drawn, mask_value),
        device,
        method,
        alarm_findings(paths),
    )
    done = DoneBefore(again)
    with progress_bar("slides", not progress) as show:
        where = slide_engine(engine, address, workers, device, item_timeout, len(drawn))
        result = draw_heatmaps(drawn, plan, where, show, done)
    warn(*done.notes)
    warn_of_changed_labels(paths)
    return result


def find_slides(
    runs: Sequence[Path],
    named: Sequence[str],
    scores: Path | None = None,
    role: str = "test",
    features: Path | None = None,
    images: Path | None = None,
) -> list[AskedSlide]:
    """The slides that are meant: those that are named or, if none is, those of the first run that have the role."""
    if not runs and scores is None:
        first = f" (not one: {named[0]})" if named else ""
        raise AsmilError(
            f"no run folder is named{first}; give the --out folder of `asmil train`, or values with --scores"
        )
    run = Run(runs[0]) if runs else None
    if run is not None and run.is_bundle and not named:
        raise AsmilError(f"{run.path} is a bundle, which lists no slides; name those to draw after it")
    trained_on, of_role = (RunCohort(None), []) if run is None else (run.cohort, run.slides_of_role(role))
    slides = asked_slides(named, trained_on, features, images, of_role, needs_features=scores is None)
    if scores is not None and scores.is_file() and len(slides) > 1:
        raise AsmilError(f"{scores}: a file of scores belongs to one slide, but {len(slides)} are named; give a folder")
    return slides


def _outlines(annotations: Path, slides: Sequence[AskedSlide], mask_value: int | None) -> SlideOutlines:
    files = find_annotations(annotations, [slide.name for slide in slides]).by_slide
    return SlideOutlines(files, annotations.absolute(), mask_value)
