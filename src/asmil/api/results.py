"""Results in depth: whether maps show the tumor and what the models use, how attention changed, one page for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from asmil.api.inputs import (
    PathLike,
    RunLike,
    as_path,
    names,
    run_path,
    run_paths,
    slide_engine,
    warn,
    warn_of_changed_labels,
)
from asmil.console import progress_bar

if TYPE_CHECKING:
    from asmil.evaluation.checklists.checklist import Checklist
    from asmil.evaluation.localization.localize import Localization
    from asmil.evaluation.stability import RunStability
    from asmil.experiments.manuscript import Manuscript, Part
    from asmil.experiments.results_index import ResultsIndex
    from asmil.explain.faithfulness import Faithfulness, FaithfulnessSettings
    from asmil.reporting import Estimate

Role = Literal["test", "val", "train"]
Conversion = Literal["nms", "tiles", "components"]


def localize(
    run: RunLike,
    *,
    annotations: PathLike | None = None,
    truth: PathLike | None = None,
    cohort: PathLike | None = None,
    features: PathLike | None = None,
    out: PathLike | None = None,
    role: Role = "test",
    preset: Literal["release", "challenge2016", "asmil_text"] = "release",
    conversion: Conversion = "nms",
    radius: int = 3,
    scaling: Sequence[str] = (),
    kind: str | None = None,
    tumor: Sequence[str] = (),
    exclude: Sequence[str] = (),
    mask_value: int | None = None,
    normal: Sequence[str] = (),
    skip_list: PathLike | None = None,
    resamples: int = 2000,
    seed: int = 0,
    method: str | None = None,
    device: str = "auto",
    progress: bool = True,
) -> Localization:
    """Compare the tile maps of a run with annotations: FROC, Dice, specificity, tile AUC. See docs/localization.md.

    annotations or truth: a folder of annotations (ASAP or Aperio XML, GeoJSON, mask TIFFs), or a table of tiles
        (slide, x, y, tumor)
    cohort, features: the manifest and its features, if not those of the run
    out: the folder for the page and tables; default: RUN/localization
    role: the part of the cohort
    preset, conversion, radius: the FROC convention, how tiles become points, and the radius of nms in tiles
    scaling: in addition to minmax: gated, times_n, cohort or rank
    kind: the kind of map; default: the method's own
    tumor, exclude, mask_value: annotated classes that are tumor or cut out, and the value of tumor in masks
    normal: labels of normal slides
    skip_list: a file with slides to leave out, one name per line
    resamples, seed: of the bootstrap over patients
    method: confirms the run's method if it is your own code

    Slides that could not be evaluated are in `problems` of the result.
    """
    from asmil.evaluation.localization.localize import LocalizeSettings, known_scalings, localize_run
    from asmil.evaluation.localization.report import write_localization
    from asmil.slides.annotations import ClassNames

    settings = LocalizeSettings(
        annotations=as_path(annotations),
        truth=as_path(truth),
        cohort=as_path(cohort),
        features=as_path(features),
        role=role,
        preset=preset,
        conversion=conversion,
        radius=radius,
        scalings=known_scalings(names(scaling)),
        kind=kind,
        normal=names(normal),
        classes=ClassNames(names(tumor), names(exclude)),
        mask_value=mask_value,
        skip_list=as_path(skip_list),
        resamples=resamples,
        seed=seed,
        device=device,
        method=method,
    )
    path = run_path(run)
    with progress_bar("slides", not progress) as show:
        localization = localize_run(path, settings, progress=show)
    write_localization(localization, localization_folder(path, out, role))
    return localization


def localization_folder(run: Path, out: PathLike | None, role: Role) -> Path:
    """The folder of the page: as given, or in the run folder."""
    return Path(out) if out is not None else run / ("localization" if role == "test" else f"localization-{role}")


def faithfulness(
    run: RunLike,
    *,
    out: PathLike | None = None,
    kind: Sequence[str] = (),
    name: str | None = None,
    role: Role = "test",
    slides: int | None = None,
    truth: PathLike | None = None,
    annotations: PathLike | None = None,
    features: PathLike | None = None,
    resamples: int = 2000,
    seed: int = 0,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    item_timeout: float | None = None,
    method: str | None = None,
    again: bool = False,
    progress: bool = True,
) -> Faithfulness:
    """Measure whether maps show what the models use: remove tiles in their order. See docs/faithfulness.md.

    out: the folder for the report; default: RUN/faithfulness
    kind: kinds of maps; default: all that the method has
    name: the class or label to explain; default: the predicted one of each slide
    role, slides: the part of the cohort, and the largest number of slides
    truth: a table of tiles (slide, x, y, tumor); default: tile_truth.parquet beside the manifest
    annotations: a folder of annotations, for tile AUC and FROC instead of the table
    resamples, seed: of the bootstrap over patients
    engine, address, workers, device, item_timeout: as for `extract`
    method: confirms the run's method if it is your own code
    again: compute slides again that were made from something else, instead of refusing

    Slides that could not be evaluated are in `problems` of the result.
    """
    from asmil.evaluation.run_alarms import alarms_of_run
    from asmil.explain.faithfulness import FaithfulnessSettings, faithfulness_run
    from asmil.explain.faithfulness_report import write_faithfulness
    from asmil.settings.made_from import DoneBefore

    settings = FaithfulnessSettings(
        kinds=names(kind),
        name=name,
        role=role,
        slides=slides,
        truth=as_path(truth),
        features=as_path(features),
        resamples=resamples,
        seed=seed,
        device=device,
        method=method,
    )
    path = run_path(run)
    warn_of_changed_labels([path])
    folder, done = as_path(out) or path / "faithfulness", DoneBefore(again)
    with progress_bar("slides", not progress) as show:
        result = faithfulness_run(
            path,
            settings,
            show,
            _locate(path, settings, as_path(annotations)),
            lambda n_slides: slide_engine(engine, address, workers, device, item_timeout, n_slides),
            keep=folder / "slides",
            done_before=done,
        )
    warn(*done.notes)
    result = replace(result, alarms=tuple(alarm.short for alarm in alarms_of_run(path)))
    write_faithfulness(result, folder)
    return result


def _locate(
    run: Path, settings: FaithfulnessSettings, annotations: Path | None
) -> Callable[[str, Path, frozenset[str]], tuple[Estimate, Estimate] | None]:
    """Tile AUC and FROC of a kind of map, on some slides."""
    from asmil.evaluation.localization.localize import LocalizeSettings, tile_auc_and_froc

    def locate(kind: str, table: Path, slides: frozenset[str]) -> tuple[Estimate, Estimate] | None:
        asked = LocalizeSettings(
            annotations=annotations,
            truth=None if annotations else table,
            features=settings.features,
            slides=slides,
            role=settings.role,
            scalings=("rank",),
            kind=kind,
            resamples=settings.resamples,
            seed=settings.seed,
            device=settings.device,
            method=settings.method,
        )
        return tile_auc_and_froc(run, asked)

    return locate


def stability(
    runs: RunLike | Sequence[RunLike],
    *,
    out: PathLike | None = None,
    slide: str | None = None,
    epochs: Sequence[float] | None = None,
) -> list[RunStability]:
    """Measure attention over a training: how it changes, how concentrated it is, whether seeds agree.

    out: the folder for the page and tables; default: the folder of a single run, and nothing is written for several
    slide, epochs: the slide and the epochs whose maps are drawn

    See docs/stability.md.
    """
    from asmil.evaluation.stability import read_stability, write_tables
    from asmil.evaluation.stability.figures import choose_slide
    from asmil.evaluation.stability.report import write_stability_page

    paths = run_paths(runs)
    warn_of_changed_labels(paths)
    stabilities = [read_stability(path) for path in paths]
    choose_slide(stabilities, slide)  # an unknown name is an error before anything is written
    folder = stabilities[0].path if out is None and len(stabilities) == 1 else as_path(out)
    if folder is not None:
        write_tables(stabilities, folder)
        write_stability_page(stabilities, folder, slide, None if epochs is None else list(epochs))
    return stabilities


def checklist(run: RunLike, *, validation: PathLike | None = None, out: PathLike = "checklists") -> list[Checklist]:
    """Fill in the checklists TRIPOD+AI and, for classes and labels, STARD-AI. See docs/checklists.md.

    run: a run or bundle; validation: the folder that `asmil validate` wrote for it
    out: the folder for HTML, Markdown, JSON and, if python-docx is installed, Word files
    """
    from asmil.evaluation.checklists.checklist import fill_all, write_checklist

    filled = fill_all(run_path(run), as_path(validation))
    for each in filled:
        write_checklist(each, Path(out))
    return filled


def index(folder: PathLike, *, title: str | None = None) -> ResultsIndex:
    """Write FOLDER/index.html: the results in two sentences, heat maps, and links to all reports below the folder.

    title: of the page; default: the name of the folder
    """
    from asmil.experiments.results_index import index_results, write_index

    folder = Path(folder)
    results, steps = index_results(folder), []
    if results.run_folders:
        runs = " ".join(map(str, results.viewed_runs))
        steps.append(f"To look at the slides with their maps in a browser: `asmil view {runs}`")
    write_index(results, title or folder.resolve().name, steps)
    return results


def manuscript(
    folder: PathLike, out: PathLike, *, only: Part | None = None, width: Literal[85, 180] | None = None
) -> Manuscript:
    """Write the figures, tables and text of a paper from all pages and runs below a folder.

    out: the folder to write
    only: `figures`, `tables` or `text`; default: all
    width: of all figures in mm, one column or two of a journal; default: one column where its text is readable

    See docs/manuscript.md.
    """
    from asmil.experiments.manuscript import PARTS, write_manuscript
    from asmil.experiments.results_index import index_results

    return write_manuscript(index_results(Path(folder)), Path(out), PARTS if only is None else (only,), width)


def export_run(
    run: RunLike,
    out: PathLike,
    *,
    format: Literal["bundle", "onnx", "torch"] = "bundle",
    method: str | None = None,
) -> Path:
    """Export a trained run: its models, settings and a model card, without any data about slides or patients.

    out: the folder (bundle) or file (onnx, torch) to write
    format: a bundle is opened by `load_run`; onnx and torch are one file for other programs
    method: confirms the run's method if it is your own code

    See docs/export.md.
    """
    from asmil.export.bundle import write_bundle
    from asmil.export.graph import export_onnx, export_torch

    writers: dict[str, Callable[[Path, Path, str | None], Path]]
    writers = {"bundle": write_bundle, "onnx": export_onnx, "torch": export_torch}
    return writers[format](run_path(run), Path(out), method)
