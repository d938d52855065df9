"""The runs of a comparison on their common rows, and their measures under draws of patients.

Every run sees the same draws. What a seed reaches under R draws of patients is computed once; drawing seeds then only
chooses among these values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.evaluation.bootstrap import number_patients
from asmil.evaluation.comparison.measures import MEASURES, Floats, Measure
from asmil.evaluation.comparison.pairing import Entrant, Rows

Integers = npt.NDArray[np.integer]
CELLS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Arena:
    """All runs on the rows they share; `parts`: for every measure the rows that are judged in one go."""

    rows: Rows
    entrants: Mapping[str, Entrant]
    measures: tuple[Measure, ...]
    parts: Mapping[str, Sequence[Integers]]

    @property
    def n_patients(self) -> int:
        """How many patients there are to draw."""
        return len(set(self.rows.patients))

    def per_seed(self, entrant: Entrant, measure: Measure) -> Floats:
        """S values: the measure of every seed, averaged over its parts."""
        return np.asarray(_part_values(self.rows, entrant, measure, self.parts[measure.name]).mean(axis=0))

    def per_fold(self, entrant: Entrant, measure: Measure) -> dict[int, float]:
        """The measure in every fold, averaged over seeds; nan where undefined."""
        values = _part_values(self.rows, entrant, measure, fold_parts(self.rows)).mean(axis=1)
        return dict(zip(np.unique(self.rows.folds).tolist(), values.tolist(), strict=True))

    def drawn(self, counts: Integers, entrants: Sequence[Entrant]) -> dict[tuple[str, str], Floats]:
        """R x S values of every run and measure when patients are drawn as `counts` (R x P) say.

        A draw in which any of them is undefined, such as one of a single class, is nan in all.
        """
        found = {
            (entrant.name, measure.name): _seed_values(self.rows, entrant, measure, self.parts[measure.name], counts)
            for entrant in entrants
            for measure in self.measures
        }
        undefined = np.isnan(np.concatenate(list(found.values()), axis=1)).any(axis=1)
        return {key: np.where(undefined[:, None], np.nan, values) for key, values in found.items()}


def make_arena(rows: Rows, entrants: Sequence[Entrant]) -> Arena:
    """The arena of the measures of the task; AsmilError where one is undefined."""
    measures = MEASURES[rows.kind]
    parts = {measure.name: _defined_parts(rows, entrants[0], measure) for measure in measures}
    return Arena(rows, {entrant.name: entrant for entrant in entrants}, measures, parts)


def fold_parts(rows: Rows) -> list[Integers]:
    """The rows of every fold, in order of the folds."""
    return [np.flatnonzero(rows.folds == fold) for fold in np.unique(rows.folds)]


def _defined_parts(rows: Rows, entrant: Entrant, measure: Measure) -> list[Integers]:
    """All rows at once, or fold by fold: where folds share slides or models must not be ranked together.

    Parts without a value are left out. That depends on the truth alone, so one run tells it for all.
    """
    joined = measure.joins_folds and not rows.folds_overlap
    parts = [np.arange(len(rows.slides))] if joined else fold_parts(rows)
    values = _part_values(rows, entrant, measure, parts)
    defined = [part for part, value in zip(parts, values, strict=True) if not np.isnan(value).any()]
    if not defined:
        raise AsmilError(
            f"{entrant.name}: {measure.title} is undefined, since all outcomes are alike (as that of slide "
            f"{rows.slides[0]}); compare runs that were evaluated on slides with different outcomes"
        )
    return defined


def _part_values(rows: Rows, entrant: Entrant, measure: Measure, parts: Sequence[Integers]) -> Floats:
    """Parts x S: the measure of every seed in every part; nan where undefined."""
    return np.array(
        [
            [
                measure.function(rows.truth[part], prediction[part], np.ones((1, len(part))))[0]
                for prediction in entrant.predictions
            ]
            for part in parts
        ]
    )


def _seed_values(rows: Rows, entrant: Entrant, measure: Measure, parts: Sequence[Integers], counts: Integers) -> Floats:
    """R x S values, averaged over the parts; nan where undefined in a part."""
    patient = number_patients(rows.patients.tolist())
    chunk = max(1, CELLS_AT_ONCE // max(len(part) for part in parts))
    values = np.empty((len(counts), len(entrant.seeds)))
    for start in range(0, len(counts), chunk):
        block = slice(start, start + chunk)
        weights = [counts[block][:, patient[part]].astype(np.float64) for part in parts]
        for index, prediction in enumerate(entrant.predictions):
            values[block, index] = np.mean(
                [
                    _measured(measure, rows.truth[part], prediction[part], weight)
                    for part, weight in zip(parts, weights, strict=True)
                ],
                axis=0,
            )
    return values


def _measured(measure: Measure, truth: npt.NDArray[np.generic], prediction: Floats, weights: Floats) -> Floats:
    """R values; nan where none of the part's patients was drawn."""
    drawn = weights.sum(axis=1) > 0
    found = np.full(len(weights), np.nan)
    found[drawn] = measure.function(truth, prediction, weights[drawn])
    return found
