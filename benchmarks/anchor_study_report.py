"""The numbers and tables of the anchor study: pure functions on tables, and the figure of its courses.

Every worker of the study imports this, so scipy and matplotlib are imported where they are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.evaluation.stability.analysis import AGREEMENT
from asmil.tasks import metrics
from markdown_table import markdown_table

ROLES = ("train", "val")
BASES = ("abmil", "clam_sb", "dsmil", "transmil", "asmil (paper)", "asmil (recommended)")
REFERENCE = "none"
TERMS = (REFERENCE, "anchor", "anchor + nsf")
PER_SLIDE = {
    "jsd_mean": "JSD, all epochs",
    "jsd_late": "JSD, late",
    "jsd_relative": "late JSD / (ln N - H)",
    "effective_share": "effective share",
    "peak_n": "peak x N",
    "gini": "Gini",
    "top1_mass": "top 1 % mass",
}
ATTENTION = {**PER_SLIDE, "ce_end": "CE at the end"}
FORMATS = {"peak_n": ".1f", "jsd_mean": ".2g", "jsd_late": ".2g", "jsd_relative": ".2g", "jsd": ".2g", "seconds": ".0f"}
"""Of a measure; all others have three decimals."""
COURSES = {
    "jsd_previous": "JSD to the epoch before (nats)",
    "ce": "cross-entropy (nats)",
    "effective_share": "effective share of tiles",
}
PAPER_GAINS: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    ("abmil", "anchor"): {"f1": (0.037, 0.051, 0.071), "auc": (0.018, 0.018, 0.011)},
    ("abmil", "anchor + nsf"): {"f1": (0.039, 0.052, 0.073), "auc": (0.022, 0.030, 0.021)},
    ("clam_sb", "anchor"): {"f1": (0.012, 0.024, 0.047), "auc": (0.010, 0.041, 0.003)},
    ("clam_sb", "anchor + nsf"): {"f1": (0.023, 0.027, 0.048), "auc": (0.012, 0.040, 0.024)},
    ("transmil", "anchor"): {"f1": (0.009, 0.023, 0.016), "auc": (0.004, 0.032, 0.012)},
    ("transmil", "anchor + nsf"): {"f1": (0.011, 0.026, 0.041), "auc": (0.011, 0.037, 0.042)},
    ("dsmil", "anchor"): {"f1": (0.000, 0.012, 0.032), "auc": (0.008, 0.015, 0.021)},
    ("dsmil", "anchor + nsf"): {"f1": (-0.001, 0.027, 0.035), "auc": (0.019, 0.019, 0.033)},
    ("asmil (paper)", "anchor"): {"f1": (0.031,), "auc": (0.027,)},
    ("asmil (paper)", "anchor + nsf"): {"f1": (0.053,), "auc": (0.046,)},
}
"""Gains over the method without an anchor, from the cells of the paper's tables: CAMELYON-16, CAMELYON-17 and BRACS;
ASMIL itself (with token drop): BRACS alone."""
Floats = npt.NDArray[np.floating]


def slide_scores(target: npt.NDArray[np.integer], probabilities: Floats) -> dict[str, float]:
    predicted = metrics.predicted_classes(probabilities)
    return {
        "f1": metrics.macro_f1(target, predicted, probabilities.shape[1]),
        "auc": metrics.macro_auc(target, probabilities),
    }


def ranking_auc(positive: npt.NDArray[np.bool_], values: Floats) -> float:
    """The probability that a positive tile has the higher value; NaN where all tiles are of one kind."""
    both = np.stack([-values, values], axis=1)
    return float(metrics.auc_per_class(positive.astype(np.int64), both)[1])


def attention_numbers(times: pd.DataFrame, slides: pd.DataFrame) -> dict[str, float]:
    """`role_measure`: means over the recorded slides of a training; `ce_end` is that of the last recording."""
    numbers: dict[str, float] = {}
    for role in ROLES:
        part = slides[slides["role"] == role]
        numbers |= {f"{role}_{name}": float(part[name].mean()) for name in PER_SLIDE}
        last = times[(times["role"] == role) & (times["epoch"] == times["epoch"].max())]
        numbers[f"{role}_ce_end"] = float(last["ce"].mean())
    return numbers


def course_of(times: pd.DataFrame) -> dict[str, Any]:
    """By role, the means over recorded slides at every recorded epoch."""
    by_role = times.groupby(["role", "epoch"])[list(COURSES)].mean()
    course: dict[str, Any] = {"epoch": [float(epoch) for epoch in sorted(times["epoch"].unique())]}
    for role in times["role"].unique():
        course[str(role)] = {name: _rounded(by_role.loc[role][name]) for name in COURSES}
    return course


def mean_course(courses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over trainings that were recorded at the same epochs."""
    mean: dict[str, Any] = {"epoch": courses[0]["epoch"]}
    for role in ROLES:
        if role in courses[0]:
            mean[role] = {
                name: _rounded(np.array([course[role][name] for course in courses], dtype=np.float64).mean(axis=0))
                for name in COURSES
            }
    return mean


def _rounded(values: Any, digits: int = 4) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.{digits}g}") for value in values]


def agreement_numbers(table: pd.DataFrame, roles: Mapping[str, str]) -> dict[str, Any]:
    """`role_measure`: means over slides and pairs of seeds."""
    role_of = table["slide"].map(roles)
    numbers = {f"{role}_{name}": float(table.loc[role_of == role, name].mean()) for role in ROLES for name in AGREEMENT}
    return compact(numbers)


def compact(values: Mapping[str, Any]) -> dict[str, Any]:
    """Six significant digits, and None for what is undefined."""
    return {key: _rounded([value], 6)[0] if isinstance(value, float) else value for key, value in values.items()}


def paired_values(results: pd.DataFrame, base: str, term: str, column: str) -> npt.NDArray[np.float64]:
    """Seeds x 2: the reference and the term, for the seeds that both have."""
    values = results.assign(value=pd.to_numeric(results[column])).pivot_table("value", "seed", ["base", "term"])
    if (base, term) not in values or (base, REFERENCE) not in values:
        return np.zeros((0, 2))
    return values[[(base, REFERENCE), (base, term)]].dropna().to_numpy(dtype=np.float64)


def paired_t(differences: npt.NDArray[np.float64]) -> float:
    """Two-sided p value of a paired t test; NaN for fewer than two pairs, or where all differences are equal."""
    from scipy import stats

    if len(differences) < 2 or np.ptp(differences) == 0:
        return math.nan
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def difference_cell(pairs: npt.NDArray[np.float64]) -> str:
    """The mean difference, how many seeds went up, and the p value."""
    differences = pairs[:, 1] - pairs[:, 0]
    return f"{differences.mean():+.3f} {_evidence(differences)}" if len(pairs) else ""


def ratio_cell(pairs: npt.NDArray[np.float64]) -> str:
    """The geometric mean of the ratios, how many seeds went up, and the p value of the logarithms."""
    if not len(pairs) or (pairs <= 0).any():
        return ""
    differences = np.log(pairs[:, 1] / pairs[:, 0])
    return f"x {np.exp(differences.mean()):.2g} {_evidence(differences)}"


def _evidence(differences: npt.NDArray[np.float64]) -> str:
    p = paired_t(differences)
    return f"({(differences > 0).sum()}/{len(differences)} up{'' if math.isnan(p) else f', p {p:.2g}'})"


def gain_cell(base: str, term: str, column: str) -> str:
    gains = PAPER_GAINS.get((base, term), {}).get(column)
    if gains is None:
        return ""
    low, high = min(gains), max(gains)
    return f"{low:+.3f}" if low == high else f"{low:+.3f} to {high:+.3f}"


def mean_cell(values: Any, measure: str = "") -> str:
    """Mean and standard deviation in the measure's format."""
    numbers = pd.to_numeric(pd.Series(values)).dropna()
    shape = FORMATS.get(measure, ".3f")
    if not len(numbers):
        return ""
    return f"{numbers.mean():{shape}}" + (f" ± {numbers.std():{shape}}" if len(numbers) > 1 else "")


def variants_of(results: pd.DataFrame) -> list[tuple[str, str]]:
    """Base and term of all lines, in the order of the tables."""
    found = set(zip(results["base"], results["term"], strict=True))
    return sorted(found, key=lambda variant: (_place(variant[0], BASES), _place(variant[1], TERMS)))


def _place(name: str, known: Sequence[str]) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)


def summary(results: pd.DataFrame, agreement: Sequence[Mapping[str, Any]], role: str) -> str:
    """All tables as Markdown, about the recorded slides of one role."""
    if not len(results):
        return "no training has ended yet"
    slides = {"train": "training", "val": "validation"}[role]
    attention = (
        f"Attention of recorded {slides} slides: mean ± standard deviation over seeds; concentration is that of the "
        "kept epoch, seeds are compared pair by pair."
    )
    against = (
        f"Against '{REFERENCE}', seed by seed: mean difference, for JSD the mean ratio (seeds that went up, p of a "
        "paired t test over seeds, for JSD on logarithms; not corrected for the number of comparisons). Paper: range "
        "of the differences over its data sets."
    )
    parts = {
        "Test slides: mean ± standard deviation over seeds.": performance_table(results),
        attention: attention_table(results, agreement, role),
        against: difference_table(results, role),
    }
    return "\n\n".join(f"{title}\n\n{table}" for title, table in parts.items())


def performance_table(results: pd.DataFrame) -> str:
    headers = [
        "method",
        "term",
        "macro-F1",
        "AUC",
        "tile AUC, heat map",
        "tile AUC, attention",
        "s a training",
        "seeds",
    ]
    lines = []
    for base, term in variants_of(results):
        rows = _rows(results, base, term)
        cells = [mean_cell(rows[name]) for name in ("f1", "auc", "tile_auc", "tile_auc_attention")]
        lines.append([base, term, *cells, mean_cell(rows["seconds"], "seconds"), str(len(rows))])
    return markdown_table(headers, lines, words=2)


def attention_table(results: pd.DataFrame, agreement: Sequence[Mapping[str, Any]], role: str) -> str:
    headers = ["method", "term", *ATTENTION.values(), *(f"seeds: {name.replace('_', ' ')}" for name in AGREEMENT)]
    agreed = {(row["base"], row["term"]): row for row in agreement}
    lines = []
    for base, term in variants_of(results):
        rows, pairs = _rows(results, base, term), agreed.get((base, term), {})
        cells = [mean_cell(rows[f"{role}_{name}"], name) for name in ATTENTION]
        lines.append([base, term, *cells, *(mean_cell([pairs.get(f"{role}_{name}")], name) for name in AGREEMENT)])
    return markdown_table(headers, lines, words=2)


def difference_table(results: pd.DataFrame, role: str) -> str:
    headers = ["method", "term", "macro-F1", "paper", "AUC", "paper", "tile AUC, heat map"]
    headers += [PER_SLIDE[name] for name in ("effective_share", "jsd_late", "jsd_relative")]
    lines = []
    for base, term in variants_of(results):
        if term == REFERENCE:
            continue
        pairs = {name: paired_values(results, base, term, name) for name in ("f1", "auc", "tile_auc")}
        pairs |= {name: paired_values(results, base, term, f"{role}_{name}") for name in PER_SLIDE}
        cells = [base, term]
        for name in ("f1", "auc"):
            cells += [difference_cell(pairs[name]), gain_cell(base, term, name)]
        cells += [difference_cell(pairs[name]) for name in ("tile_auc", "effective_share")]
        cells += [ratio_cell(pairs[name]) for name in ("jsd_late", "jsd_relative")]
        lines.append(cells)
    return markdown_table(headers, lines, words=2)


def _rows(results: pd.DataFrame, base: str, term: str) -> pd.DataFrame:
    return results[(results["base"] == base) & (results["term"] == term)]


def draw(courses: Sequence[Mapping[str, Any]], role: str) -> str:
    """The courses as SVG: a row a method, a column a measure, a line a term."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from asmil.reporting.drawing import COLORS, STYLE, svg_text

    bases = sorted({course["base"] for course in courses}, key=lambda base: _place(base, BASES))
    terms = sorted({course["term"] for course in courses}, key=lambda term: _place(term, TERMS))
    with rc_context({**STYLE, "svg.fonttype": "none"}):
        figure = Figure(figsize=(11.2, 2.1 * len(bases) + 0.6), layout="constrained")
        grid = figure.subplots(len(bases), len(COURSES), squeeze=False, sharex=True)
        for course in courses:
            line = grid[bases.index(course["base"])]
            color = COLORS[terms.index(course["term"]) % len(COLORS)]
            for axes, name in zip(line, COURSES, strict=True):
                values = np.array(course[role][name], dtype=np.float64)
                axes.plot(course["epoch"], values, color=color, linewidth=1.5)
        for line, base in zip(grid, bases, strict=True):
            line[0].set(yscale="log", ylabel=base)
            line[0].minorticks_off()
            line[2].set_ylim(0, 1.05)
        for top, bottom, label in zip(grid[0], grid[-1], COURSES.values(), strict=True):
            top.set_title(label)
            bottom.set_xlabel("epoch")
        handles = [
            grid[0, 0].plot([], [], color=COLORS[i % len(COLORS)], label=term)[0] for i, term in enumerate(terms)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)))
        return svg_text(figure)
