"""Heat maps of runs or of scores: from what a user names to picture files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from asmil.api.inputs import (
    PathLike,
    RunLike,
    as_path,
    names,
    run_paths,
    slide_engine,
    warn_of_changed_labels,
    warn_of_kept,
)
from asmil.console import progress_bar
from asmil.errors import AsmilError
from asmil.explain.asked_slides import AskedSlide, SlidePlaces, asked_slides
from asmil.explain.heatmaps import HeatmapPlan, HeatmapResult, SlideOutlines, draw_heatmaps
from asmil.explain.settings import HeatmapSettings
from asmil.runs.cohort import RunCohort
from asmil.runs.run import Run
from asmil.settings.config import parse_settings
from asmil.settings.made_from import DoneBefore
from asmil.slides.annotations import find_annotations


@dataclass(frozen=True)
class HeatmapRequest:
    """What is to be drawn.

    runs: run folders; slides: names, files or folders of slides; none: those of the run that have the role
    images, features: where slide images and features are; default: as the manifest of the first run says
    scores: a file or folder of values to draw instead of a run's
    annotations: a file or folder of outlines or masks; mask_value: that of tumor in masks with several values
    method: confirms the run's method where it is code of the user's
    """

    runs: Sequence[Path]
    slides: Sequence[str]
    out: Path
    settings: HeatmapSettings
    images: Path | None = None
    features: Path | None = None
    scores: Path | None = None
    annotations: Path | None = None
    role: str = "test"
    mpp: float | None = None
    device: str = "auto"
    method: str | None = None
    mask_value: int | None = None

    def find_slides(self) -> list[AskedSlide]:
        """The slides that are meant."""
        if not self.runs and self.scores is None:
            named = f" (not one: {self.slides[0]})" if self.slides else ""
            raise AsmilError(
                f"no run folder is named{named}; give the --out folder of `asmil train`, or values with --scores"
            )
        trained_on = Run(self.runs[0]).cohort if self.runs else RunCohort(None)
        folders = SlidePlaces.of_run(trained_on, self.features, self.images)
        slides = asked_slides(self.slides, folders, self._of_role(), needs_features=self.scores is None)
        if self.scores is not None and self.scores.is_file() and len(slides) > 1:
            raise AsmilError(
                f"{self.scores}: a file of scores belongs to one slide, but {len(slides)} are named; give a folder"
            )
        return slides if self.mpp is None else [replace(slide, mpp=self.mpp) for slide in slides]

    def _of_role(self) -> list[str]:
        if not self.runs:
            return []
        run = Run(self.runs[0])
        if run.is_bundle and not self.slides:
            raise AsmilError(f"{run.path} is a bundle, which lists no slides; name those to draw after it")
        return run.slides_of_role(self.role)

    def plan(self, slides: Sequence[AskedSlide], alarms: tuple[str, ...]) -> HeatmapPlan:
        """What the workers need to draw these slides."""
        outlines = None
        if self.annotations is not None:
            files = find_annotations(self.annotations, [slide.name for slide in slides]).by_slide
            outlines = SlideOutlines(files, self.annotations.absolute(), self.mask_value)
        return HeatmapPlan(
            self.out.absolute(),
            self.settings,
            tuple(run.resolve() for run in self.runs),
            None if self.scores is None else self.scores.absolute(),
            outlines,
            self.device,
            self.method,
            alarms,
        )


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
        `qupath`, `cut`, `side_px`, `tile_px`; see docs/heatmaps.md

    Slides that could not be drawn are in `failures` of the result.
    """
    from asmil.evaluation.run_alarms import alarm_findings

    asked = {**settings, "kinds": names(kind)} if kind else settings
    request = HeatmapRequest(
        run_paths(runs),
        [str(slide) for slide in ([slides] if isinstance(slides, Path | str) else slides)],
        Path(out),
        parse_settings(HeatmapSettings, asked),
        as_path(images),
        as_path(features),
        as_path(scores),
        as_path(annotations),
        role,
        mpp,
        device,
        method,
        mask_value,
    )
    drawn_slides = request.find_slides()
    plan = request.plan(drawn_slides, alarm_findings(request.runs))
    done = DoneBefore(again)
    with progress_bar("slides", not progress) as show:
        where = slide_engine(engine, address, workers, device, item_timeout, len(drawn_slides))
        result = draw_heatmaps(drawn_slides, plan, where, show, done)
    warn_of_kept(done)
    warn_of_changed_labels(request.runs)
    return result
