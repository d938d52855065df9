"""`asmil methods`: what can be built."""

from __future__ import annotations

from typing import Annotated

import typer


def methods(
    name: Annotated[str | None, typer.Argument(help="One method: its formulas and settings.")] = None,
) -> None:
    """List the methods with their papers, or explain one with all its settings."""
    import inspect
    import sys

    from rich.console import Console
    from rich.table import Table

    from asmil.models import registry
    from asmil.training.config import preset_names

    console = Console(highlight=False)
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
    console.print(inspect.getdoc(sys.modules[method.model.__module__]) or method.summary, markup=False, soft_wrap=True)
    table = Table("setting", "default", "meaning", box=None, pad_edge=False, title="\nmodel settings")
    for key, field in method.model.config_type.model_fields.items():
        table.add_row(f"model.{key}", str(field.default), field.description or "")
    console.print(table)
