"""Check inputs of statistical tests other than plain arrays: p-values, the patients of slides, and a seed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import Classes, numbers_of, same_length
from asmil.tasks.intervals import number_patients


def p_values_of(p: npt.ArrayLike) -> Floats:
    """p-values between 0 and 1; a missing one is an error, since the size of the family must be known."""
    given = numbers_of("p", p)
    if given.ndim != 1:
        raise AsmilError(f"p: give a plain list of p-values; the shape is {given.shape}")
    wrong = (given < 0) | (given > 1)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise AsmilError(f"p: {given[place]:g} at index {place} is not a p-value; give numbers from 0 to 1")
    return given


def units_of(patients: Sequence[Hashable] | npt.NDArray[np.generic] | None, n_slides: int) -> Classes:
    """The unit number of each of n slides; a unit (a patient, by sorted name, or a slide) is resampled as a whole."""
    if patients is None:
        return np.arange(n_slides)
    same_length(target=n_slides, patients=len(patients))
    names = list(patients)
    unnamed = [place for place, name in enumerate(names) if name is None or name != name]
    if unnamed:
        raise AsmilError(f"patients: the slide at index {unnamed[0]} has none; give the patient of every slide")
    return number_patients(names)


def generator_of(seed: int) -> np.random.Generator:
    """The random generator of a seed."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise AsmilError(f"seed is {seed!r}; give a non-negative integer")
    return np.random.Generator(np.random.PCG64(int(seed)))
