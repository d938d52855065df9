"""Heat maps by runs or from scores: from what a user names to files, for the verb and the Python interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asmil.engine.jobs import Engine, Progress
from asmil.errors import AsmilError
from asmil.explain.asked_slides import AskedSlide, SlidePlaces, asked_slides
from asmil.explain.heatmaps import HeatmapPlan, HeatmapResult, SlideOutlines, draw_heatmaps
from asmil.explain.settings import HeatmapSettings
from asmil.runs.cohort import RunCohort
from asmil.runs.run import Run
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
        places = SlidePlaces.of_run(trained_on, self.features, self.images)
        found = asked_slides(self.slides, places, self._of_role(), needs_features=self.scores is None)
        if self.scores is not None and self.scores.is_file() and len(found) > 1:
            raise AsmilError(
                f"{self.scores}: one file of scores is of one slide, and {len(found)} are named; give a folder"
            )
        return found if self.mpp is None else [replace(one, mpp=self.mpp) for one in found]

    def _of_role(self) -> list[str]:
        if not self.runs:
            return []
        run = Run(self.runs[0])
        if run.is_bundle and not self.slides:
            raise AsmilError(f"{run.path} is a bundle, which lists no slides; name those to draw after it")
        return run.slides_of_role(self.role)


def draw(
    request: HeatmapRequest,
    engine: Callable[[int], Engine],
    progress: Progress | None = None,
    done_before: DoneBefore | None = None,
) -> HeatmapResult:
    """Draw what is asked for; `engine` gives the engine for a number of slides. See `draw_heatmaps`."""
    from asmil.evaluation.run_alarms import alarm_findings

    slides = request.find_slides()
    outlines = None
    if request.annotations is not None:
        files = find_annotations(request.annotations, [one.name for one in slides]).by_slide
        outlines = SlideOutlines(files, request.annotations.absolute(), request.mask_value)
    plan = HeatmapPlan(
        request.out.absolute(),
        request.settings,
        tuple(run.resolve() for run in request.runs),
        None if request.scores is None else request.scores.absolute(),
        outlines,
        request.device,
        request.method,
        alarm_findings(request.runs),
    )
    return draw_heatmaps(slides, plan, engine(len(slides)), progress, done_before)
