"""What templates of pages on costs read: measured times and memory, as text.

The functions without an underscore are the names that a template may use.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from records import record, spanned

from anchor_cost import COHORT, MIB, NORMALIZERS, percent
from markdown_table import markdown_table

MASKED = "mhim (transmil)"
"""The method whose step does not compute the scores of the whole bag."""


def measured_table(name: str) -> str:
    """A table that was measured once, from measured.json, where its machine, commit and command are."""
    found = record("measured.json")[name]
    return markdown_table(found["columns"], found["rows"], found.get("words", 1))


def ratios(name: str) -> str:
    """The range of the last column of a table of measured.json."""
    return spanned(float(row[-1]) for row in record("measured.json")[name]["rows"])


def reading_ratios(key: str) -> str:
    """The range of a ratio of reading speeds over kinds of tiles and numbers of processes."""
    by_processes = record("reading_speed_cpu.json")["tiles_per_second"].values()
    return spanned(case[key] for cases in by_processes for case in cases.values())


def anchor_overhead(device: str, tiles: int) -> str:
    """What the anchor adds to time and memory of a step: median over methods, and range without MHIM on TransMIL."""
    cells = []
    for ratio in (_time_ratio, _memory_ratio):
        added = {row["label"]: ratio(row) for row in _anchor_rows(device, tiles)}
        others = [value for label, value in added.items() if label != MASKED]
        cells += [percent(median(added.values())), f"{percent(min(others))[:-2]} to {percent(max(others))}"]
    return " | ".join(cells)


def over_scores(device: str, tiles: int) -> str:
    """The median of the time that the anchor adds, in units of the time of the scores alone."""
    return f"{median(row['extra_over_scores'] for row in _anchor_rows(device, tiles)):.1f}"


def masked_overhead(device: str, tiles: int) -> tuple[str, str]:
    """What the anchor adds to time and memory of MHIM on TransMIL."""
    (row,) = (row for row in _anchor_rows(device, tiles) if row["label"] == MASKED)
    return percent(_time_ratio(row)), percent(_memory_ratio(row))


def kept_between_steps(method: str) -> tuple[str, str]:
    """MB of the averages of temporal ensembling and of the anchor, as in the table of all methods."""
    (row,) = (row for row in _anchor_rows("cpu", 2_000) if row["label"] == method)
    averages = row["temporal_bytes"] / row["tiles"] * COHORT[0] * COHORT[1]
    return f"{averages / MIB:.0f}", f"{row['anchor_bytes'] / MIB:.2f}"


def normalizers_over_nsf(device: str, method: str) -> str:
    """Time of a step with 10,000 tiles by the anchor's normalizer, compared with NSF."""
    found = record(f"anchor_cost_{device}.json")["normalizers"]
    (row,) = (row for row in found if (row["method"], row["tiles"]) == (method, 10_000))
    return " | ".join(percent(row["over_nsf"][name]) for name in NORMALIZERS if name != "nsf")


def _anchor_rows(device: str, tiles: int) -> list[dict[str, Any]]:
    return [row for row in record(f"anchor_cost_{device}.json")["methods"] if row["tiles"] == tiles]


def _time_ratio(row: dict[str, Any]) -> float:
    return float(row["time_ratio"])


def _memory_ratio(row: dict[str, Any]) -> float:
    return float(row["anchored_mb"] / row["plain_mb"])
