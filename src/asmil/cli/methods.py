"""`asmil methods`: which method to try, and what each of them is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from asmil.cli.options import argument, option

if TYPE_CHECKING:
    from asmil.models.registry import Method


def methods(
    name: Annotated[str | None, argument("A method to explain, with its formulas, settings and evidence.")] = None,
    *,
    every: Annotated[bool, option("List all methods with their costs, papers and presets.", "--all")] = False,
) -> None:
    """Show which method to try by what you have, list all methods, or explain one with all its settings.

    Example: asmil methods asmil
    """
    from asmil.console import results, say
    from asmil.models import guide, registry
    from asmil.reporting import Table, print_table

    console = results()
    if name is not None:
        _explain(registry.find_method(name))
        return
    known = registry.methods()
    if every:
        _list(list(known.values()))
        return
    print_table(Table(("if you have", "try", "because"), guide.guide_rows()), console)
    say(console, f"{guide.units()}.")
    measured = [method for method in known if guide.evidence_of(method) != guide.NOT_MEASURED]
    say(console, f"Measured on real data: {', '.join(measured)}. Others: not yet.")
    say(console, f"asmil methods --all lists all {len(known)} methods; asmil methods NAME explains one.")


def _list(known: list[Method]) -> None:
    from asmil.console import results, say
    from asmil.models import guide
    from asmil.reporting import Table, print_table
    from asmil.runs.config import preset_names

    rows = []
    for method in known:
        name, summary, prediction, training, megabytes, _ = guide.method_row(method)
        presets = ", ".join(preset_names(method))
        rows.append([name, summary, prediction, training, megabytes, _authors(method), presets])
    columns = ("method", "what it does", "predict", "train", "MB at 100k", "paper", "presets")
    print_table(Table(columns, rows), results())
    say(results(), f"{guide.units()}.")


def _explain(method: Method) -> None:
    import inspect
    import sys

    from asmil.console import results, say
    from asmil.models import guide
    from asmil.reporting import Table, print_table

    console = results()
    if method.paper:
        say(console, f"{method.paper} ({method.year})\n")
    say(console, inspect.getdoc(sys.modules[method.model.__module__]) or method.summary)
    say(console, f"\nEvidence: {guide.evidence_of(method.name)}\n")
    settings = [
        [f"model.{key}", str(field.default), field.description or ""]
        for key, field in method.model.config_type.model_fields.items()
    ]
    print_table(Table(("setting", "default", "meaning"), settings, title="model settings"), console)


def _authors(method: Method) -> str:
    """The paper in short; `asmil methods NAME` has its title."""
    return f"{method.paper.split(',')[0]} ({method.year})" if method.paper else ""
