"""Histograms of scores, and of the attention that each normalizer computes from the same scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from asmil.evaluation.figures import COLORS, STYLE, plain_text, svg_text
from asmil.evaluation.stability.analysis import RunStability
from asmil.evaluation.stability.figures import make_logarithmic
from asmil.evaluation.stability.measures import effective_tiles, top_mass
from asmil.reporting import Figure
from asmil.reporting.formats import format_share
from asmil.tasks.checked_arrays import Floats

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
    return Figure(_draw(slides), title, caption)


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


def _draw(slides: Sequence[ScoredSlide]) -> str:
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
