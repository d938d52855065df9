"""Heat maps of many slides in one folder, on any engine; finished slides are not drawn again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from asmil.engine.jobs import Engine, Place, Progress, made_progress
from asmil.explain.asked_slides import AskedSlide
from asmil.explain.canvas import PICTURE_BOXES, boxes_text
from asmil.explain.caveats import Caveats
from asmil.explain.coarser_maps import coarser_maps
from asmil.explain.color_scale import scales_of
from asmil.explain.contact_sheet import contact_sheet
from asmil.explain.figure import arrange, map_panels, tissue_view
from asmil.explain.ingredients import keeps, run_contents, slide_contents
from asmil.explain.overlay_tiff import write_overlay
from asmil.explain.qupath import write_regions, write_tiles
from asmil.explain.run_explainer import RunExplainer, open_explainer
from asmil.explain.score_files import find_scores
from asmil.explain.settings import HeatmapSettings
from asmil.explain.slide_maps import maps_of_runs, maps_of_scores
from asmil.explain.tile_map import slide_frame
from asmil.runs.run import Run
from asmil.settings.config import flat
from asmil.settings.folder_settings import claim_folder
from asmil.settings.made_from import DoneBefore, MadeFrom, Record, file_content
from asmil.slides.annotations import AnnotatedRegion, regions_on_slide
from asmil.slides.file_names import slide_content
from asmil.slides.finished_rows import FinishedRows
from asmil.slides.opening import open_slide
from asmil.slides.qc import write_png
from asmil.tables.names import file_in


@dataclass(frozen=True)
class SlideOutlines:
    """The annotations of many slides.

    files: annotation files, by slide
    source: the folder or file that was given
    mask_value: the value of tumor in masks with several values
    """

    files: Mapping[str, Path]
    source: Path
    mask_value: int | None = None

    def of_slide(self, slide: str, size_px: tuple[int, int], origin: tuple[int, int] = (0, 0)) -> list[AnnotatedRegion]:
        """The regions of a slide, in level-0 pixels; none if it has no file. Arguments as for `regions_on_slide`."""
        path = self.files.get(slide)
        return [] if path is None else list(regions_on_slide(path, size_px, origin, self.mask_value))


TABLE, SETTINGS = "heatmaps.csv", "heatmaps.yaml"


@dataclass(frozen=True)
class HeatmapRow:
    """One finished slide: what was drawn, and its files."""

    slide: str
    tiles: int
    kinds: str
    about: str
    files: str
    notes: str = ""
    alarms: str = ""


@dataclass(frozen=True)
class HeatmapResult:
    """The rows of all requested slides, the errors of failed ones, and the alarms of the runs."""

    rows: tuple[HeatmapRow, ...]
    failures: tuple[str, ...]
    already_done: int
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeatmapPlan:
    """Everything that a worker needs to draw slides.

    runs: run folders; empty if `scores` are drawn
    annotations: outlines to draw; None: no panel for them
    alarms: of the runs, one sentence each; written on every picture and into every file
    """

    out: Path
    settings: HeatmapSettings
    runs: tuple[Path, ...] = ()
    scores: Path | None = None
    annotations: SlideOutlines | None = None
    device: str = "auto"
    method: str | None = None
    alarms: tuple[str, ...] = ()

    def __call__(self, worker: Place) -> Callable[[AskedSlide], tuple[HeatmapRow, Record]]:
        device = worker.device if self.device == "auto" else self.device
        explainers = [open_explainer(run, device, self.method) for run in self.runs]
        made_from = self.made_from()

        def draw(asked: AskedSlide) -> tuple[HeatmapRow, Record]:
            record = made_from(asked).record()  # before the slide is drawn, so that a later change is noticed next time
            return draw_slide(asked, self, explainers), record

        return draw

    def made_from(self) -> Callable[[AskedSlide], MadeFrom]:
        """A function from a slide to everything that its pictures are made from."""
        settings = flat(self.settings.stored())
        of_runs = run_contents(self.runs, recorded=self.settings.by == "epoch")
        joins = bool(self.runs) and Run(self.runs[0]).unit == "patient"

        def of_slide(asked: AskedSlide) -> MadeFrom:
            contents = dict(of_runs)
            if asked.slide is not None:
                contents |= slide_contents(asked.slide, asked.joined if joins else ())
            if asked.image is not None:
                contents["slide image"] = slide_content(asked.image)
            if self.scores is not None:
                contents["scores"] = file_content(find_scores(self.scores, asked.name))
            if self.annotations is not None and (outlines := self.annotations.files.get(asked.name)) is not None:
                contents["annotations"] = file_content(outlines)
            mask_value = None if self.annotations is None else self.annotations.mask_value
            return MadeFrom({**settings, "mpp": asked.mpp, "mask_value": mask_value}, contents)

        return of_slide


def draw_heatmaps(
    slides: Sequence[AskedSlide],
    plan: HeatmapPlan,
    engine: Engine,
    progress: Progress | None = None,
    done_before: DoneBefore | None = None,
) -> HeatmapResult:
    """Draw every slide that is not done yet. A slide that fails is reported, and the others continue.

    done_before: decides about pictures that were made from something else; default: they are refused
    """
    done_before = done_before or DoneBefore()
    wanted = plan.settings.stored()
    wanted |= {"runs": [str(run) for run in plan.runs], "scores": str(plan.scores) if plan.scores else None}
    if plan.annotations is not None:
        wanted |= {"annotations": str(plan.annotations.source), "mask_value": plan.annotations.mask_value}
    claim_folder(plan.out / SETTINGS, wanted, "heat maps", done_before.again)
    table, made_from = FinishedRows(plan.out / TABLE, HeatmapRow), plan.made_from()
    kept: set[str] = set()
    for slide in slides:
        row, record = table.rows.get(slide.name), table.records.get(slide.name)
        if row is None or not all((plan.out / name).is_file() for name in row.files.split(";")):
            continue
        if keeps(done_before, slide.name, record, partial(made_from, slide)):
            kept.add(slide.name)
    done_before.refuse(plan.out)
    for slide in slides:
        if slide.name in kept:
            table.records[slide.name] = made_from(slide).refreshed(table.records[slide.name])
    to_do = [slide for slide in slides if slide.name not in kept]
    failures, already_done = [], len(slides) - len(to_do)
    with closing(table.run(engine, plan, to_do)) as outcomes:
        for done, outcome in enumerate(outcomes, start=already_done + 1):
            if outcome.result is None:
                name, error = outcome.job.name, str(outcome.error)
                failures.append(error if name in error else f"{name}: {error}")
            if progress is not None:
                progress(done, len(slides))
    drawn = tuple(table.rows[slide.name] for slide in slides if slide.name in table.rows)
    return HeatmapResult(drawn, tuple(sorted(failures)), already_done, plan.alarms)


def draw_slide(asked: AskedSlide, plan: HeatmapPlan, explainers: Sequence[RunExplainer]) -> HeatmapRow:
    """Compute the maps of one slide and write its pictures."""
    settings = plan.settings
    if plan.scores is not None:
        slide_maps = maps_of_scores(asked, plan.scores)
    else:
        slide_maps = maps_of_runs(asked, explainers, settings)
    if settings.magnification is not None:
        slide_maps = coarser_maps(slide_maps, asked, settings.magnification)
    made_progress()
    with ExitStack() as stack:
        image = None if asked.image is None else stack.enter_context(open_slide(asked.image, asked.mpp))
        frame = slide_frame(asked.name, slide_maps.coords, slide_maps.info, image, asked.mpp, settings.tile_px)
        scales = scales_of(slide_maps.maps, settings)
        notes = list(slide_maps.notes) + ([] if image is not None else ["no slide image: drawn on a plain canvas"])
        origin = image.bounds_origin if image is not None else (0, 0)
        regions, outlines = [], None
        if plan.annotations is not None:
            regions = plan.annotations.of_slide(asked.name, frame.size_px, origin)
            outlines = [region.shape for region in regions]
        if outlines == []:
            notes.append("no annotations of this slide")
        caveats = Caveats(plan.alarms, tuple(notes))
        many = len(slide_maps.maps) > 3
        view = tissue_view(frame, image, settings.side_px if not many else max(64, settings.side_px * 2 // 3))
        panels = map_panels(frame, view, slide_maps.maps, scales, outlines, settings.opacity, slide_maps.main)
        opacity = settings.opacity if image is not None else 1.0
        figure, pictures = arrange(frame.slide, slide_maps.about, panels, opacity=opacity, caveats=caveats)
        files = [file_in(plan.out, asked.name, ".png")]
        write_png(files[0], figure, {PICTURE_BOXES: boxes_text(pictures)})
        shown, scale = slide_maps.maps[slide_maps.main], scales[slide_maps.main]
        made_progress()
        if image is not None and settings.tiles:
            sheet = contact_sheet(frame, image, shown, scale, slide_maps.about, settings.tiles, caveats)
            files.append(file_in(plan.out, asked.name, "_tiles.png"))
            write_png(files[-1], sheet)
        if settings.tiff:
            files.append(file_in(plan.out, asked.name, "_overlay.tif"))
            write_overlay(files[-1], frame, image, shown.values, scale, settings.tiff_mpp, settings.opacity, caveats)
        if settings.qupath:
            files += [file_in(plan.out, asked.name, ending) for ending in ("_tiles.geojson", "_regions.geojson")]
            write_tiles(files[-2], frame, shown.values, shown.kind, scale, slide_maps.measurements, origin, caveats)
            write_regions(files[-1], frame, shown.values, shown.kind, scale, settings.cut, origin, caveats)
        if settings.dicom:
            from asmil.explain.dicom.writing import write_dicom  # needs the extra `dicom`

            method = explainers[0].run.method if explainers else shown.kind
            files += write_dicom(plan.out, asked, frame, image, slide_maps, method, settings.cut, regions, caveats)
    names = ";".join(path.relative_to(plan.out).as_posix() for path in files)
    kinds = ";".join(dict.fromkeys(tile_map.kind for tile_map in slide_maps.maps))
    return HeatmapRow(
        asked.name, len(frame.coords), kinds, slide_maps.about, names, "; ".join(notes), " ".join(plan.alarms)
    )
