"""Cohorts without files behind them, for tests of outcomes and splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asmil.cohort.manifest import Cohort, Slide
from asmil.cohort.source import FeatureSource


def cohort_of(patients: list[dict[str, Any]], slides_each: int = 1) -> Cohort:
    """A cohort of patients p000, p001, ..., each with so many slides that all have the patient's fields."""
    rows = [
        Slide(
            f"p{number:03d}-{place}",
            f"p{number:03d}",
            fields.get("label"),
            FeatureSource(Path(f"p{number:03d}-{place}.h5")),
            **{name: value for name, value in fields.items() if name != "label"},
        )
        for number, fields in enumerate(patients)
        for place in range(slides_each)
    ]
    return Cohort(Path("cohort.csv"), tuple(rows))


def lived(n: int, events: int, **fields: Any) -> list[dict[str, Any]]:
    """n patients of whom the first so many had an event."""
    return [{"time": float(3 + 7 * i % 50), "event": i < events, **fields} for i in range(n)]
