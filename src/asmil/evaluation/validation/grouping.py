"""Variables that divide patients into subgroups: `site,sex,age:50,70`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from asmil.cohort.table import is_missing, number
from asmil.errors import AsmilError

MOST_NUMBERS = 12
"""A column with more different numbers needs cuts."""


@dataclass(frozen=True)
class Variable:
    """A column of the manifest; numbers are cut into ranges, each with its lower end.

    >>> [Variable("age", (50.0, 70.0)).group(cell) for cell in ("49.9", "50", "71", "")]
    ['below 50', '50 to below 70', '70 or above', None]
    """

    name: str
    cuts: tuple[float, ...] = ()

    def group(self, cell: str | None) -> str | None:
        """The group of a cell; None if it is missing."""
        if cell is None or is_missing(cell) or not cell.strip():
            return None
        if not self.cuts:
            return cell
        value = number(cell)
        if value is None:
            raise AsmilError(f"--by {self.name}: '{cell}' is not a number, so it cannot be cut; correct the table")
        place = bisect_right(self.cuts, value)
        if place == 0:
            return f"below {self.cuts[0]:g}"
        if place == len(self.cuts):
            return f"{self.cuts[-1]:g} or above"
        return f"{self.cuts[place - 1]:g} to below {self.cuts[place]:g}"

    @property
    def order(self) -> dict[str, int]:
        """The ranges in ascending order."""
        ends = [self.cuts[0] - 1, *self.cuts] if self.cuts else []
        return {str(self.group(repr(end))): place for place, end in enumerate(ends)}

    def refuse_uncut(self, cells: Sequence[str]) -> None:
        """Raise if a column contains many different numbers and no cuts are given."""
        filled = {cell for cell in cells if not is_missing(cell) and cell.strip()}
        if not filled:
            raise AsmilError(f"--by {self.name}: all cells of this column are empty; leave it out")
        numbers = [value for cell in filled if (value := number(cell)) is not None]
        coded = self.name == "site"  # sites are often numbered
        if not self.cuts and not coded and len(numbers) == len(filled) > MOST_NUMBERS:
            middle = sorted(numbers)[len(numbers) // 2]
            raise AsmilError(
                f"--by {self.name}: the column has {len(filled)} different numbers; give cuts, e.g. "
                f"{self.name}:{middle:g}"
            )


def parse_variables(text: str | Sequence[str]) -> tuple[Variable, ...]:
    """Variables from `site,sex,age:50,70` or a list of them; numbers after a colon are cuts.

    >>> parse_variables("site,age:50,70,scanner")[1]
    Variable(name='age', cuts=(50.0, 70.0))
    """
    variables: list[tuple[str, list[str]]] = []
    for word in (text if isinstance(text, str) else ",".join(text)).split(","):
        name, colon, first = map(str.strip, word.partition(":"))
        if not colon and variables and variables[-1][1] and number(name) is not None:
            variables[-1][1].append(name)
        elif name:
            variables.append((name, [first] if colon else []))
    names = [name for name, _ in variables]
    for name, cuts in variables:
        numbers = [value for cut in cuts if (value := number(cut)) is not None]
        if len(numbers) < len(cuts) or numbers != sorted(set(numbers)):
            raise AsmilError(f"--by {name}:{','.join(cuts)}: give cuts as increasing numbers, as in age:50,70")
        if names.count(name) > 1:
            raise AsmilError(f"--by {name} is given twice; give each column once")
    return tuple(Variable(name, tuple(map(float, cuts))) for name, cuts in variables)
