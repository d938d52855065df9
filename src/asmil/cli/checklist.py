"""`asmil checklist`: checklists of reporting guidelines, filled in from a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from asmil.cli.options import Json, RunFolder, call, option, out_option


def checklist(
    run: RunFolder,
    validation: Annotated[Path | None, option("Folder that `asmil validate` wrote for this run.")] = None,
    out: Annotated[Path, out_option("Folder for the checklists.")] = Path("checklists"),
    as_json: Json = False,
) -> None:
    """Fill in the checklists TRIPOD+AI and STARD-AI: what is known, its source, and what is for the authors.

    Writes HTML, Markdown and JSON and, with the extra `word`, Word files. STARD-AI is written for classes and labels.

    Example: asmil checklist runs/asmil --validation validation --out checklists
    """
    given = locals()
    from asmil.api import results as functions
    from asmil.console import messages, print_json, results, say
    from asmil.evaluation.checklists.checklist import NO_WORD, has_word

    filled = call(functions.checklist, given)
    if as_json:
        print_json([each.to_dict() for each in filled])
        return
    for each in filled:
        say(results(), f"{each.guideline.name}: {each.answer}")
        say(results(), f"page: {out / each.key}.html")
    if not has_word():
        say(messages(), f"note: {NO_WORD}")
