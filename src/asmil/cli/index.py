"""`asmil index`: one page that links all results below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from asmil.cli.options import Json, argument, option


def index(
    folder: Annotated[Path, argument("The folder that holds runs and reports.")],
    title: Annotated[str | None, option("Title of the page. Default: the name of the folder.")] = None,
    as_json: Json = False,
) -> None:
    """Write FOLDER/index.html: the results in two sentences, heat maps, and links to all reports.

    Example: asmil index demo
    """
    from dataclasses import asdict

    from asmil.api import results as functions
    from asmil.console import print_json, results, say
    from asmil.experiments.results_index import INDEX_FILE

    indexed, page = functions.index(folder, title=title), folder / INDEX_FILE
    if as_json:
        summaries = [asdict(run) for run in indexed.runs]
        print_json({"page": str(page), "runs": summaries, "sentences": indexed.sentences, "warnings": indexed.warnings})
        return
    console = results()
    for sentence in indexed.sentences:
        say(console, sentence)
    for warning in indexed.warnings:
        say(console, f"warning: {warning}", style="yellow")
    say(console, f"Open {page}")
