"""`asmil methods`: the methods that can be trained."""

from __future__ import annotations

from typing import Annotated

import typer


def methods(
    name: Annotated[str | None, typer.Argument(help="A method to explain, with its formulas and settings.")] = None,
) -> None:
    """List the methods with their papers, or explain one with all its settings.

    Example: asmil methods asmil
    """
    import inspect
    import sys

    from rich.table import Table

    from asmil.console import results, say
    from asmil.models import registry
    from asmil.training.config import preset_names

    console = results()
    if name is None:
        table = Table("method", "what it does", "paper", "presets", box=None, pad_edge=False)
        for method in registry.methods().values():
            table.add_row(
                method.name,
                method.summary,
                f"{method.paper} ({method.year})" if method.paper else "",
                ", ".join(preset_names(method)),
            )
        console.print(table)
        return
    method = registry.find_method(name)
    say(console, inspect.getdoc(sys.modules[method.model.__module__]) or method.summary)
    table = Table("setting", "default", "meaning", box=None, pad_edge=False, title="\nmodel settings")
    for key, field in method.model.config_type.model_fields.items():
        table.add_row(f"model.{key}", str(field.default), field.description or "")
    console.print(table)
