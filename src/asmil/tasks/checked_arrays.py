"""Validate the user's arrays: invalid classes or numbers, and different lengths, raise an error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tables.arrays import Booleans, Floats

Classes = npt.NDArray[np.intp]


def floats_of(name: str, values: npt.ArrayLike) -> Floats:
    """Values as float64; missing values (None, nan) become nan."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise AsmilError(f"{name}: give a plain array of numbers with rows of equal length") from error


def numbers_of(name: str, values: npt.ArrayLike) -> Floats:
    """Values as float64; a missing value is an error."""
    given = floats_of(name, values)
    if np.isnan(given).any():
        position = ", ".join(str(index) for index in np.argwhere(np.isnan(given))[0])
        raise AsmilError(f"{name}: the value at index {position} is missing (nan); remove it")
    return given


def classes_of(name: str, values: npt.ArrayLike, n_classes: int) -> Classes:
    """n class indices 0 .. K - 1; an error names the first invalid value."""
    if not isinstance(n_classes, int | np.integer) or n_classes < 1:
        raise AsmilError(f"n_classes is {n_classes!r}; give the number of classes of the task, an integer")
    try:
        given = np.asarray(values)
    except ValueError as error:
        raise AsmilError(f"{name}: give one class index per slide, not rows of different lengths") from error
    if given.ndim != 1 or given.size == 0:
        raise AsmilError(f"{name}: give one class index per slide, for at least one slide; the shape is {given.shape}")
    if given.dtype.kind not in "biuf":
        raise AsmilError(f"{name}: give class indices 0 to {n_classes - 1}, not {given.dtype} values")
    wrong = (given != np.floor(given)) | (given < 0) | (given >= n_classes)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise AsmilError(
            f"{name}: {given[index]} at index {index} is not a class index; with {n_classes} classes give 0 to "
            f"{n_classes - 1}"
        )
    return given.astype(np.intp)


def probabilities_of(target: npt.ArrayLike, probabilities: npt.ArrayLike) -> tuple[Classes, Floats]:
    """n class indices and n x K probabilities (or other scores) of the same slides."""
    scores = numbers_of("probabilities", probabilities)
    if scores.ndim != 2:
        raise AsmilError(f"probabilities: give one row per slide and one column per class; the shape is {scores.shape}")
    truth = classes_of("target", target, scores.shape[1])
    same_length(target=len(truth), probabilities=len(scores))
    return truth, scores


def same_length(**lengths: int) -> None:
    """Raise an error if arrays have different lengths."""
    if len(set(lengths.values())) > 1:
        lengths_given = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise AsmilError(f"the arrays have different lengths: {lengths_given}; give one value per slide in each")


def flags_of(name: str, values: npt.ArrayLike) -> Booleans:
    """Whether each value is not 0, in the given shape; a missing value is an error."""
    # masks of whole slides are large: boolean and integer arrays cannot have missing values, so skip the check
    whole = isinstance(values, np.ndarray) and values.dtype.kind in "biu"
    return (np.asarray(values) if whole else numbers_of(name, values)).astype(bool, copy=False)


def mask_of(name: str, values: npt.ArrayLike) -> Booleans:
    """H x W: whether each pixel is not 0."""
    mask = flags_of(name, values)
    if mask.ndim != 2:
        raise AsmilError(f"a {name} must have two axes, rows and columns; the shape is {mask.shape}")
    return mask


def corners_of(coords: npt.ArrayLike) -> Floats:
    """N x 2 upper left corners (x, y) of tiles, in level-0 pixels; N may be 0."""
    corners = numbers_of("coords", coords)
    if corners.size == 0:
        return np.zeros((0, 2))
    if corners.ndim != 2 or corners.shape[1] != 2:
        raise AsmilError(f"coords: give N rows of (x, y), the corners of tiles; the shape is {corners.shape}")
    if not np.isfinite(corners).all():
        raise AsmilError("coords: a tile has an infinite coordinate; give level-0 pixels")
    return corners


def one_per_tile(corners: Floats, values: npt.NDArray[np.generic], name: str) -> None:
    """Raise an error unless there is one value per tile."""
    if values.shape != (len(corners),):
        raise AsmilError(f"there are {len(corners)} tiles and {values.size} {name}; give one per tile")


def checked_outcomes(time: npt.ArrayLike, event: npt.ArrayLike) -> tuple[Floats, Booleans]:
    """n times and n events (1: observed, 0: censored) as arrays; checks that times are finite and non-negative."""
    times, observed = floats_of("time", time), floats_of("event", event)
    if times.ndim != 1 or times.shape != observed.shape:
        raise AsmilError(
            f"times have the shape {times.shape} and events {observed.shape}; give one time and one event per patient"
        )
    _refuse(~np.isfinite(times) | (times < 0), times, "time", "give a finite, non-negative time")
    _refuse((observed != 0) & (observed != 1), observed, "event", "give 1 for an event and 0 for a censored patient")
    return times, observed == 1


def _refuse(wrong: Booleans, values: Floats, field: str, remedy: str) -> None:
    if wrong.any():
        index = int(wrong.argmax())
        raise AsmilError(f"the {field} of patient {index} (counted from 0) is {values[index]:g}; {remedy}")
