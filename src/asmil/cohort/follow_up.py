"""Follow-up in the words of clinical tables: `Dead` and `Alive`, and the days that the GDC keeps in two columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from asmil.cohort.table import DOUBTFUL, EVENTS, is_missing
from asmil.tables.columns import Columns
from asmil.tables.names import folded

EVENT_WORDS = {
    **EVENTS,
    **dict.fromkeys(("dead", "deceased", "1:deceased", "1:dead", "event"), True),
    **dict.fromkeys(("alive", "living", "0:living", "0:alive", "censored"), False),
}
"""Values of an event column: asmil's, and words for survival of the GDC (`Dead`) and cBioPortal (`1:DECEASED`)."""
STATUS, DEATH = ("vital_status",), ("days_to_death",)
LAST_CONTACT = ("days_to_last_follow_up", "days_to_last_followup")
FOLLOW_UP = (*STATUS, *DEATH, *LAST_CONTACT)
"""Columns that state the outcome of a survival cohort."""


def with_follow_up(table: Columns) -> tuple[Columns, list[str]]:
    """The table with `time` and `event` (1 or 0) as far as it has them, and how they were read.

    Without a column `event`, it is `vital_status`. Of `days_to_death` and `days_to_last_follow_up`, a dead patient's
    time is the first and a living patient's the second; no column `time` is needed, or it is one of them. Unknown
    values become empty cells.
    """
    cells, notes = dict(table.cells), []
    status = "event" if "event" in cells else table.named(STATUS)
    death, last = table.named(DEATH), table.named(LAST_CONTACT)
    in_days = [name for name in (death, last) if name is not None]
    derives_time = bool(in_days) and ("time" not in cells or "time" in in_days)
    if status is None or not ("time" in cells or derives_time):
        return table, []
    events = [EVENT_WORDS.get(folded(cell)) for cell in cells[status]]
    if derives_time:
        rows = range(len(events))
        died, seen = (cells[name] if name is not None else [""] * len(events) for name in (death, last))
        cells["time"] = ["" if events[n] is None else died[n] if events[n] else seen[n] for n in rows]
        names = " and ".join(f"'{table.read_as.get(name, name)}'" for name in in_days)
        notes.append(f"'time' is in days, read from {names}")
    words = {cell: event for cell, event in zip(cells[status], events, strict=True) if event is not None}
    coded = sorted({f"'{cell}' is {event:d}" for cell, event in words.items() if folded(cell) not in EVENTS})
    if coded or status != "event":
        notes.append(f"'event' is read from '{table.read_as.get(status, status)}': {', '.join(coded) or '1 and 0'}")
    cells["event"] = [
        cell if event is None or folded(cell) in EVENTS else str(int(event))
        for cell, event in zip(cells[status], events, strict=True)
    ]
    for name, is_own in (("time", not derives_time), ("event", status == "event")):
        cells[name], note = _without_unknown(name, cells[name], is_own)
        notes += note
    return replace(table, cells=cells, computed_time_unit="days" if derives_time else None), notes


def _without_unknown(name: str, cells: Sequence[str], is_own: bool) -> tuple[list[str], list[str]]:
    """The cells with unknown values as empty ones, and a note with their number.

    is_own: it is a column of asmil, of which words for missing values are reported one by one
    """
    unknown = Counter(cell for cell in cells if folded(cell) in DOUBTFUL or (is_missing(cell) and not is_own))
    filled = ["" if cell in unknown else cell for cell in cells]
    words = ", ".join(map(repr, unknown))
    count = unknown.total() if is_own else filled.count("")
    return filled, [f"'{name}' is missing in {count} rows" + (f" ({words})" if words else "")] if count else []
