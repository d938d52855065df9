"""`asmil plan`: a settings file for a cohort, with the reason for each setting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from asmil.cli.options import (
    Columns,
    Features,
    Force,
    ItemTimeout,
    TaskName,
    TimeUnitName,
    argument,
    call,
    option,
    out_option,
)


def plan(
    cohort: Annotated[Path, argument("The manifest (CSV, Excel or Parquet).")],
    out: Annotated[Path, out_option("The settings file to write.")] = Path("run.yaml"),
    run: Annotated[
        Path | None, option("The run folder that it names.", metavar="PATH", show_default="runs/METHOD")
    ] = None,
    features: Features = None,
    columns: Columns = None,
    task: TaskName = "classification",
    time_unit: TimeUnitName = None,
    item_timeout: ItemTimeout = None,
    force: Force = False,
) -> None:
    """Look at a cohort and write a settings file for `asmil train`, with the reason for each setting.

    Prints warnings and what the training will take here. Nothing is trained; every setting can be changed in the file.

    Example: asmil plan cohort.csv --out run.yaml
    """
    given = locals()
    import shlex

    from asmil.api import cohorts
    from asmil.console import results, say
    from asmil.errors import printable
    from asmil.training.planning import cost_line, memory_warning

    planned = call(cohorts.plan, given)
    console = results()
    for line in planned.facts:
        say(console, printable(line))
    for choice in planned.choices:
        say(console, printable(f"  {choice.key} = {choice.value}: {choice.reason}"))
    for warning in (*planned.warnings, *filter(None, [memory_warning(planned.estimate)])):
        say(console, printable(f"warning: {warning}"), style="yellow")
    say(console, cost_line(planned))
    say(console, f"next: asmil train {shlex.quote(str(out))}")
