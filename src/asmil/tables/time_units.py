"""The units of survival times, and the unit that the name of a column states."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

TimeUnit = Literal["days", "weeks", "months", "years"]
UNKNOWN_UNIT = "time units"
"""The unit of times if none is stated."""
TIME_COLUMNS = tuple(f"time_{unit}" for unit in get_args(TimeUnit))
"""Names of the column of times that state its unit."""
_NAMED = re.compile(r"(day|week|month|year)s(?![a-z])|(day|week|month|year)$")


def unit_in_name(column: str) -> TimeUnit | None:
    """The unit in the name of a column of times; None if there is none, or more than one.

    >>> unit_in_name("days_to_death"), unit_in_name("OS_MONTHS"), unit_in_name("Survival (years)"), unit_in_name("time")
    ('days', 'months', 'years', None)
    """
    named = {f"{first or second}s" for first, second in _NAMED.findall(column.strip().lower())}
    units: list[TimeUnit] = [unit for unit in get_args(TimeUnit) if unit in named]
    return units[0] if len(units) == 1 else None


def unit_in_words(unit: Any) -> str:
    """The unit in a run's settings, or neutral words if there is none."""
    return str(unit) if unit in get_args(TimeUnit) else UNKNOWN_UNIT
