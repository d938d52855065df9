"""The localization page: numbers, curves and maps in one HTML file, and the tables beside it."""

from __future__ import annotations

from html import escape
from pathlib import Path

from asmil.evaluation.localization.figures import froc_figure, slides_figure
from asmil.evaluation.localization.map_pictures import map_picture
from asmil.evaluation.localization.run import Localization
from asmil.evaluation.localization.summary import MEANINGS, SCALED_METRICS, TITLES, UNSCALED_METRICS
from asmil.evaluation.localization.tables import localization_dict, markdown_text, numbers_frame, slides_frame
from asmil.evaluation.localization.words import (
    SCALING_WORDS,
    caveats,
    convention,
    froc_words,
    minmax_words,
    scaling_title,
    sizes,
)
from asmil.evaluation.page_parts import caveat_section, html_table, image, tag, whole_page
from asmil.files import write_json, write_text
from asmil.reporting import Estimate
from asmil.reporting.formats import format_interval, format_number

MOST_ROWS = 300


def write_localization(found: Localization, folder: Path | str) -> Path:
    """Write `localization.html`, `.md`, `.json`, `.csv` and `localization_slides.csv`; return the path of the page."""
    folder = Path(folder)
    write_json(folder / "localization.json", localization_dict(found))
    write_text(folder / "localization.csv", numbers_frame(found).to_csv(index=False))
    write_text(folder / "localization_slides.csv", slides_frame(found).to_csv(index=False))
    write_text(folder / "localization.md", markdown_text(found))
    page = folder / "localization.html"
    write_text(page, render_page(found))
    return page


def render_page(found: Localization) -> str:
    """The whole page as text."""
    header = (
        f"<header><p>Localization</p><h1>{escape(found.name)}</h1>"
        f"<p>{escape(found.method)}, {escape(sizes(found))}; {escape(convention(found))}.</p></header>"
    )
    blocks = [header, _problems(found), _results(found), _maps(found), _slides(found), caveat_section(caveats(found))]
    return whole_page(f"Localization: {found.name}", blocks)


def _problems(found: Localization) -> str:
    if not found.problems:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in found.problems)
    count = len(found.problems)
    return f"<section><h2>Not judged: {count} slide{'s' * (count > 1)}</h2><ul>{items}</ul></section>"


def _results(found: Localization) -> str:
    scalings = found.judging.scalings
    rows = []
    for name in SCALED_METRICS:
        cells = [_heading(name)]
        cells += [_cell(found.summary.scaled[scaling].numbers[name]) for scaling in scalings]
        rows.append("".join(cells))
    for name in UNSCALED_METRICS:
        cells = [_heading(name)]
        cells += [_cell(found.summary.unscaled[name]) for _ in scalings]
        rows.append("".join(cells))
    rows.append(
        tag("th", "lesions found at 1/4 to 8<small>false positives a slide</small>", scope="row")
        + "".join(
            tag("td", "<br>".join(escape(froc_words(found.summary.scaled[scaling].froc)).split(", ")))
            for scaling in scalings
        )
    )
    head = ["", *map(scaling_title, scalings)]
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in minmax_words(found))
    listed = "; ".join(f"<b>{scaling}</b>: {escape(SCALING_WORDS[scaling])}" for scaling in scalings)
    rings = (
        "Lines are the measured FROC curves; rings are the sensitivities that the score averages"
        + (", each taken from the next point with more false positives" if found.judging.options.rule == "up" else "")
        + ". On the right every point is a slide, and bars are means."
    )
    figures = f'<div class="side">{image(froc_figure(found), "FROC")}{image(slides_figure(found), "slides")}</div>'
    return (
        f"<section><h2>Results</h2><p>Value and 95 % interval by patient. {listed}.</p>"
        f"{html_table(head, rows)}{figures}<p>{escape(rings)}</p>"
        f"<h3>What min-max scaling does to these numbers</h3>{words}</section>"
    )


def _heading(name: str) -> str:
    return tag("th", f"{escape(TITLES[name])}<small>{escape(MEANINGS[name])}</small>", scope="row")


def _cell(number: Estimate) -> str:
    return tag("td", f"<b>{format_number(number.value)}</b><small>{format_interval(number.interval)}</small>")


def _maps(found: Localization) -> str:
    picture = map_picture(found)
    if picture is None:
        return ""
    caption = (
        "The first tumor slides and the first normal ones, not chosen by how they look. Left: the heat map, scaled by "
        "the slide's own smallest and largest value; beside it the tiles above the cut of every scaling, in orange. "
        "The red line outlines the annotated tumor."
    )
    return f"<section><h2>Maps</h2><p>{caption}</p>{image(picture, 'maps of slides')}</section>"


def _slides(found: Localization) -> str:
    scalings = found.judging.scalings
    head = ["slide", "tiles", "tumor tiles", "regions", "p(tumor)", "tile AUC"]
    head += [f"{scaling} {word}" for scaling in scalings for word in ("Dice", "specificity", "regions found")]
    rows = []
    for one in found.slides[:MOST_ROWS]:
        cells = [tag("th", f"{escape(one.name)}<small>{escape(str(one.map.slide.label))}</small>", scope="row")]
        values = [str(len(one.tumor)), str(int(one.tumor.sum())), str(one.n_regions)]
        values += [format_number(one.tumor_probability), format_number(one.tile_auc)]
        for scaling in scalings:
            measures = one.scaled[scaling]
            values += [format_number(measures.dice), format_number(measures.specificity)]
            values.append(format_number(measures.regions_found, 0))
        rows.append("".join(cells + [tag("td", value) for value in values]))
    hidden = len(found.slides) - MOST_ROWS
    more = f"<p>{hidden} more are in localization_slides.csv.</p>" if hidden > 0 else ""
    return (
        f"<section><details><summary>Every slide ({len(found.slides)})</summary>"
        f"{html_table(head, rows, css='measures')}{more}</details></section>"
    )
