"""What `asmil extract` notes in a feature file: the settings, the slide, the tissue."""

from __future__ import annotations

import json
from typing import Any

from asmil.cohort.problems import fail
from asmil.cohort.source import FeatureInfo


def extraction_record(info: FeatureInfo) -> dict[str, Any] | None:
    """The record in a feature file; None if it has none."""
    if info.extraction is None:
        return None
    record = _parsed(info.extraction)
    if record is None:
        what = "the attribute 'extraction' is no record of `asmil extract`"
        fail(info.source, what, "the file may be damaged: copy it again or extract the slide again")
    return record


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("settings", {}), dict) else None
