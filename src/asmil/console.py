"""What the command prints: readable in any window, any encoding and any pipe.

Results go to the output stream, progress and messages to the error stream. `make_streams_safe` is called once, by
the command; verbs take their console from `results` or `messages`.
"""

from __future__ import annotations

import codecs
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

_PLAIN = {
    "–": "-",
    "—": "-",
    "−": "-",
    "±": "+/-",
    "×": "x",
    "·": "*",
    "²": "2",
    "µ": "u",
    "μ": "u",
    "…": "...",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "\N{NO-BREAK SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
    "\N{THIN SPACE}": " ",
}
_ERRORS = "asmil_plain"


class AsmilConsole(Console):
    """A console that leaves a closed pipe to the command."""

    def on_broken_pipe(self) -> NoReturn:
        """`asmil methods | head -1`: the reader has seen enough."""
        raise BrokenPipeError


def results(quiet: bool = False) -> Console:
    """The console for results, on the output stream."""
    return AsmilConsole(highlight=False, quiet=quiet)


def messages(quiet: bool = False) -> Console:
    """The console for progress and messages, on the error stream."""
    return AsmilConsole(highlight=False, quiet=quiet, stderr=True)


@contextmanager
def progress_bar(what: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on the error stream while something runs; call what it yields with the number done and the total."""
    from rich.progress import Progress

    with Progress(console=messages(quiet), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a message, one line of output per line of text in a pipe; a terminal gets lines broken between words."""
    shown = wrap(text, console.width) if console.is_terminal else text
    console.print(Text(shown, style=style), soft_wrap=True)


def wrap(text: str, width: int) -> str:
    """Lines of at most `width` columns, broken between words only: a long path stays in one piece.

    >>> print(wrap("  - slides/a-very-long-name.svs is missing", 32))
      - slides/a-very-long-name.svs
        is missing
    """
    return "\n".join(_wrapped_line(line, width) for line in text.split("\n"))


def _wrapped_line(line: str, width: int) -> str:
    body = line.lstrip()
    indent = line[: len(line) - len(body)]
    hanging = indent + ("  " if body.startswith("- ") else "")
    return textwrap.fill(
        body, width, initial_indent=indent, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


def print_json(values: Any) -> None:
    """Values as JSON on the output stream; where that cannot show every letter, JSON's escapes replace the others."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    unicode = codecs.lookup(encoding).name.startswith("utf")
    print(json.dumps(values, indent=1, ensure_ascii=not unicode))


def make_streams_safe() -> None:
    """From now on, letters that an output encoding lacks are written in a plainer form instead of raising an error."""
    codecs.register_error(_ERRORS, _plain_form)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=_ERRORS)


def encodable(text: str, encoding: str) -> str:
    """The text as a stream of this encoding will show it; to be used where the width of the text matters.

    >>> encodable("0.81 ±0.02", "ascii")
    '0.81 +/-0.02'
    """
    codecs.register_error(_ERRORS, _plain_form)
    return text.encode(encoding, _ERRORS).decode(encoding)


def _plain_form(error: UnicodeError) -> tuple[str, int]:
    """Replacements for letters that cannot be encoded: `+/-` for a plus-minus sign, an escape for most others."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    plain = (_PLAIN.get(letter) or letter.encode("ascii", "backslashreplace").decode("ascii") for letter in letters)
    return "".join(plain), error.end
