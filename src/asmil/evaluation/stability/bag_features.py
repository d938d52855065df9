"""A t-SNE of bag features during training, which shows how early the classes separate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from asmil.evaluation.stability.analysis import RunStability, TrainingStability
from asmil.evaluation.stability.figures import default_epochs, nearest_recording
from asmil.reporting import Figure
from asmil.reporting.drawing import COLORS, TWO_COLUMNS, new_figure, plain_text, svg_text
from asmil.runs.attention_file import AttentionRecord
from asmil.tables.arrays import Floats

FEWEST_SLIDES = 10
MOST_POINTS = 600
MARKERS = {"train": "o", "val": "^"}
TITLE = "Bag features"


def bag_feature_figure(stability: RunStability, epochs: Sequence[float] | None = None) -> Figure:
    """One t-SNE for all shown epochs of the first training that recorded enough slides, one panel per epoch."""
    training = max(stability.trainings, key=lambda training: min(len(training.record.slides), FEWEST_SLIDES))
    record, n_slides = training.record, len(training.record.slides)
    if n_slides < FEWEST_SLIDES:
        few = f"Not drawn: this needs {FEWEST_SLIDES} recorded slides, and there are {n_slides}."
        more = "Record more with `--set record.attention=all` (or a number of slides per class)."
        return Figure(None, TITLE, f"{few} {more}")
    recordings = _recordings(training, epochs)
    if not np.isfinite(record.embedding[recordings]).all():
        return Figure(None, TITLE, "Not drawn: some bag features are not finite.")
    slides = drawn_slides(record, MOST_POINTS // len(recordings))
    caption = (
        f"Training: {stability.fold_names[training.fold]}, seed {training.seed}; one point per slide; one t-SNE for "
        "all panels, whose distances mean little. The silhouette of the classes is computed on the bag features "
        "themselves; it ranges from -1 to 1 and is above 0 if the classes are separate."
    )
    if len(slides) < n_slides:
        caption += f" {len(slides)} of {n_slides} slides are drawn; the silhouette uses all slides."
    return Figure(_draw(training, recordings, slides), TITLE, caption)


def silhouettes(record: AttentionRecord, recording: int) -> dict[str, float]:
    """The silhouette of the classes in the bag features, by role; NaN if there are too few classes or slides."""
    from sklearn.metrics import silhouette_score

    values = {}
    for role in sorted(set(record.roles)):
        chosen = np.array([slide_role == role for slide_role in record.roles])
        features = record.embedding[recording][chosen].astype(np.float64)
        targets = record.targets[chosen]
        known = 2 <= len(np.unique(targets)) < len(targets) and np.isfinite(features).all()
        values[role] = float(silhouette_score(features, targets)) if known else float("nan")
    return values


def joint_layout(features: npt.NDArray[np.floating]) -> Floats:
    """P x S x 2 positions of P x S x E features, from one t-SNE of all P S points."""
    from sklearn.manifold import TSNE

    points = features.reshape(-1, features.shape[-1]).astype(np.float64)
    if not np.ptp(points, axis=0).any():
        return np.zeros((*features.shape[:2], 2))
    if points.shape[1] == 1:
        points = np.c_[points, np.zeros(len(points))]
    perplexity = min(30.0, (len(points) - 1) / 3)
    layout = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1).fit_transform(points)
    return np.asarray(layout, dtype=np.float64).reshape(*features.shape[:2], 2)


def _recordings(training: TrainingStability, epochs: Sequence[float] | None) -> list[int]:
    wanted = default_epochs([training]) if epochs is None else epochs
    nearest = [nearest_recording(training.record.epochs, epoch) for epoch in wanted]
    chosen = {recording for recording in nearest if recording is not None} or {len(training.record.epochs) - 1}
    return sorted(chosen)


def drawn_slides(record: AttentionRecord, most: int) -> npt.NDArray[np.intp]:
    """All slides, or an evenly spaced selection from each class."""
    if len(record.slides) <= most:
        return np.arange(len(record.slides))
    by_class = np.argsort(record.targets, kind="stable")
    return np.sort(by_class[np.linspace(0, len(by_class) - 1, most).astype(np.intp)])


def _draw(training: TrainingStability, recordings: Sequence[int], slides: npt.NDArray[np.intp]) -> str:
    record = training.record
    positions = joint_layout(record.embedding[recordings][:, slides])
    span = 1.16 * np.ptp(positions, axis=1).max(axis=0) + 1e-9
    n_columns = min(6, len(recordings))
    n_rows = -(-len(recordings) // n_columns)
    with new_figure(TWO_COLUMNS, 2.5 * n_rows + 0.4) as figure:
        panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
        for axes in panels[len(recordings) :]:
            axes.set_axis_off()
        for axes, recording, points in zip(panels, recordings, positions, strict=False):
            _draw_points(axes, record, slides, points)
            _frame(axes, points, span)
            kept = ", kept" if recording == training.kept else ""
            scores = ", ".join(f"{role} {_signed(value)}" for role, value in silhouettes(record, recording).items())
            title = f"epoch {record.epochs[recording]:.4g}{kept}\nsilhouette\n{scores}"
            axes.set_title(title, fontsize=8.5, fontweight="normal")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(handles)))
        return svg_text(figure)


def _draw_points(axes: Axes, record: AttentionRecord, slides: npt.NDArray[np.intp], points: Floats) -> None:
    roles = np.array(record.roles)[slides]
    for target, name in enumerate(record.classes):
        for role in sorted(set(record.roles)):
            chosen = (record.targets[slides] == target) & (roles == role)
            if chosen.any():
                axes.scatter(
                    points[chosen, 0],
                    points[chosen, 1],
                    s=14,
                    marker=MARKERS.get(role, "s"),
                    color=COLORS[target % len(COLORS)],
                    alpha=0.75,
                    linewidth=0,
                    label=plain_text(f"{name}, {role}"),
                )


def _frame(axes: Axes, points: Floats, span: Floats) -> None:
    """Center the points in a panel that is `span` wide and high."""
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    (left, bottom), (right, top) = middle - span / 2, middle + span / 2
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])


def _signed(value: float) -> str:
    return "–" if np.isnan(value) else f"{round(value, 2) + 0.0:.2f}"
