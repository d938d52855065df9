"""Survival outcomes and curves with the conventions of scikit-survival, which is not required."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError
from asmil.tasks.checked_arrays import Floats
from asmil.tasks.survival_outcomes import checked_outcomes

_EXAMPLE = "np.array([(True, 12.5), (False, 30.0)], dtype=[('event', bool), ('time', float)])"


def times_and_events(y: Any) -> Floats:
    """n x 2 times and events from a structured array whose two fields are the event (boolean) and the time.

    A data frame with the columns `event` and `time` is also accepted.
    """
    if isinstance(y, pd.DataFrame) and {"event", "time"} <= set(y.columns):
        event, time = y["event"].to_numpy(), y["time"].to_numpy()
    else:
        fields = getattr(getattr(y, "dtype", None), "names", None)
        if fields is None or len(fields) != 2:
            raise AsmilError(
                f"y is not a structured array with two fields, the event and the time; give e.g. {_EXAMPLE}"
            )
        event, time = y[fields[0]], y[fields[1]]
        if event.dtype != bool:
            raise AsmilError(
                f"y: its first field {fields[0]!r} has the type {event.dtype}, but it must be the event as a boolean; "
                f"give e.g. {_EXAMPLE}"
            )
    times, events = checked_outcomes(time, event)
    return np.column_stack([times, events.astype(np.float64)])


class StepFunction:
    """A step function with scikit-survival's interface: `y[k]` from `x[k]` on, `before` up to `x[0]`.

    >>> curve = StepFunction([1.0, 2.0], [0.8, 0.5], before=1.0)
    >>> curve([0.0, 1.5, 7.0]).tolist()
    [1.0, 0.8, 0.5]
    """

    def __init__(self, x: npt.ArrayLike, y: npt.ArrayLike, before: float) -> None:
        self.x = np.asarray(x, dtype=np.float64)
        self.y = np.asarray(y, dtype=np.float64)
        self.before = before

    @property
    def domain(self) -> tuple[float, float]:
        """From 0 to the last time; the function is constant after it."""
        return 0.0, float(self.x[-1])

    def __call__(self, times: npt.ArrayLike) -> Any:
        """The values at the given times; a single number for a single time."""
        steps = np.r_[self.before, self.y]
        return steps[np.searchsorted(self.x, np.asarray(times, dtype=np.float64), side="right")]

    def __repr__(self) -> str:
        return f"StepFunction(x={self.x!r}, y={self.y!r})"
