"""`asmil index`: one page that links all results below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def index(
    folder: Annotated[Path, typer.Argument(help="The folder that holds runs and reports.")],
    title: Annotated[str | None, typer.Option(help="Title of the page. Default: the name of the folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Write FOLDER/index.html: the results in two sentences, heat maps, and links to all reports.

    Example: asmil index demo
    """
    from dataclasses import asdict

    from asmil.console import print_json, results, say
    from asmil.experiments.results_index import index_results, write_index

    found = index_results(folder)
    steps = []
    if found.run_folders:
        runs = " ".join(map(str, found.viewed_runs))
        steps.append(f"To look at the slides with their maps in a browser: `asmil view {runs}`")
    page = write_index(found, title or folder.resolve().name, steps)
    if as_json:
        summaries = [asdict(run) for run in found.runs]
        print_json({"page": str(page), "runs": summaries, "sentences": found.sentences, "warnings": found.warnings})
        return
    console = results()
    for sentence in found.sentences:
        say(console, sentence)
    for warning in found.warnings:
        say(console, f"warning: {warning}", style="yellow")
    say(console, f"Open {page}")
