"""Clinical covariates: columns of the manifest as numbers, by an encoder that is fitted on training patients only.

A number x becomes (x - mean) / sd; a missing one becomes the median. A category becomes one column per level, 1 for its
level and 0 for the others, minus the share of the level; a missing category becomes the most frequent one. If values
are missing in training, a further column marks them: 1 if missing, else 0, minus their share. All columns therefore
have the mean 0 over the training bags (before imputation), and a vector of zeros is the average patient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from asmil.cohort.problems import fail, listed
from asmil.cohort.table import DOUBTFUL, is_missing, number
from asmil.errors import AsmilError
from asmil.reporting.formats import format_count
from asmil.tables.arrays import Floats
from asmil.tables.names import folded, lookalikes, spelled

if TYPE_CHECKING:
    from asmil.cohort.units import Unit

CovariateKind = Literal["number", "category"]
Cells = Mapping[str, str]
"""The covariates of one bag as text, by name; an empty cell is a missing value."""
MOST_LEVELS = 30
FAR_OUTSIDE = 6.0
"""Standard deviations from the mean of the training bags, from which on a number is reported."""
SHOWN_LEVELS = 6


@dataclass(frozen=True)
class Covariate:
    """A column of the manifest; kind: None if its values decide."""

    name: str
    kind: CovariateKind | None = None

    def __str__(self) -> str:
        return self.name if self.kind is None else f"{self.name}:{self.kind}"


def parse_covariates(words: Iterable[str]) -> tuple[Covariate, ...]:
    """The covariates of a setting; `stage:category` states the kind.

    >>> [str(covariate) for covariate in parse_covariates(["age", "stage:category"])]
    ['age', 'stage:category']
    """
    covariates = []
    for word in words:
        name, colon, kind = (part.strip() for part in word.rpartition(":"))
        if not colon or kind not in get_args(CovariateKind):
            name, kind = word.strip(), ""
        if not name:
            raise AsmilError(f"covariate {word!r} has no name; write the names of columns, e.g. age,sex,stage:category")
        covariates.append(Covariate(name, "number" if kind == "number" else "category" if kind else None))
    names = Counter(covariate.name for covariate in covariates)
    if twice := [name for name, count in names.items() if count > 1]:
        raise AsmilError(f"covariate '{twice[0]}' is given twice; give it once")
    return tuple(covariates)


def with_kinds(path: Path, units: Sequence[Unit], covariates: Sequence[Covariate]) -> tuple[Covariate, ...]:
    """The covariates with their kinds; values that cannot be used are an error that names the column.

    path: the manifest, for errors
    """
    return tuple(_with_kind(path, units, covariate) for covariate in covariates)


def _with_kind(path: Path, units: Sequence[Unit], covariate: Covariate) -> Covariate:
    name = covariate.name
    _refuse_contradictions(path, units, name)
    cells = [unit.slides[0].covariates[name] for unit in units]
    values = [cell for cell in cells if not is_empty(cell)]
    if not values:
        fail(path, f"the covariate '{name}' has no values", "leave it out")
    texts = [cell for cell in values if number(cell) is None and folded(cell) not in DOUBTFUL]
    numbers = [cell for cell in values if number(cell) is not None]
    if not texts and not numbers and covariate.kind != "category":
        what = f"the covariate '{name}' has only {listed(sorted(set(values)))}"
        fail(path, what, f"leave it out, or give {name}:category")
    if covariate.kind == "number" or (covariate.kind is None and texts and numbers):
        if texts:
            what = f"the covariate '{name}' has numbers, but also {listed(sorted(set(texts)))}"
            fail(path, what, f"correct these cells, empty them if they are unknown, or give {name}:category")
        return Covariate(name, "number")
    if covariate.kind is None and not texts:
        return Covariate(name, "number")
    levels = set(values)
    if spellings := lookalikes(sorted(levels)):
        fail(path, f"the covariate '{name}' spells one level in several ways: {spelled(spellings[0])}", "use one")
    if len(levels) > MOST_LEVELS:
        what = f"the covariate '{name}' has {len(levels)} different texts, more than the {MOST_LEVELS} of a category"
        fail(path, what, "join rare levels, or leave it out")
    return Covariate(name, "category")


def _refuse_contradictions(path: Path, units: Sequence[Unit], name: str) -> None:
    for unit in units:
        cells = sorted({slide.covariates[name] for slide in unit.slides})
        if len(cells) > 1:
            what = f"the slides of patient '{unit.patient}' differ in the covariate '{name}' ({listed(cells)})"
            fail(path, what, "give all slides of a patient the same value, or predict slides (data.unit=slide)")


def is_empty(cell: str) -> bool:
    """Whether a cell has no value."""
    return not cell or is_missing(cell)


def describe_covariates(units: Sequence[Unit], covariates: Sequence[Covariate]) -> list[str]:
    """One line for each covariate: its kind, its values, and how many are missing."""
    lines = []
    for covariate in covariates:
        cells = [unit.slides[0].covariates[covariate.name] for unit in units]
        if covariate.kind == "number":
            known = [value for value in map(number, cells) if value is not None]
            about, n_known = f"{min(known):g} to {max(known):g}", len(known)
        else:
            counts = Counter(cell for cell in cells if not is_empty(cell))
            shown = ", ".join(f"{level} {count}" for level, count in counts.most_common(SHOWN_LEVELS))
            about, n_known = shown + ", ..." * (len(counts) > SHOWN_LEVELS), counts.total()
        missing = len(cells) - n_known
        imputed = (
            f"; missing in {missing} of {format_count(len(cells), 'bag')}, imputed in each fold" if missing else ""
        )
        lines.append(f"covariate {covariate.name}: {covariate.kind} ({about}){imputed}")
    return lines


class _Column(BaseModel):
    """What is common to the columns.

    missing: share of the training bags without a value; 0: no column marks missing values
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    missing: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0.0

    @property
    def _mark(self) -> tuple[str, ...]:
        return (f"{self.name} missing",) if self.missing else ()

    def _marked(self, values: list[float], is_known: bool) -> list[float]:
        return [*values, *([(0.0 if is_known else 1.0) - self.missing] if self.missing else [])]


def _unused(name: str) -> str:
    return f"{name} is not used, since no training bag has a value"


class NumberColumn(_Column):
    """A number, standardized by the training bags; an sd of 0 means that they all have the same value."""

    kind: Literal["number"] = "number"
    mean: FiniteFloat
    sd: Annotated[FiniteFloat, Field(ge=0)]
    median: FiniteFloat

    @classmethod
    def fit(cls, name: str, cells: Sequence[str]) -> NumberColumn:
        """The column of some training bags."""
        known = [value for value in map(number, cells) if value is not None] or [0.0]
        missing = sum(number(cell) is None for cell in cells) / len(cells)
        return cls(name=name, mean=fmean(known), sd=pstdev(known), median=median(known), missing=missing)

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.name, *self._mark)

    def encode(self, cell: str) -> list[float]:
        """The numbers of one cell."""
        value = number(cell)
        scaled = ((self.median if value is None else value) - self.mean) / self.sd if self.sd else 0.0
        return self._marked([scaled], value is not None)

    def doubt(self, cell: str) -> str:
        """Why a cell may be misread; empty if there is no reason."""
        value = number(cell)
        if self.missing == 1:
            return _unused(self.name)
        if value is None:
            text = f" ('{cell}')" if cell and not is_missing(cell) and folded(cell) not in DOUBTFUL else ""
            return f"{self.name} is missing{text}, so the median {self.median:g} is used"
        if self.sd and abs(value - self.mean) > FAR_OUTSIDE * self.sd:
            return f"{self.name} = {value:g} is far from the training bags (mean {self.mean:g}, sd {self.sd:g})"
        return ""


class CategoryColumn(_Column):
    """A category: its levels in training, and their shares of the training bags with a value."""

    kind: Literal["category"] = "category"
    levels: tuple[str, ...]
    shares: tuple[FiniteFloat, ...]

    @classmethod
    def fit(cls, name: str, cells: Sequence[str]) -> CategoryColumn:
        """The column of some training bags."""
        counts = Counter(cell for cell in cells if not is_empty(cell))
        levels, total = tuple(sorted(counts)), counts.total()
        shares = tuple(counts[level] / total for level in levels)
        return cls(name=name, levels=levels, shares=shares, missing=1 - total / len(cells))

    @property
    def labels(self) -> tuple[str, ...]:
        return (*(f"{self.name} = {level}" for level in self.levels), *self._mark)

    @property
    def most_frequent(self) -> str | None:
        return max(zip(self.shares, self.levels, strict=True), default=(0.0, None), key=lambda pair: pair[0])[1]

    def encode(self, cell: str) -> list[float]:
        """The numbers of one cell; a level that is not in the training bags counts as missing."""
        is_known = cell in self.levels
        used = cell if is_known else self.most_frequent
        pairs = zip(self.levels, self.shares, strict=True)
        return self._marked([float(level == used) - share for level, share in pairs], is_known)

    def doubt(self, cell: str) -> str:
        """Why a cell may be misread; empty if there is no reason."""
        if self.missing == 1:
            return _unused(self.name)
        if cell in self.levels:
            return ""
        what = f"{self.name} is missing" if is_empty(cell) else f"{self.name} = '{cell}' is not in the training bags"
        return f"{what}, so '{self.most_frequent}' is used"


class CovariateEncoder(BaseModel):
    """From the covariates of bags to n x E numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: tuple[Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")], ...]

    @classmethod
    def fit(cls, covariates: Sequence[Covariate], train: Sequence[Cells]) -> CovariateEncoder:
        """The encoder of some training bags, for covariates whose kinds are known."""
        columns: list[NumberColumn | CategoryColumn] = []
        for covariate in covariates:
            cells = [row[covariate.name] for row in train]
            column = NumberColumn if covariate.kind == "number" else CategoryColumn
            columns.append(column.fit(covariate.name, cells))
        return cls(columns=tuple(columns))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the covariates."""
        return tuple(column.name for column in self.columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the E numbers."""
        return tuple(label for column in self.columns for label in column.labels)

    def encode(self, rows: Sequence[Cells]) -> Floats:
        """n x E numbers."""
        encoded = [[value for column in self.columns for value in column.encode(row[column.name])] for row in rows]
        return np.array(encoded, dtype=np.float64).reshape(len(rows), len(self.labels))

    def doubts(self, row: Cells) -> list[str]:
        """Values of a bag that are missing, unknown or far from those of the training, one phrase each."""
        return [doubt for column in self.columns if (doubt := column.doubt(row[column.name]))]
