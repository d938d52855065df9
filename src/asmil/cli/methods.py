"""`asmil methods`: the methods that can be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from asmil.cli.options import argument

if TYPE_CHECKING:
    from asmil.models.registry import Method


def methods(
    name: Annotated[str | None, argument("A method to explain, with its formulas and settings.")] = None,
) -> None:
    """List the methods with their papers, or explain one with all its settings.

    Example: asmil methods asmil
    """
    import inspect
    import sys

    from asmil.console import results, say
    from asmil.models import registry
    from asmil.reporting import Table, print_table
    from asmil.runs.config import preset_names

    console = results()
    if name is None:
        rows = [
            [method.name, method.summary, _authors(method), ", ".join(preset_names(method))]
            for method in registry.methods().values()
        ]
        print_table(Table(("method", "what it does", "paper", "presets"), rows), console)
        return
    method = registry.find_method(name)
    if method.paper:
        say(console, f"{method.paper} ({method.year})\n")
    say(console, inspect.getdoc(sys.modules[method.model.__module__]) or method.summary)
    settings = [
        [f"model.{key}", str(field.default), field.description or ""]
        for key, field in method.model.config_type.model_fields.items()
    ]
    print_table(Table(("setting", "default", "meaning"), settings, title="model settings"), console)


def _authors(method: Method) -> str:
    """The paper in short; `asmil methods NAME` has its title."""
    return f"{method.paper.split(',')[0]} ({method.year})" if method.paper else ""
