"""The report on recorded attention: its content and its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from asmil.errors import AsmilError
from asmil.evaluation.stability.analysis import RunStability, summary_of
from asmil.evaluation.stability.bag_features import bag_feature_figure
from asmil.evaluation.stability.figures import choose_slide, course_caption, course_figures, histogram_figure
from asmil.evaluation.stability.maps import maps_figure
from asmil.reporting import Block, Cell, Document, Figure, Folded, Heading, Row, Section, SideBySide, Table
from asmil.reporting.document import settings_table
from asmil.reporting.files import folded_table, write_document, write_figures
from asmil.reporting.formats import format_count, format_small
from asmil.tables.names import unique_names

MEASURE_TITLES = {
    "jsd_mean": "JSD mean",
    "jsd_late": "JSD late",
    "jsd_relative": "JSD relative",
    "effective_share": "effective share",
    "peak_n": "peak ×\u00a0N",
    "gini": "Gini",
    "top1_mass": "top-1\u00a0% mass",
}
AGREEMENT_TITLES = {"rank_correlation": "rank correlation", "top1_overlap": "top-1\u00a0% overlap", "jsd": "JSD"}
MOST_ROWS = 100
FIGURE_FOLDER = "stability_pictures"

READING = (
    "JSD is the Jensen-Shannon divergence between consecutive recordings in nats, from 0 (equal) to 0.69 (no tile in "
    "common). JSD mean averages all recordings, JSD late the last 10 (or the last half if there are fewer than 20). "
    "JSD relative is JSD late divided by ln N - entropy, since flat attention always has a small JSD.",
    "Concentration is measured at the epoch that was kept: effective share is exp(entropy) / N; peak × N is the "
    "largest weight relative to uniform attention; Gini is 0 for uniform attention and near 1 for a single tile; "
    "top-1 % mass is the weight of the top 1 % of tiles. Seed overlap is the share of them that two seeds share.",
    "Only a few slides are recorded, chosen by their order and not at random; training slides were seen in training. "
    "Stable attention need not be right: compare it with annotations (`asmil localize`).",
)

Figures = Mapping[str, Figure]
"""Figures by file name."""


def write_stability_page(
    stabilities: Sequence[RunStability], folder: Path, slide: str | None = None, epochs: Sequence[float] | None = None
) -> Path:
    """Write `stability.html`, and its figures as separate files; return the path of the page.

    slide, epochs: slide and epochs of the attention maps; by default a slide of the last class, from start to end
    """
    if not stabilities:
        raise AsmilError("nothing to show: give at least one run with recorded attention")
    courses = course_figures(stabilities)
    maps = maps_figure(stabilities, choose_slide(stabilities, slide), epochs)
    single: list[Figures] = [
        {"score_histograms": histogram_figure(stability), "bag_features": bag_feature_figure(stability, epochs)}
        for stability in stabilities
    ]
    figure_folder = folder / FIGURE_FOLDER
    write_figures({**courses, "attention_maps": maps}, figure_folder)
    for number, figures in enumerate(single, 1):
        write_figures(figures, figure_folder if len(stabilities) == 1 else figure_folder / f"run-{number}")
    document = stability_document(stabilities, slide)
    summary = document.sections[0]
    course: list[Block] = [
        Heading("Attention during training"),
        SideBySide(list(courses.values())),
        course_caption(stabilities),
    ]
    blocks = [*summary.blocks, *course, *_figure_blocks([maps], set())]
    sections = [Section(summary.title, blocks), *_run_sections(stabilities, single)]
    return write_document(replace(document, sections=sections), folder / "stability.html", markdown=False)


def stability_document(stabilities: Sequence[RunStability], slide: str | None = None) -> Document:
    """The content of the report without its figures; slide: the requested slide of the attention maps."""
    names = unique_names([stability.path for stability in stabilities])
    slides = len({name for stability in stabilities for name in stability.slides["slide"]})
    trainings = sum(len(stability.trainings) for stability in stabilities)
    return Document(
        kind="Stability of the attention",
        title=names[0] if len(names) == 1 else f"{len(names)} runs",
        answer=_answer(stabilities, names),
        about=f"{format_count(slides, 'recorded slide')}, {format_count(trainings, 'training')}.",
        alarms=[
            f"{name}: {alarm.short}" if len(names) > 1 else alarm.short
            for name, stability in zip(names, stabilities, strict=True)
            for alarm in stability.alarms
        ],
        warnings=_caveats(stabilities, names, slide),
        sections=[Section("Movement and concentration", [_summary(stabilities, names)])],
        reading=READING,
    )


def _answer(stabilities: Sequence[RunStability], names: Sequence[str]) -> str:
    raised = {name: stability.alarms for name, stability in zip(names, stabilities, strict=True) if stability.alarms}
    if not raised:
        return (
            "No alarm: on most recorded slides the attention is neither flat nor on one tile, it does not move at the "
            "end of training, and the seeds agree (if there are several)."
        )
    findings = {name: ", ".join(alarm.name for alarm in alarms) for name, alarms in raised.items()}
    if len(names) == 1:
        return f"Alarm: {findings[names[0]]}."
    quiet = [name for name in names if name not in raised]
    alarms = " ".join(f"Alarm for {name}: {names_of_alarms}." for name, names_of_alarms in findings.items())
    return alarms + f" No alarm for {', '.join(quiet)}." * bool(quiet)


def _caveats(stabilities: Sequence[RunStability], names: Sequence[str], slide: str | None) -> list[str]:
    """Caveats about comparing the runs, and early with late epochs."""
    summaries = [summary_of(stability) for stability in stabilities]
    sentences = []
    if len({tuple(summary["slides"]) for summary in summaries}) > 1:
        sentences.append("The runs did not record the same slides, so their numbers are only roughly comparable.")
    if len({summary["every"] for summary in summaries}) > 1:
        sentences.append("The runs did not record equally often, so their JSDs are not comparable.")
    for name, summary in zip(names, summaries, strict=True):
        recorded, planned, finished = (summary[f"trainings{which}"] for which in ("", "_asked_for", "_finished"))
        if finished < planned:
            sentences.append(f"{name}: {recorded} of {planned} trainings have recordings, {finished} are finished.")
        if slide is not None and slide not in summary["slides"]:
            sentences.append(f"{name}: slide {slide} was not recorded.")
    if any(summary["schedule"] == "cosine" for summary in summaries):
        sentences.append(
            "The cosine schedule lowers the learning rate until nothing moves, so a small late JSD proves little; "
            "use `--set training.schedule=constant` to see the method itself."
        )
    return sentences


def _summary(stabilities: Sequence[RunStability], names: Sequence[str]) -> Table:
    rows: list[Row] = []
    for name, stability in zip(names, stabilities, strict=True):
        summary = summary_of(stability)
        size = f"{format_count(summary['trainings'], 'training')}, {format_count(len(summary['slides']), 'slide')}"
        cells = []
        for number in (summary["metrics"][measure] for measure in MEASURE_TITLES):
            spread = () if number["sd_seeds"] is None else (f"sd {format_small(number['sd_seeds'])}",)
            cells.append(Cell(format_small(number["value"]), spread))
        seeds = [format_small(summary["agreement"][measure]) for measure in ("top1_overlap", "rank_correlation")]
        rows.append([Cell(name, (stability.label, size)), *cells, *seeds])
    return Table(
        ["run", *MEASURE_TITLES.values(), "seed overlap", "seed ranks"],
        rows,
        title="recorded attention, means over slides and seeds; JSD in nats",
        caption="Means over slides and seeds, and the standard deviation (sd) over seeds. Read JSD together with "
        "concentration: flat attention hardly moves.",
        in_terminal=True,
        narrow=frozenset({MEASURE_TITLES["gini"]}),
    )


def _run_sections(stabilities: Sequence[RunStability], single: Sequence[Figures]) -> list[Section]:
    shown: set[str] = set()
    sections, names = [], unique_names([stability.path for stability in stabilities])
    for name, stability, figures in zip(names, stabilities, single, strict=True):
        blocks: list[Block] = [stability.label] if stability.label != name else []
        blocks += [f"{alarm.text[:1].upper()}{alarm.text[1:]} {alarm.advice}" for alarm in stability.alarms]
        blocks += [*_figure_blocks(figures.values(), shown), _slides(stability), _agreement(stability)]
        blocks.append(Folded("Settings", [settings_table(stability.values)]))
        sections.append(Section(name, blocks))
    return sections


def _figure_blocks(figures: Iterable[Figure], shown: set[str]) -> list[Block]:
    """Figures with headings; a repeated caption is left out, and a caption without a figure becomes a paragraph."""
    blocks: list[Block] = []
    for figure in figures:
        if figure.content is None:
            blocks.append(f"{figure.title}: {figure.caption}")
        else:
            blocks.append(Heading(figure.title))
            blocks.append(replace(figure, caption="") if figure.caption in shown else figure)
            shown.add(figure.caption)
    return blocks


def _slides(stability: RunStability) -> Folded:
    """One row per slide, means over trainings; the slides whose attention moves most come first."""
    by_slide = stability.slides.groupby(["slide", "target", "role", "n_tiles"], sort=False)
    means = by_slide[[*MEASURE_TITLES]].mean().assign(trainings=by_slide.size())
    means = means.sort_values("jsd_late", ascending=False, kind="stable").reset_index()
    rows: list[Row] = [
        [
            Cell(row["slide"], (f"{row['target']}, {row['role']}",)),
            str(row["n_tiles"]),
            str(row["trainings"]),
            *(format_small(row[measure]) for measure in MEASURE_TITLES),
        ]
        for row in means.to_dict("records")
    ]
    table = Table(["slide", "tiles", "trainings", *MEASURE_TITLES.values()], rows)
    return folded_table("Slides", table, MOST_ROWS, "stability_slides.csv")


def _agreement(stability: RunStability) -> Block:
    """One row per fold and slide: the similarity over all pairs of seeds; the least similar come first."""
    if stability.agreement.empty:
        return "There is one seed per fold, so agreement between seeds is unknown; train more with `--seeds 3`."
    groups = [part for _, part in stability.agreement.groupby(["fold", "slide"], sort=False)]
    groups.sort(key=lambda part: float(part["top1_overlap"].mean()))
    rows: list[Row] = []
    for part in groups:
        cells = [
            Cell(
                format_small(values.mean()),
                (f"{format_small(values.min())} to {format_small(values.max())}",),
            )
            for values in (part[measure] for measure in AGREEMENT_TITLES)
        ]
        rows.append(
            [Cell(part["slide"].iloc[0], (stability.fold_names[int(part["fold"].iloc[0])],)), str(len(part)), *cells]
        )
    caption = "Mean over pairs of seeds, with the smallest and largest value."
    table = Table(["slide", "pairs of seeds", *AGREEMENT_TITLES.values()], rows, caption=caption)
    return folded_table("Agreement between seeds", table, MOST_ROWS, "stability_agreement.csv")
