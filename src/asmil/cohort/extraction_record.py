"""The extraction settings that `asmil extract` stores in a feature file; reading them does not need a slide reader."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from asmil.cohort.source import FeatureInfo
from asmil.documents import parse_json


class TissueRecord(BaseModel, extra="allow"):
    """The tissue of the slide. notes: findings to check, such as a dark background (fluorescence)."""

    notes: tuple[str, ...] = ()


class ExtractionRecord(BaseModel, extra="allow"):
    """The attribute `extraction` of a feature file.

    settings: the extraction settings, if they were stored
    slide: properties of the slide, including its size in bytes
    tissue: the amount of tissue, and notes
    """

    settings: dict[str, Any] | None = None
    slide: dict[str, Any] = Field(default_factory=dict)
    tissue: TissueRecord = TissueRecord()


def read_extraction(info: FeatureInfo) -> ExtractionRecord | None:
    """The record in a feature file; None if `asmil extract` did not write it."""
    if info.extraction is None:
        return None
    where = f"{info.source}: the attribute 'extraction'"
    return parse_json(info.extraction, ExtractionRecord, where, "extract this slide again")
