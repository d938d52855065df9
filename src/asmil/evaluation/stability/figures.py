"""Figures of recorded attention: curves over training, and histograms of scores and attention.

Also the helpers that all stability figures share: names of runs, and the choice of slide, training and epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from asmil.attention.measures import effective_tiles, top_mass
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.stability.analysis import RunStability, TrainingStability
from asmil.reporting import Figure
from asmil.reporting.drawing import COLORS, EDGE, TWO_COLUMNS, make_logarithmic, new_figure, plain_text, svg_text
from asmil.reporting.formats import format_share
from asmil.runs.described import schedule_sentence
from asmil.tables.arrays import Floats

PANELS = {
    "jsd_previous": ("Movement", "JSD to the previous recording (nats)"),
    "effective_share": ("Concentration", "effective share of tiles, exp(H) / N"),
    "ce": ("Fit", "cross-entropy (nats)"),
}
LINE_STYLES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
LOGARITHMIC_FROM = 30.0
"""An axis is logarithmic if the largest value is more than this many times the smallest."""
MAX_POINTS = 400
"""Lines with more recordings are smoothed by averaging neighbors."""
LATER_EPOCHS = 4
"""How many epochs after the first are shown by default."""
NORMALIZERS: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("softmax", "softmax", {}),
    ("NSF", "nsf", {}),
    ("standardized NSF", "standardized_nsf", {}),
    ("sparsemax", "sparsemax", {}),
    ("entmax 1.5", "entmax", {"alpha": 1.5}),
)
SMALLEST_DRAWN = 1e-5
"""Of attention x N; smaller values above 0 are drawn at the left end."""
BINS = 60
LONGEST_LINE = 36
"""Characters of a title."""


def course_figures(stabilities: Sequence[RunStability]) -> dict[str, Figure]:
    """JSD, effective share and cross-entropy over epochs, one color per run; cross-entropy only for classification."""
    # survival and regression have no cross-entropy
    classifies = any(stability.times["ce"].notna().any() for stability in stabilities)
    return {
        f"course_{column}": Figure(_draw_courses(stabilities, column, *titles), titles[0])
        for column, titles in PANELS.items()
        if column != "ce" or classifies
    }


def course_caption(stabilities: Sequence[RunStability]) -> str:
    """How to read the curves, and the learning rates of the runs."""
    lines = "Lines are means over the recorded slides."
    if any(len(stability.trainings) > 1 for stability in stabilities):
        lines = "Thin lines are single trainings (means over slides), thick lines the mean over trainings."
    schedules: dict[str, list[str]] = {}
    for name, stability in zip(legend_names(stabilities), stabilities, strict=True):
        schedules.setdefault(schedule_sentence(stability.settings), []).append(name)
    rates = [
        f"Learning rate{' of ' + ', '.join(runs) if len(schedules) > 1 else ''}: {schedule}"
        for schedule, runs in schedules.items()
    ]
    return (
        f"{lines} Rings mark the epochs that were kept. Read movement together with concentration: flat attention "
        f"(share near 1) hardly moves; it is stable but useless. {' '.join(rates)}"
    )


def _draw_courses(stabilities: Sequence[RunStability], column: str, title: str, label: str) -> str:
    with new_figure(4.4, 3.1 + 0.2 * len(stabilities)) as figure:
        axes, drawn = figure.add_subplot(), []
        for number, (name, run) in enumerate(zip(legend_names(stabilities), stabilities, strict=True)):
            look = {"color": COLORS[number % len(COLORS)], "linestyle": LINE_STYLES[number // len(COLORS) % 3]}
            drawn.append(_draw_run(axes, run, column, look, plain_text(name)))
        axes.set(title=title, xlabel="epoch", ylabel=label)
        _scale_values(axes, np.concatenate(drawn), share=column == "effective_share")
        _scale_epochs(axes)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left")
        return svg_text(figure)


def _draw_run(axes: Axes, stability: RunStability, column: str, look: dict[str, Any], name: str) -> Floats:
    """Draw the run; return the values of its mean line."""
    by_training = stability.times.groupby(["fold", "seed", "epoch"])[column].mean()
    if len(stability.trainings) > 1:
        for training in stability.trainings:
            course = _thinned(by_training.loc[training.fold, training.seed].dropna())
            axes.plot(course.index, course, **look, linewidth=0.7, alpha=0.35)
    mean = _thinned(by_training.groupby("epoch").mean().dropna())
    marker = "o" if len(mean) == 1 else ""
    axes.plot(mean.index, mean, **look, linewidth=1.9, marker=marker, markersize=4, label=name)
    for training in stability.trainings:
        epoch = float(training.record.epochs[training.kept])
        value = by_training.get((training.fold, training.seed, epoch), np.nan)
        axes.plot(epoch, value, "o", color=look["color"], markerfacecolor="white", markersize=4)
    return np.asarray(mean, dtype=np.float64)


def _thinned(course: pd.Series[float]) -> pd.Series[float]:
    size = -(-len(course) // MAX_POINTS)
    if size <= 1:
        return course
    groups = np.arange(len(course)) // size
    epochs = pd.Series(course.index.to_numpy(dtype=np.float64)).groupby(groups).mean()
    return pd.Series(course.to_numpy()).groupby(groups).mean().set_axis(epochs)


def _scale_values(axes: Axes, values: Floats, share: bool) -> None:
    positive = values[values > 0]
    if not len(values):
        axes.text(0.5, 0.5, "one recording only:\nno movement to show", ha="center", transform=axes.transAxes)
        axes.set_yticks([])
    elif len(positive) and positive.max() / positive.min() > LOGARITHMIC_FROM:
        make_logarithmic(axes, "y")
    else:
        axes.set_ylim(bottom=0)
    if share:
        axes.set_ylim(top=1.05)


def _scale_epochs(axes: Axes) -> None:
    low, high = axes.get_xlim()
    if high - low < 1:
        axes.set_xlim((low + high) / 2 - 0.5, (low + high) / 2 + 0.5)
    elif high - low > 2:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def histogram_figure(stability: RunStability) -> Figure:
    """One slide per class, from the first training that kept scores."""
    slides = scored_slides(stability)
    title = "Scores and attention"
    if not slides:
        return Figure(None, title, "No scores yet: they are saved when a training ends.")
    caption = (
        "Left: the raw scores of one slide per class from the selected checkpoint, for all heads, tokens or branches. "
        "Right: the attention × N that each normalizer computes from these scores; 1 is uniform, and weights below "
        f"{SMALLEST_DRAWN:f} are drawn at the left end. The model was trained with one of these normalizers."
    )
    with new_figure(TWO_COLUMNS, 2.6 * len(slides)) as figure:
        grid = figure.subplots(len(slides), 2, squeeze=False, width_ratios=(1, 1.5))
        for (left, right), (name, scores) in zip(grid, slides.items(), strict=True):
            _draw_scores(left, name, scores)
            _draw_attention(right, scores)
        grid[-1, 0].set_xlabel("score")
        grid[-1, 1].set_xlabel("attention × N")
        return Figure(svg_text(figure), title, caption)


def scored_slides(stability: RunStability) -> dict[str, Floats]:
    """A x N raw scores of the slides whose scores were saved, by their titles; masked tiles are left out.

    They come from the selected checkpoint of the first training that has any.
    """
    for training in stability.trainings:
        record, scored = training.record, {}
        for slide, name in enumerate(record.slides):
            scores = record.scores(slide)
            if scores is not None:
                values = np.asarray(scores, dtype=np.float64)
                title = f"{name} ({record.classes[record.targets[slide]]}, {record.n_tiles[slide]} tiles)"
                scored[title] = values[:, np.isfinite(values).all(axis=0)]
        if scored:
            return scored
    return {}


def _draw_scores(axes: Axes, name: str, scores: Floats) -> None:
    counts, edges = np.histogram(scores, bins=BINS)
    axes.stairs(counts / counts.sum(), edges, color=COLORS[5], fill=True, alpha=0.7)
    axes.axvline(0, color=EDGE, linewidth=0.8, linestyle=":")
    axes.set(title=plain_text("\n".join(wrap(name, LONGEST_LINE))), ylabel="share of tiles", axisbelow=True)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    make_logarithmic(axes, "y")


def _draw_attention(axes: Axes, scores: Floats) -> None:
    n_tiles = scores.shape[1]
    edges = np.geomspace(SMALLEST_DRAWN, max(2.0, n_tiles), BINS + 1)
    for (title, name, options), color in zip(NORMALIZERS, COLORS, strict=False):
        attention = normalized(scores, name, options)
        weights = attention.ravel() * n_tiles
        counts, _ = np.histogram(weights[weights > 0].clip(*edges[[0, -1]]), bins=edges)
        label = f"{title}: {describe(attention)}"
        axes.stairs(counts / weights.size, edges, color=color, linewidth=1.4, label=label)
    axes.axvline(1, color=EDGE, linewidth=0.8, linestyle=":")
    axes.set(title="attention under each normalizer", axisbelow=True)
    make_logarithmic(axes, "x")
    make_logarithmic(axes, "y")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), borderaxespad=0)


def describe(attention: Floats) -> str:
    """Effective share, mass of the top 1 % of tiles, share of zeros; means over rows."""
    share = float(np.mean(effective_tiles(attention))) / attention.shape[1]
    words = f"{format_share(share)} effective,\ntop 1 % holds {format_share(float(np.mean(top_mass(attention))))}"
    zeros = float(np.mean(attention == 0))
    return words + (f", {format_share(zeros)} zero" if zeros else "")


def normalized(scores: Floats, name: str, options: dict[str, float]) -> Floats:
    """The attention that a normalizer computes from A x N scores."""
    import torch

    from asmil.attention import build_normalizer

    attention: Floats = build_normalizer(name, **options)(torch.from_numpy(scores)).numpy()
    return attention


def legend_names(stabilities: Sequence[RunStability]) -> list[str]:
    """The name of each run in a figure: its label, with the name of the folder if labels repeat."""
    labels = [stability.label for stability in stabilities]
    return [
        label if labels.count(label) == 1 else f"{stability.name}: {label}"
        for stability, label in zip(stabilities, labels, strict=True)
    ]


def choose_slide(stabilities: Sequence[RunStability], wanted: str | None = None) -> str:
    """The wanted slide, or the slide of the last class that most runs recorded."""
    records = [training.record for stability in stabilities for training in stability.trainings]
    last = max(int(record.targets.max()) for record in records)
    of_last_class = [
        slide
        for record in records
        for slide, target in zip(record.slides, record.targets, strict=True)
        if target == last
    ]
    runs = [
        {slide for training in stability.trainings for slide in training.record.slides} for stability in stabilities
    ]
    known = dict.fromkeys(slide for record in records for slide in record.slides)
    if wanted is None:
        return max(of_last_class, key=lambda slide: sum(slide in run for run in runs))
    if wanted not in known:
        raise AsmilError(f"--slide {wanted}: the slide was not recorded; {did_you_mean(wanted, known)}")
    return wanted


def training_of(stability: RunStability, slide: str) -> TrainingStability | None:
    """The first training of a run that recorded the slide."""
    return next((training for training in stability.trainings if slide in training.record.slides), None)


def default_epochs(trainings: Sequence[TrainingStability]) -> list[float]:
    """Epoch 0, epoch 1, and a few more, evenly spaced up to the end of the longest training."""
    end = max(float(training.record.epochs[-1]) for training in trainings)
    later = np.linspace(min(1.0, end), end, LATER_EPOCHS + 1)
    rounded = np.round(later) if end > LATER_EPOCHS else later
    return list(dict.fromkeys([0.0, *map(float, rounded)]))


def nearest_recording(epochs: npt.NDArray[np.float64], wanted: float) -> int | None:
    """The recording nearest to an epoch; None if there is none within reach."""
    nearest = int(np.abs(epochs - wanted).argmin())
    spacing = float(np.median(np.diff(epochs))) if len(epochs) > 1 else 1.0
    reach = max(1.0, spacing) / 2
    return nearest if abs(epochs[nearest] - wanted) <= reach else None
