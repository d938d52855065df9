"""How `-h` explains a verb: what it does, an example to copy, its arguments and its options.

The text of a verb is the docstring of its function. A paragraph that begins with `Example: ` holds a command, which
is continued on the next line, as a shell would read it, where the window is narrow.
"""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import sys
import textwrap
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

EXAMPLE = "Example: "
WIDEST, FIRST_COLUMN = 100, 30
"""Columns that lines of help have at most, and those of the names on the left."""
_VALUE_NAMES = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}


class Verb(TyperCommand):
    """A verb of the command."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; Ctrl-C reaches `asmil.cli.main` in every version of typer, some of which end without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the verb."""
        width = window_width()
        about, example = _split_example(self.help or "")
        arguments, options = _parameters(self, ctx)
        usage = " ".join([ctx.command_path, *(name for name, _ in arguments), "[OPTIONS]"])
        blocks = [wrap_command(f"Usage: {usage}", width), *(_filled(text, width) for text in about)]
        if example:
            blocks.append(f"{_heading('Example')}\n{textwrap.indent(wrap_command(example, width - 2), '  ')}")
        blocks += [_section(title, rows, width) for title, rows in (("Arguments", arguments), ("Options", options))]
        formatter.write("\n\n".join(filter(None, blocks)) + "\n")


class Verbs(TyperGroup):
    """The command itself: its verbs, in groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of all verbs."""
        width = window_width()
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                about, _ = _split_example(command.help or "")
                groups.setdefault(getattr(command, "rich_help_panel", None) or "Verbs", []).append((name, about[0]))
        names = [name for rows in groups.values() for name, _ in rows]
        column = max(map(len, names), default=0)
        intro, *rest = inspect.cleandoc(self.help or "").split("\n\n")
        blocks = [f"Usage: {ctx.command_path} VERB ...", _filled(intro, width)]
        blocks += [_section(title, rows, width, column) for title, rows in groups.items()]
        blocks += [_section("Options", _parameters(self, ctx)[1], width, column)]
        formatter.write("\n\n".join([*blocks, *(_filled(text, width) for text in rest)]) + "\n")


def window_width() -> int:
    """Columns of help in this window."""
    return max(40, min(WIDEST, shutil.get_terminal_size().columns))


def example_of(function: Any) -> str:
    """The example of a verb's function, empty if it has none."""
    return _split_example(inspect.getdoc(function) or "")[1]


def wrap_command(command: str, width: int) -> str:
    r"""A command in lines of at most `width` columns, each continued by a backslash.

    >>> print(wrap_command("asmil train cohort.csv --out runs/asmil", 26))
    asmil train cohort.csv \
        --out runs/asmil
    """
    lines = textwrap.wrap(command, width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return command if len(command) <= width else " \\\n".join(lines)


def _split_example(help_text: str) -> tuple[list[str], str]:
    """The paragraphs of a help text, and its example."""
    paragraphs = [" ".join(text.split()) for text in inspect.cleandoc(help_text).split("\n\n")]
    example = next((text.removeprefix(EXAMPLE) for text in paragraphs if text.startswith(EXAMPLE)), "")
    return [text for text in paragraphs if not text.startswith(EXAMPLE)], example


def _parameters(command: Any, ctx: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Arguments and options, each with its name and what it means."""
    kinds = get_type_hints(inspect.unwrap(command.callback)) if command.callback else {}
    arguments, options = [], []
    for parameter in command.get_params(ctx):
        if getattr(parameter, "hidden", False):
            continue
        kind = kinds.get(parameter.name, bool)
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper() + ("..." if parameter.nargs != 1 else "")
            arguments.append((name if parameter.required else f"[{name}]", _meaning(parameter, kind)))
        else:
            options.append((_option_name(parameter, kind), _meaning(parameter, kind)))
    return arguments, options


def _option_name(option: Any, kind: Any) -> str:
    short = [name for name in option.opts if not name.startswith("--")]
    names = [*short, *(name for name in option.opts if name.startswith("--")), *option.secondary_opts]
    value = option.metavar or _value_name(kind)
    return ("" if short else "    ") + ", ".join(names) + ("" if option.is_flag or not value else f" {value}")


def _value_name(kind: Any) -> str:
    """The word for a value of a type: `N`, `PATH`, or the choices."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is list:
        return _value_name(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return _VALUE_NAMES.get(kind, "")


def _meaning(parameter: Any, kind: Any) -> str:
    """The help of a parameter, with its default, or that it is required."""
    text = str(parameter.help or "")
    shown = parameter.show_default
    if parameter.required:
        return text if parameter.param_type_name == "argument" else f"{text} [required]"
    if isinstance(shown, str):
        return f"{text} [default: {shown}]"
    plain = parameter.default
    if shown is False or plain is None or callable(plain) or kind is bool or isinstance(plain, list | tuple):
        return text
    return f"{text} [default: {plain}]"


def _section(title: str, rows: Sequence[tuple[str, str]], width: int, column: int = 0) -> str:
    """A heading, and below it names with what they mean; a name too long for its column has a line of its own."""
    if not rows:
        return ""
    longest = max((len(name) for name, _ in rows), default=0)
    first = column or min(longest, FIRST_COLUMN, width // 3)
    return "\n".join([_heading(title), *_definitions(rows, first, width)])


def _definitions(rows: Iterable[tuple[str, str]], first: int, width: int) -> Iterable[str]:
    indent = " " * (first + 4)
    for name, meaning in rows:
        lines = textwrap.wrap(meaning, width - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
        if len(name) > first:
            yield "\n".join(_broken_choices(f"  {name}", width))
            yield from (indent + line for line in lines)
        else:
            yield f"  {name:<{first}}  {lines[0]}".rstrip()
            yield from (indent + line for line in lines[1:])


def _broken_choices(name: str, width: int) -> list[str]:
    """A name in lines that fit, broken between the choices of its value."""
    if len(name) <= width:
        return [name]
    words = name.replace("|", "| ").lstrip()
    lines = textwrap.wrap(words, width - 2, initial_indent="  ", subsequent_indent=" " * 10, break_on_hyphens=False)
    return [line.replace("| ", "|") for line in lines]


def _filled(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _heading(text: str) -> str:
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return typer.style(text, bold=True) if colored else text


def parsed_example(example: str) -> list[str]:
    """The words of an example after `asmil`, as a shell would pass them."""
    return shlex.split(example, comments=True)[1:]
