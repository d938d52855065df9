"""One page that links everything asmil wrote below a folder, with the results of its runs in two sentences."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from asmil.errors import AsmilError
from asmil.evaluation.result_files import ComparisonFile, EvaluationFile, Number, read_localization, read_result
from asmil.evaluation.run_alarms import alarms_of_run
from asmil.files import write_text
from asmil.reporting import Document, Figure, Link, Links, Section
from asmil.reporting.formats import format_count
from asmil.reporting.page import html_document, with_links
from asmil.reporting.read_page import read_page
from asmil.runs.run import Run
from asmil.settings.documents import one_line
from asmil.tables.names import unique_names

INDEX_FILE = "index.html"
COMPARISON, VALIDATION = "comparison.html", "validation.html"
PAGES = {
    "auto.html": ("Best model", "which method was chosen, whether attention pays, expected performance"),
    COMPARISON: ("Comparison of methods", "ranking, differences with intervals and tests, curves"),
    "report.html": ("Metrics", "every metric with its interval, curves, calibration, slides"),
    VALIDATION: ("External validation", "performance on new patients, calibration, subgroups, decision curve"),
    "localization.html": ("Localization", "heat maps compared with annotations"),
    "faithfulness.html": ("Faithfulness of heat maps", "what happens to predictions when tiles are removed by rank"),
    "stability.html": ("Stability of attention", "how attention changed during training, and whether seeds agree"),
    "contact_sheet.html": ("Tissue", "what was found on every slide"),
}
"""The pages that verbs write, with their titles and what they show."""
HEATMAP_TABLE = "heatmaps.csv"
"""In a folder of `asmil heatmap`, beside its pictures."""
HEADLINES = {"macro_auc": "AUC", "c_index": "C-index", "r2": "R2"}
"""The metric that represents a run: the first that it has."""
MOST_PICTURES, MOST_VIEWED = 4, 4
PICTURE_PX = 1200


@dataclass(frozen=True)
class RunSummary:
    """The numbers of a run that the first sentences give; None where they were not measured.

    slides, patients: of the test set; survival is evaluated by patient and has no number of slides
    metric, value, low, high: its headline metric on test slides with the ends of its 95 % interval
    tile_auc: how well its heat maps rank annotated tiles
    alarms: what is wrong with its predictions or its attention
    """

    name: str
    slides: int
    metric: str
    value: float | None
    low: float | None
    high: float | None
    tile_auc: float | None
    alarms: tuple[str, ...]
    patients: int = 0


@dataclass(frozen=True)
class ResultsIndex:
    """The content of a folder: runs with results, pages and pictures of heat maps, with paths below it."""

    folder: Path
    runs: tuple[RunSummary, ...]
    pages: tuple[Path, ...]
    pictures: tuple[Path, ...]
    run_folders: tuple[Path, ...]

    @property
    def sentences(self) -> list[str]:
        """The results in one or two sentences."""
        return [sentence for sentence in (_performance(self.runs), _maps(self.runs)) if sentence]

    @property
    def viewed_runs(self) -> list[Path]:
        """The runs to look at side by side: all of the first one's cohort."""
        manifests = {run: Run(run).cohort.manifest for run in self.run_folders}
        return [run for run in self.run_folders if manifests[run] == manifests[self.run_folders[0]]][:MOST_VIEWED]

    @property
    def warnings(self) -> list[str]:
        """One sentence per run with an alarm."""
        return [
            f"Alarm for {run.name}: {', '.join(run.alarms)}. Do not read its heat maps before you have looked at "
            "the page on stability."
            for run in self.runs
            if run.alarms
        ]


def index_results(folder: Path) -> ResultsIndex:
    """Find the runs, pages and pictures below a folder; those of single trainings are left out."""
    if not folder.is_dir():
        raise AsmilError(f"{folder} is not a folder; give the folder that holds your runs and reports")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(folder)))
    run_folders = [
        path.parent for path in files if path.name == "config.yaml" and (path.parent / "splits.csv").exists()
    ]
    pages = tuple(path.relative_to(folder) for name in PAGES for path in files if path.name == name)
    drawn = {path.parent for path in files if path.name == HEATMAP_TABLE}
    pictures = tuple(
        path.relative_to(folder)
        for path in files
        if path.parent in drawn and path.suffix == ".png" and not path.stem.endswith("_tiles")
    )
    if not pages and not pictures:
        raise AsmilError(f"{folder}: there are no reports here yet; make some, e.g. with `asmil evaluate`")
    summaries = {run: summary for run in run_folders if (summary := _summary(run)) is not None}
    given = names_in_comparison(folder)
    names = [given.get(run.resolve(), name) for run, name in zip(summaries, unique_names(list(summaries)), strict=True)]
    runs = tuple(replace(summary, name=name) for summary, name in zip(summaries.values(), names, strict=True))
    return ResultsIndex(folder, runs, pages, pictures, tuple(run_folders))


def names_in_comparison(folder: Path) -> dict[Path, str]:
    """The names of runs in the comparison of a folder, which may have been given with `--names`."""
    compared = read_result((folder / COMPARISON).with_suffix(".json"), ComparisonFile, "asmil compare")
    runs = [] if compared is None else compared.runs
    # a relative path may be that from another folder; the runs of a study are in its folder
    return {path.resolve(): run.name for run in runs for path in (run.run, folder / run.run.name)}


def write_index(results: ResultsIndex, title: str, next_steps: Sequence[str] = ()) -> Path:
    """Write `index.html` into the folder, and links to it and to each other into the pages that it links.

    next_steps: sentences on what can be done with the results
    """
    page = results.folder / INDEX_FILE
    write_text(page, html_document(index_document(results, title, next_steps)))
    for linked in results.pages:
        path = results.folder / linked
        write_text(path, with_links(path.read_text(encoding="utf-8"), _links_from(linked, results.pages)))
    return page


def _links_from(page: Path, pages: Sequence[Path]) -> list[Link]:
    """The index and the other pages, as seen from one of them."""
    up = "../" * len(page.parent.parts)
    others = [_link(other) for other in pages if other != page]
    return [Link("All results", up + INDEX_FILE), *(Link(link.text, up + link.address) for link in others)]


def index_document(results: ResultsIndex, title: str, next_steps: Sequence[str] = ()) -> Document:
    """The page: results first, then links and pictures; the comparison of the folder makes it the cover of a study."""
    compared = Path(COMPARISON)
    cover = read_page(results.folder / compared) if compared in results.pages else None
    sections = [] if cover is None else list(cover.sections)
    if results.pages:
        sections.append(Section("Reports", [Links([_link(page) for page in results.pages])]))
    if next_steps:
        sections.append(Section("Next", list(next_steps)))
    if results.pictures:
        sections.append(Section("Heat maps", list(_figures(results))))
    if len(results.pictures) > MOST_PICTURES:
        more = [Link(path.stem, quote(path.as_posix())) for path in results.pictures[MOST_PICTURES:]]
        sections.append(Section("More heat maps", [Links(more)]))
    sentences = [*([] if cover is None else [cover.answer]), *results.sentences]
    answer = " ".join(sentences) or "No run here has been evaluated yet."
    about = "" if cover is None else cover.about
    return Document("Results" if cover is None else "Study", title, answer, sections, about, warnings=results.warnings)


def _figures(results: ResultsIndex) -> Iterator[Figure]:
    for path in results.pictures[:MOST_PICTURES]:
        address = quote(path.as_posix())
        yield Figure(_reduced(results.folder / path), path.stem, f"Open `{path.as_posix()}` to see it larger.", address)


def _reduced(picture: Path) -> bytes:
    """A picture as PNG, at most PICTURE_PX wide, so that the page stays small enough to send.

    If a figure states where its pictures are, its background is removed, since the page may be light or dark.
    """
    import numpy as np
    from PIL import Image

    from asmil.explain.canvas import PICTURE_BOXES, boxes_of, on_any_ground

    content = io.BytesIO()
    try:
        with Image.open(picture) as image:
            drawn, boxes = image.convert("RGB"), image.info.get(PICTURE_BOXES)
        if boxes is not None:
            drawn = Image.fromarray(on_any_ground(np.asarray(drawn), boxes_of(boxes)))
        drawn.thumbnail((PICTURE_PX, PICTURE_PX))
        drawn.save(content, "PNG", optimize=True)
    except (OSError, ValueError, SyntaxError) as error:  # what damaged pictures raise
        raise AsmilError(f"{picture} cannot be read ({one_line(error)}); draw it again with `asmil heatmap`") from None
    return content.getvalue()


def _link(page: Path) -> Link:
    title, note = PAGES[page.name]
    parent = page.parent.as_posix()
    return Link(f"{title}: {parent}" if parent != "." else title, quote(page.as_posix()), note)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "fold-")) for part in path.parts)


def _summary(run: Path) -> RunSummary | None:
    evaluated = read_result(run / "evaluation.json", EvaluationFile, "asmil evaluate")
    if evaluated is None or evaluated.role != "test":
        return None
    metric = next((name for name in HEADLINES if name in evaluated.metrics), "")
    headline = evaluated.metrics.get(metric, Number(value=None))
    localized = read_localization(run)
    return RunSummary(
        name=run.name,
        slides=evaluated.slides,
        metric=HEADLINES.get(metric, ""),
        value=headline.value,
        low=headline.low,
        high=headline.high,
        tile_auc=localized.tile_auc.value if localized else None,
        alarms=tuple(alarm.name for alarm in alarms_of_run(run)),
        patients=evaluated.patients,
    )


def _performance(runs: Sequence[RunSummary]) -> str:
    measured = [run for run in runs if run.value is not None]
    if not measured:
        return ""
    tested = [_tested(run) for run in measured]
    same = len(set(tested)) == 1
    parts = [
        f"{run.name} reaches {run.metric} {run.value:.2f}{_interval(run)}" + ("" if same else f" on {size}")
        for run, size in zip(measured, tested, strict=True)
    ]
    sentence = f"{_listed(parts)}{_verdict(measured) if same else ''}."
    return f"On {tested[0]}, {sentence}" if same else sentence


def _tested(run: RunSummary) -> str:
    return format_count(run.slides, "test slide") if run.slides else format_count(run.patients, "test patient")


def _interval(run: RunSummary) -> str:
    known = run.low is not None and run.high is not None
    return f" (95 % interval {run.low:.2f} to {run.high:.2f})" if known else ""


def _verdict(runs: Sequence[RunSummary]) -> str:
    """Whether the intervals of two runs separate them; empty for other numbers of runs."""
    if len(runs) != 2 or any(run.low is None or run.high is None for run in runs):
        return ""
    (low, high), (other_low, other_high) = (((run.low or 0.0), (run.high or 0.0)) for run in runs)
    apart = low > other_high or other_low > high
    return "" if apart else "; the intervals overlap, so this does not rank the methods"


def _maps(runs: Sequence[RunSummary]) -> str:
    parts = [f"{run.tile_auc:.2f} for {run.name}" for run in runs if run.tile_auc is not None]
    if not parts:
        return ""
    return (
        f"Their heat maps rank the annotated tumor tiles of a slide above the others: tile AUC {_listed(parts)} "
        "(0.5 is chance)."
    )


def _listed(parts: Sequence[str]) -> str:
    """Parts of a sentence, with `and` before the last.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
