"""Which slides are normal, by their labels; a missing annotation does not make a slide normal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from asmil.errors import AsmilError, did_you_mean

NORMAL_NAMES = frozenset(
    {
        "normal",
        "negative",
        "neg",
        "benign",
        "healthy",
        "no tumor",
        "non tumor",
        "nontumor",
        "tumor free",
        "control",
        "0",
    }
)


def normal_labels(labels: Iterable[str], given: Sequence[str] = ()) -> frozenset[str]:
    """The labels of normal slides: those that the user names, else those with a usual name for it; may be none."""
    known = set(labels)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise AsmilError(f"--normal {unknown[0]}: no slide has this label; {did_you_mean(unknown[0], known)}")
    if given:
        return frozenset(given)
    return frozenset(label for label in known if _plain(label) in NORMAL_NAMES)


def read_skip_list(path: Path | str) -> tuple[str, ...]:
    """The slides that the user leaves out: one name a line; what follows a `#` or a comma is a remark."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AsmilError(f"{path}: the list of slides to leave out cannot be read ({error}); correct it") from None
    names = [line.split("#")[0].split(",")[0].strip() for line in lines]
    return tuple(dict.fromkeys(name for name in names if name))


def _plain(label: str) -> str:
    return label.strip().lower().replace("_", " ").replace("-", " ")
