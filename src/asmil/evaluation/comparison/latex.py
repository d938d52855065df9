"""A comparison as LaTeX tables (booktabs), ready to be put into a paper."""

from __future__ import annotations

import math

from asmil.evaluation.comparison.findings import Comparison
from asmil.evaluation.comparison.tables import format_difference, format_sizes, spread_of
from asmil.evaluation.comparison.words import BOLD_IS_NO_TEST, notes_of
from asmil.evaluation.tables import format_number

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "−": "$-$",
    "\n": " ",
}


def latex_report(found: Comparison) -> str:
    """Both tables; what the numbers are stands in comments above and in the captions."""
    comments = "\n".join("% " + note.replace("\n", " ") for note in notes_of(found))
    needs = r"% Needs \usepackage{booktabs}."
    return f"{needs}\n{comments}\n\n{_methods(found)}\n\n{_differences(found)}\n"


def latex_text(text: str) -> str:
    """Text whose characters LaTeX prints as they are."""
    return "".join(SPECIAL.get(character, character) for character in text)


def _methods(found: Comparison) -> str:
    rows = []
    for method in found.methods:
        cells = [latex_text(method.name)]
        for measure in found.measures:
            score = method.scores[measure.name]
            value = format_number(score.value)
            value = rf"\textbf{{{value}}}" if method.name in found.best(measure) else value
            sd = spread_of(score)[1]
            spread = "" if math.isnan(sd) else rf" $\pm$ {format_number(sd)}"
            ends = f"{format_number(score.interval.low)}, {format_number(score.interval.high)}"
            cells.append(value + spread + ("" if math.isnan(score.interval.low) else f" ({ends})"))
        rows.append([*cells, str(len(method.seeds))])
    over = dict.fromkeys(spread_of(score)[0] for method in found.methods for score in method.scores.values())
    caption = (
        f"Means over seeds on the {found.role} part ({format_sizes(found)}), $\\pm$ standard deviation over "
        f"{' or '.join(over)}, with 95\\,\\% intervals of a bootstrap over patients. {BOLD_IS_NO_TEST}"
    )
    head = ["Run", *(latex_text(measure.title) for measure in found.measures), "Seeds"]
    return _table(caption, "l" + "c" * len(found.measures) + "r", head, rows)


def _differences(found: Comparison) -> str:
    tested = any(one.ensemble is not None for one in found.differences)
    folded = any(one.folds is not None for one in found.differences)
    rows = []
    for one in found.differences:
        names = [latex_text(one.run), latex_text(one.reference), latex_text(one.measure.title)]
        low, high = (latex_text(format_difference(end)) for end in one.interval)
        cells = [*names, latex_text(format_difference(one.value)), f"{low} to {high}"]
        if tested:
            cells += [_p(math.nan if one.ensemble is None else one.ensemble.p), _p(one.p_holm)]
        if folded:
            cells.append(_p(math.nan if one.folds is None else one.folds.p))
        rows.append(cells)
    caption = (
        "Differences of the means over seeds (run minus reference) with 95\\,\\% intervals of a bootstrap over "
        "seeds and patients."
    )
    if tested:
        classes = any(one.ensemble is not None and len(one.ensemble.classes) > 1 for one in found.differences)
        delong = "the smallest $p$ of DeLong's test per class, Holm over classes" if classes else "DeLong"
        caption += (
            f" $p$: one test of the probabilities averaged over seeds (AUC: {delong}; F1: permutation by patient); "
            f"$p_\\mathrm{{Holm}}$: adjusted over all {found.family}."
        )
    if folded:
        caption += r" $p_\mathrm{folds}$: corrected resampled $t$-test over folds."
    head = ["Run", "Reference", "Measure", "Difference", r"95\,\% interval"]
    head += ["$p$", r"$p_\mathrm{Holm}$"] if tested else []
    head += [r"$p_\mathrm{folds}$"] if folded else []
    return _table(caption, "lllrc" + "r" * (len(head) - 5), head, rows)


def _p(p: float) -> str:
    if math.isnan(p):
        return "--"
    return "$<$ 0.001" if p < 0.001 else f"{p:.3f}"


def _table(caption: str, columns: str, head: list[str], rows: list[list[str]]) -> str:
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)
