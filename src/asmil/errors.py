"""Errors that the user can fix: one sentence, with the closest valid name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that change what a terminal shows instead of being shown: controls, line separators, writing directions,
and bytes of file names that are not text."""


class AsmilError(ValueError):
    """A mistake in the input: its message names what is wrong, where, and what to do.

    The command prints the message and exits with a code other than zero; no traceback is shown. Names in the message
    come from files, so characters that would change the terminal are shown as escapes.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    r"""The text with escapes for characters that would change the terminal, except line ends and tabs.

    >>> printable("slide \x1b[2J")
    'slide \\x1b[2J'
    """
    return HIDDEN.sub(lambda match: match[0] if match[0] in "\n\t" else ascii(match[0])[1:-1], text)


def first_line(error: object) -> str:
    """The first line of another library's message; the type of an error without one."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def is_gpu_full(error: BaseException) -> bool:
    """Whether torch has no memory left on a GPU; torch is not imported to find out."""
    return type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch")


GPU_FULL = "the memory of the GPU is full; end other programs that use it, start fewer workers, or use --device cpu"


class AsmilWarning(UserWarning):
    """The input is accepted, but is probably not what was meant."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """A hint that names the nearest options, or lists a few when none is near.

    >>> did_you_mean("asml", ["asmil", "abmil"])
    "did you mean 'asmil' or 'abmil'?"
    """
    known = sorted(map(str, options))
    near = get_close_matches(word, known, n=2, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    if not known:
        return "there is nothing to choose from"
    shown = ", ".join(known[:12])
    return f"known are: {shown}" + (", ..." if len(known) > 12 else "")
