"""Figures of recorded attention: its course during training, and histograms of scores and attention.

Also what all stability figures share: names of runs, and the choice of slide, training and epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.figures import COLORS, STYLE, plain_text, svg_text
from asmil.evaluation.run import setting
from asmil.evaluation.stability.analysis import RunStability, TrainingStability
from asmil.evaluation.stability.measures import effective_tiles, top_mass
from asmil.reporting import Figure
from asmil.reporting.formats import format_share, format_significant
from asmil.tasks.checked_arrays import Floats

LineStyle = Literal["-", "--", ":"]

PANELS = {
    "jsd_previous": ("movement", "JSD to the previous recording (nats)"),
    "ce": ("fit", "cross-entropy (nats)"),
    "effective_share": ("concentration", "effective share of tiles, exp(H) / N"),
}
LEGEND_COLUMNS = 3
LINE_STYLES: tuple[LineStyle, ...] = ("-", "--", ":")
LOGARITHMIC_FROM = 30.0
"""An axis is logarithmic if the largest value is more than this many times the smallest."""
MAX_POINTS = 400
"""Lines with more recordings are drawn through means of neighbors."""
LATER_EPOCHS = 4
"""How many epochs after the first are shown by default."""
NARROW_DECADES = 2.5
"""A logarithmic axis that spans less also gets ticks at 2 and 5."""
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


def course_figure(stabilities: Sequence[RunStability]) -> Figure:
    """JSD, cross-entropy and effective share over epochs, one color per run."""
    names = legend_names(stabilities)
    lines = "Lines are means over the recorded slides."
    if any(len(stability.trainings) > 1 for stability in stabilities):
        lines = "Thin lines are single trainings (means over slides), thick lines the mean over trainings."
    schedules: dict[str, list[str]] = {}
    for name, stability in zip(names, stabilities, strict=True):
        schedules.setdefault(schedule_sentence(stability.config), []).append(name)
    of_all = len(schedules) == 1
    rates = " ".join(
        f"Learning rate: {schedule}" if of_all else f"Learning rate of {', '.join(runs)}: {schedule}"
        for schedule, runs in schedules.items()
    )
    caption = (
        f"{lines} Rings mark the epochs that were kept. Read the first panel together with the last: a flat attention "
        "(share near 1) hardly moves; it is stable but useless. "
        f"{rates}"
    )
    return Figure(_draw_courses(stabilities, names), "Attention during training", caption)


def schedule_sentence(config: Mapping[str, Any]) -> str:
    """The learning-rate schedule of a run, and what it means for the movement at the end."""
    schedule, lr = setting(config, "training", "schedule"), setting(config, "training", "lr")
    if schedule is None or lr is None:
        return "unknown."
    drops = setting(config, "training", "lr_drops") or []
    factor = setting(config, "training", "lr_drop_factor")
    fall = f", times {factor} after epoch {', '.join(map(str, drops))}" if drops else ""
    if schedule == "cosine":
        return (
            f"cosine from {lr:g} to {setting(config, 'training', 'lr_min') or 0:g}{fall}; the steps become so small "
            "that any attention stops moving, so little movement at the end proves little."
        )
    meaning = "any attention moves less after a drop" if drops else "the step size stays the same"
    return f"{schedule}, {lr:g}{fall}; {meaning}."


def _draw_courses(stabilities: Sequence[RunStability], names: Sequence[str]) -> str:
    looks = [_look(number) for number in range(len(stabilities))]
    with rc_context(STYLE):
        figure = Drawing(figsize=(11.2, 3.2 + 0.22 * -(-len(stabilities) // LEGEND_COLUMNS)), layout="constrained")
        # survival and regression have no cross-entropy
        classifies = any(stability.times["ce"].notna().any() for stability in stabilities)
        panels = {column: words for column, words in PANELS.items() if column != "ce" or classifies}
        for place, (column, (title, label)) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), place)
            drawn = [_draw_run(axes, run, column, *look) for run, look in zip(stabilities, looks, strict=True)]
            axes.set(title=title, xlabel="epoch", ylabel=label)
            _scale_values(axes, np.concatenate(drawn), share=column == "effective_share")
            _scale_epochs(axes)
        handles = [
            Line2D([], [], color=color, linestyle=style, linewidth=1.9, label=plain_text(name))
            for name, (color, style) in zip(names, looks, strict=True)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(LEGEND_COLUMNS, len(handles)))
        return svg_text(figure)


def _look(number: int) -> tuple[str, LineStyle]:
    return COLORS[number % len(COLORS)], LINE_STYLES[number // len(COLORS) % len(LINE_STYLES)]


def _draw_run(axes: Axes, stability: RunStability, column: str, color: str, style: LineStyle) -> Floats:
    """Draw the run; return the values of its mean line."""
    times = stability.times
    by_training = times.groupby(["fold", "seed", "epoch"])[column].mean()
    if len(stability.trainings) > 1:
        for training in stability.trainings:
            one = _thinned(by_training.loc[training.fold, training.seed].dropna())
            axes.plot(one.index, one, color=color, linestyle=style, linewidth=0.7, alpha=0.35)
    mean = _thinned(by_training.groupby("epoch").mean().dropna())
    marker = "o" if len(mean) == 1 else ""
    axes.plot(mean.index, mean, color=color, linestyle=style, linewidth=1.9, marker=marker, markersize=4)
    for training in stability.trainings:
        epoch = float(training.record.epochs[training.kept])
        value = by_training.get((training.fold, training.seed, epoch), np.nan)
        axes.plot(epoch, value, "o", color=color, markerfacecolor="white", markersize=4)
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


@dataclass(frozen=True)
class ScoredSlide:
    """A slide with the raw scores of its tiles from the kept model, A x N."""

    name: str
    scores: Floats


def histogram_figure(stability: RunStability) -> Figure:
    """One slide per class, from the first training that kept scores."""
    slides = scored_slides(stability)
    title = "Scores and attention"
    if not slides:
        return Figure(None, title, "No scores yet: they are kept when a training ends.")
    caption = (
        "Left: the raw scores of one slide per class from the kept model, all rows (heads, tokens, branches) together. "
        "Right: the attention × N that each normalizer computes from these scores; 1 is uniform. Weights below "
        f"{SMALLEST_DRAWN:g} are drawn at the left end, zeros are counted in the legend. Normalizers keep the order of "
        "the tiles (sparse ones up to ties at 0), so they differ in concentration, not in ranking. The model was "
        "trained with one of them; training with another would give other scores."
    )
    return Figure(_draw_histograms(slides), title, caption)


def scored_slides(stability: RunStability) -> list[ScoredSlide]:
    """The slides whose scores were kept, from the first training that has any; masked tiles are left out."""
    for training in stability.trainings:
        record, found = training.record, []
        for slide, name in enumerate(record.slides):
            scores = record.scores(slide)
            if scores is not None:
                values = np.asarray(scores, dtype=np.float64)
                seen = values[:, np.isfinite(values).all(axis=0)]
                text = f"{name} ({record.classes[record.targets[slide]]}, {record.n_tiles[slide]} tiles)"
                found.append(ScoredSlide(text, seen))
        if found:
            return found
    return []


def _draw_histograms(slides: Sequence[ScoredSlide]) -> str:
    with rc_context(STYLE):
        figure = Drawing(figsize=(11.2, 2.6 * len(slides)), layout="constrained")
        grid = figure.subplots(len(slides), 2, squeeze=False, width_ratios=(1, 1.5))
        for (left, right), slide in zip(grid, slides, strict=True):
            _draw_scores(left, slide)
            _draw_attention(right, slide)
        grid[-1, 0].set_xlabel("score")
        grid[-1, 1].set_xlabel("attention × N")
        return svg_text(figure)


def _draw_scores(axes: Axes, slide: ScoredSlide) -> None:
    counts, edges = np.histogram(slide.scores, bins=BINS)
    axes.stairs(counts / counts.sum(), edges, color=COLORS[5], fill=True, alpha=0.7)
    axes.axvline(0, color="#8a94a0", linewidth=0.8, linestyle=":")
    axes.set(title=plain_text(slide.name), ylabel="share of tiles", axisbelow=True)
    make_logarithmic(axes, "y")


def _draw_attention(axes: Axes, slide: ScoredSlide) -> None:
    n_tiles = slide.scores.shape[1]
    edges = np.geomspace(SMALLEST_DRAWN, max(2.0, n_tiles), BINS + 1)
    for (title, name, options), color in zip(NORMALIZERS, COLORS, strict=False):
        attention = normalized(slide.scores, name, options)
        weights = attention.ravel() * n_tiles
        counts, _ = np.histogram(weights[weights > 0].clip(*edges[[0, -1]]), bins=edges)
        label = f"{title}: {describe(attention)}"
        axes.stairs(counts / weights.size, edges, color=color, linewidth=1.4, label=label)
    axes.axvline(1, color="#8a94a0", linewidth=0.8, linestyle=":")
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

    normalizer = build_normalizer(name, **options)
    attention: Floats = normalizer(torch.from_numpy(scores)).numpy()
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
    counts: dict[str, int] = {}
    for stability in stabilities:
        for slide in _recorded_slides(stability):
            counts[slide] = counts.get(slide, 0) + 1
    if wanted is not None:
        if wanted not in counts:
            raise AsmilError(f"--slide {wanted}: the slide was not recorded; {did_you_mean(wanted, counts)}")
        return wanted
    return max(_of_last_class(stabilities), key=lambda slide: counts[slide])


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


def _recorded_slides(stability: RunStability) -> list[str]:
    return list(dict.fromkeys(slide for training in stability.trainings for slide in training.record.slides))


def _of_last_class(stabilities: Sequence[RunStability]) -> list[str]:
    last = max(int(training.record.targets.max()) for stability in stabilities for training in stability.trainings)
    slides = [
        slide
        for stability in stabilities
        for training in stability.trainings
        for slide, target in zip(training.record.slides, training.record.targets, strict=True)
        if target == last
    ]
    return list(dict.fromkeys(slides))


def make_logarithmic(axes: Axes, which: str) -> None:
    """Make the x or y axis logarithmic; call it after drawing."""
    axes.set(**{f"{which}scale": "log"})
    axis: Axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    narrow = math.log10(high / low) < NARROW_DECADES
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=12 if narrow else 7))
    axis.set_minor_locator(NullLocator())
    if narrow:
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_significant(value)))
