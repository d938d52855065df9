"""The tables of the stability page: runs, slides, and pairs of seeds."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from asmil.evaluation.page_parts import html_table, tag
from asmil.evaluation.stability.analysis import RunStability
from asmil.evaluation.stability.tables import run_names, summary_of
from asmil.reporting.formats import format_count, format_significant

MEASURE_TITLES = {
    "jsd_mean": "JSD mean",
    "jsd_late": "JSD late",
    "jsd_relative": "JSD relative",
    "effective_share": "effective share",
    "peak_n": "peak\u00a0×\u00a0N",
    "gini": "Gini",
    "top1_mass": "top-1 % mass",
}
AGREEMENT_TITLES = {"rank_correlation": "rank correlation", "top1_overlap": "top-1 % overlap", "jsd": "JSD"}
MOST_ROWS = 100


def summary_table(stabilities: Sequence[RunStability]) -> str:
    """A row a run: means over slides and seeds, with the standard deviation over seeds."""
    rows = []
    for name, stability in zip(run_names(stabilities), stabilities, strict=True):
        summary = summary_of(stability)
        size = f"{format_count(summary['trainings'], 'training')}, {format_count(len(summary['slides']), 'slide')}"
        about = f"{escape(name)}<small>{escape(stability.label)}</small><small>{size}</small>"
        cells = [tag("th", about, scope="row")]
        for measure in MEASURE_TITLES:
            found = summary["measures"][measure]
            spread = "" if found["sd_seeds"] is None else f"<small>sd {format_significant(found['sd_seeds'])}</small>"
            cells.append(tag("td", f"<b>{format_significant(found['value'])}</b>{spread}"))
        alike = summary["agreement"]
        ranks = f"<small>ranks {format_significant(alike['rank_correlation'])}</small>" if alike["pairs"] else ""
        cells.append(tag("td", f"<b>{format_significant(alike['top1_overlap'])}</b>{ranks}"))
        rows.append("".join(cells))
    return html_table(["run", *MEASURE_TITLES.values(), "seeds agree"], rows, css="measures")


def slide_table(stability: RunStability) -> str:
    """A row a slide, means over trainings; those that move most first."""
    by_slide = stability.slides.groupby(["slide", "target", "role", "n_tiles"], sort=False)
    found = by_slide[[*MEASURE_TITLES]].mean().assign(trainings=by_slide.size())
    found = found.sort_values("jsd_late", ascending=False, kind="stable").reset_index()
    rows = []
    for row in found.head(MOST_ROWS).to_dict("records"):
        about = f"{escape(row['slide'])}<small>{escape(row['target'])}, {escape(row['role'])}</small>"
        cells = [tag("th", about, scope="row"), tag("td", str(row["n_tiles"])), tag("td", str(row["trainings"]))]
        rows.append("".join(cells + [tag("td", format_significant(row[measure])) for measure in MEASURE_TITLES]))
    table = html_table(["slide", "tiles", "trainings", *MEASURE_TITLES.values()], rows)
    return _folded(f"Slides ({len(found)})", table, len(found), "stability_slides.csv")


def agreement_table(stability: RunStability) -> str:
    """A row a slide: how alike the attentions of two seeds are, over all pairs; the least alike first."""
    if stability.agreement.empty:
        return "<p>One seed a fold: whether seeds agree cannot be told; <code>--seeds 3</code> trains more.</p>"
    groups = [part for _, part in stability.agreement.groupby(["fold", "slide"], sort=False)]
    groups.sort(key=lambda part: float(part["top1_overlap"].mean()))
    rows = []
    for part in groups[:MOST_ROWS]:
        about = f"{escape(part['slide'].iloc[0])}<small>fold {part['fold'].iloc[0]}</small>"
        cells = [tag("th", about, scope="row"), tag("td", str(len(part)))]
        for measure in AGREEMENT_TITLES:
            values = part[measure]
            ends = f"{format_significant(values.min())} to {format_significant(values.max())}"
            cells.append(tag("td", f"{format_significant(values.mean())}<small>{ends}</small>"))
        rows.append("".join(cells))
    table = html_table(["slide", "pairs of seeds", *AGREEMENT_TITLES.values()], rows)
    return _folded(f"Agreement between seeds ({len(groups)})", table, len(groups), "stability_agreement.csv")


def _folded(title: str, table: str, n_rows: int, file: str) -> str:
    rest = f"<p>The other {n_rows - MOST_ROWS} are in {file}.</p>" if n_rows > MOST_ROWS else ""
    return f"<details><summary>{title}</summary>{table}{rest}</details>"
