"""What the user did wrong, told in one sentence, with the nearest right word."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class AsmilError(Exception):
    """A mistake in the input: its message names what is wrong, where, and what to do.

    The command prints the message and exits with a code other than zero; no traceback is shown.
    """


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
