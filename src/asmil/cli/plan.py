"""`asmil plan`: a settings file for a cohort, with the reason for each setting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import Columns, Features, ItemTimeout, TaskName, TimeUnitName


def plan(
    cohort: Annotated[Path, typer.Argument(help="The manifest (CSV, Excel or Parquet).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The settings file to write.")] = Path("run.yaml"),
    run: Annotated[
        Path | None, typer.Option(metavar="PATH", show_default="runs/METHOD", help="The run folder that it names.")
    ] = None,
    features: Features = None,
    columns: Columns = None,
    task: TaskName = "classification",
    time_unit: TimeUnitName = None,
    item_timeout: ItemTimeout = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Look at a cohort and write a settings file for `asmil train`, with the reason for each setting.

    Prints warnings and what the training will take here. Nothing is trained; every setting can be changed in the file.

    Example: asmil plan cohort.csv --out run.yaml
    """
    import os
    import shlex

    from asmil.cohort.consistency import refuse_mixed
    from asmil.cohort.inspection import inspect_slides
    from asmil.cohort.manifest import load_cohort
    from asmil.console import results, say
    from asmil.errors import AsmilError, printable
    from asmil.files import write_text
    from asmil.tables.columns import parse_mapping
    from asmil.training.planning import cost_line, memory_warning, plan_text, plan_training

    if out.exists() and not force:
        raise AsmilError(f"{out} exists; give another --out, or --force to replace it")
    read = load_cohort(cohort, features, task, parse_mapping(columns))
    infos = []
    for _, found in inspect_slides(read.slides, item_timeout_s=item_timeout):
        if isinstance(found, AsmilError):
            raise found
        infos.append(found)
    refuse_mixed(infos)
    planned = plan_training(read, infos, task, time_unit)
    folder = out.absolute().parent
    method = planned.config.method
    text = plan_text(
        planned,
        str(out),
        os.path.relpath(cohort.absolute(), folder),
        os.path.relpath(run.absolute(), folder) if run is not None else f"runs/{method}",
        None if features is None else os.path.relpath(features.absolute(), folder),
        columns,
    )
    write_text(out, text)
    console = results()
    for line in (*read.notes, *planned.facts):
        say(console, printable(line))
    for choice in planned.choices:
        say(console, printable(f"  {choice.key} = {choice.value}: {choice.reason}"))
    for warning in (*planned.warnings, *filter(None, [memory_warning(planned.estimate)])):
        say(console, printable(f"warning: {warning}"), style="yellow")
    say(console, cost_line(planned))
    say(console, f"next: asmil train {shlex.quote(str(out))}")
