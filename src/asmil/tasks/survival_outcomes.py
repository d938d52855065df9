"""Validate the times and events of patients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tasks.checked_arrays import Floats, floats_of

Flags = npt.NDArray[np.bool_]


def checked_outcomes(time: npt.ArrayLike, event: npt.ArrayLike) -> tuple[Floats, Flags]:
    """n times and n events (1: observed, 0: censored) as arrays; checks that times are finite and non-negative."""
    times, observed = floats_of("time", time), floats_of("event", event)
    if times.ndim != 1 or times.shape != observed.shape:
        raise AsmilError(
            f"times have the shape {times.shape} and events {observed.shape}; give one time and one event per patient"
        )
    _refuse(~np.isfinite(times) | (times < 0), times, "time", "give a finite, non-negative time")
    _refuse((observed != 0) & (observed != 1), observed, "event", "give 1 for an event and 0 for a censored patient")
    return times, observed == 1


def _refuse(wrong: Flags, values: Floats, field: str, remedy: str) -> None:
    if wrong.any():
        place = int(wrong.argmax())
        raise AsmilError(f"the {field} of patient {place} (counted from 0) is {values[place]:g}; {remedy}")
