"""Check inputs of statistical tests other than plain arrays: the patients of slides, and a seed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tasks.checked_arrays import Classes, same_length
from asmil.tasks.intervals import number_patients


def units_of(patients: Sequence[Hashable] | npt.NDArray[np.generic] | None, n_slides: int) -> Classes:
    """The unit number of each of n slides; a unit (a patient, by sorted name, or a slide) is resampled as a whole."""
    if patients is None:
        return np.arange(n_slides)
    same_length(target=n_slides, patients=len(patients))
    names = list(patients)
    unnamed = [index for index, name in enumerate(names) if name is None or name != name]
    if unnamed:
        raise AsmilError(f"patients: the slide at index {unnamed[0]} has none; give the patient of every slide")
    return number_patients(names)


def generator_of(seed: int) -> np.random.Generator:
    """The random generator of a seed."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise AsmilError(f"seed is {seed!r}; give a non-negative integer")
    return np.random.Generator(np.random.PCG64(int(seed)))
