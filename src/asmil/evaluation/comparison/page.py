"""The page of a comparison: one HTML file that needs nothing else.

Every text that comes from outside (names of runs and classes) passes `html.escape`.
"""

from __future__ import annotations

import math
from html import escape

from asmil.evaluation.comparison.findings import Comparison, Difference, EnsembleTest, Method, Score
from asmil.evaluation.comparison.forest import forest_figure
from asmil.evaluation.comparison.tables import (
    format_difference,
    format_difference_interval,
    format_p,
    format_sizes,
    spread_of,
)
from asmil.evaluation.comparison.words import BOLD_IS_NO_TEST, notes_of
from asmil.evaluation.page import PART_TITLES
from asmil.evaluation.page_parts import caveat_section, html_table, image, tag, whole_page
from asmil.evaluation.tables import format_interval, format_number


def render_page(found: Comparison) -> str:
    """The whole page as text."""
    names = ", ".join(method.name for method in found.methods)
    blocks = [_header(found), _problems(found), _methods(found), _differences(found), _classes(found)]
    return whole_page(f"Comparison: {names}", [*filter(None, blocks), caveat_section(notes_of(found))])


def _header(found: Comparison) -> str:
    against = "" if found.reference is None else f" Reference: {escape(found.reference)}."
    sizes = f"On the {PART_TITLES[found.role]}: {format_sizes(found)}."
    return f"<header><p>Comparison</p><h1>{len(found.methods)} runs compared</h1><p>{sizes}{against}</p></header>"


def _problems(found: Comparison) -> str:
    return "".join(f'<p class="note">Left out: {escape(problem)}</p>' for problem in found.problems)


def _methods(found: Comparison) -> str:
    rows = [_method(found, method) for method in found.methods]
    note = f"Mean over seeds, 95 % interval by patient, standard deviation. {BOLD_IS_NO_TEST}"
    head = ["run", *(measure.title for measure in found.measures), "seeds"]
    return f"<section><h2>Runs</h2><p>{note}</p>{html_table(head, rows, css='summary')}</section>"


def _method(found: Comparison, method: Method) -> str:
    about = f"{method.method}, preset {method.preset}"
    cells = [tag("th", f"{escape(method.name)}<small>{escape(about)}</small>", scope="row")]
    cells += [
        tag("td", _score(method.scores[measure.name], method.name in found.best(measure))) for measure in found.measures
    ]
    return "".join([*cells, tag("td", str(len(method.seeds)))])


def _score(score: Score, best: bool) -> str:
    value = format_number(score.value)
    over, sd = spread_of(score)
    spread = "" if math.isnan(sd) else f"<small>sd over {over} {format_number(sd)}</small>"
    return f"{tag('b', value) if best else value}<small>{format_interval(score.interval)}</small>{spread}"


def _differences(found: Comparison) -> str:
    tested = any(one.ensemble is not None for one in found.differences)
    folded = any(one.folds is not None for one in found.differences)
    head = ["run − reference", "measure", "difference", "95 % interval"]
    head += ["p", f"p (Holm, {found.family})"] if tested else []
    head += ["p over folds"] if folded else []
    rows = [_difference(one, tested, folded) for one in found.differences]
    note = (
        "Differences of the means over seeds. Intervals come from draws of seeds and patients; blue ones do not hold 0."
    )
    if tested:
        note += " p is of one test of the probabilities averaged over seeds."
    return (
        f"<section><h2>Differences</h2><p>{note}</p>{image(forest_figure(found), 'Differences with intervals')}"
        f"{html_table(head, rows)}</section>"
    )


def _difference(one: Difference, tested: bool, folded: bool) -> str:
    against = f"{escape(one.run)}<small>against {escape(one.reference)}</small>"
    cells = [tag("th", against, scope="row"), tag("td", escape(one.measure.title))]
    cells += [
        tag("td", format_difference(one.value)),
        tag("td", format_difference_interval(one.interval), style="white-space:nowrap"),
    ]
    if tested and one.ensemble is not None:
        cells.append(tag("td", f"{escape(format_p(one.ensemble.p))}<small>{escape(_short(one.ensemble))}</small>"))
        cells.append(tag("td", escape(format_p(one.p_holm))))
    if folded:
        fold = one.folds
        told = "" if fold is None or math.isnan(fold.t) else f"<small>|t| = {abs(fold.t):.2f}, df = {fold.df}</small>"
        cells.append(tag("td", escape(format_p(math.nan if fold is None else fold.p)) + told))
    return "".join(cells)


def _short(test: EnsembleTest) -> str:
    return test.test.partition(",")[0]


def _classes(found: Comparison) -> str:
    """DeLong's tests of the single classes, where there are more than two."""
    rows = []
    for one in found.differences:
        classes = one.ensemble.classes if one.ensemble is not None and len(one.ensemble.classes) > 1 else ()
        for row in classes:
            against = f"{escape(one.run)}<small>against {escape(one.reference)}</small>"
            cells = [tag("th", against, scope="row"), tag("td", escape(row.name))]
            cells += [tag("td", format_number(row.auc)), tag("td", format_number(row.auc_reference))]
            interval = format_difference_interval(row.interval)
            cells.append(tag("td", f"{format_difference(row.difference)}<small>{interval}</small>"))
            cells += [tag("td", escape(format_p(row.p))), tag("td", escape(format_p(row.p_holm)))]
            rows.append("".join(cells))
    if not rows:
        return ""
    head = ["run − reference", "class", "AUC", "AUC of reference", "difference", "p", "p (Holm over classes)"]
    note = "DeLong's test of every class against the rest, on probabilities averaged over seeds."
    return f"<section><h2>Classes</h2><p>{note}</p>{html_table(head, rows)}</section>"
