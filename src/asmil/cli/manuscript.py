"""`asmil manuscript`: figures, tables and text of a paper, from pages and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from asmil.cli import options
from asmil.cli.options import argument, option


def manuscript(
    folder: Annotated[Path, argument("The folder that holds runs and reports: a study, or one run.")],
    out: Annotated[Path, options.out_option("The folder to write.")],
    only: Annotated[Literal["figures", "tables", "text"] | None, option("Write only this part. Default: all.")] = None,
    width: Annotated[
        Literal["85", "180"] | None,
        option(
            "Width of all figures in mm. Default: 85, one column, where the text is readable, else 180.", metavar="MM"
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write every figure (PDF, SVG, PNG), every table (LaTeX, Word, CSV) and the text of a paper.

    The text has methods from the settings of the runs, results and captions; references.bib has the papers of the
    methods. Word files need `pip install 'asmil[word]'`.

    Example: asmil manuscript study --out paper
    """
    given = locals()
    from asmil.api import results as functions
    from asmil.console import print_json, results, say

    given["width"] = None if width is None else int(width)
    written = options.call(functions.manuscript, given)
    if as_json:
        names = {"figures": list(written.figures), "tables": list(written.tables)}
        print_json({"out": str(out), **names, "notes": written.notes, "problems": written.problems})
    else:
        console = results()
        counts = {"figures": len(written.figures), "tables": len(written.tables)}
        parts = [f"{number} {name}" for name, number in counts.items() if only in (None, name)]
        say(console, f"{', '.join([*parts, *['text'] * (only in (None, 'text'))])}: {out}")
        for note in written.notes:
            say(console, f"note: {note}")
    total = len(written.problems) + len(written.figures) + len(written.tables)
    options.raise_failures(written.problems, total, "pages and figures could not be read")
