"""What all DICOM objects of asmil share: who made them, coded names, and new identifiers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import highdicom
from highdicom.sr import CodedConcept
from pydicom.sr.codedict import codes

from asmil.version import __version__

MANUFACTURER = "asmil"
SCHEME = "99ASMIL"
"""Coding scheme of names for which DICOM has no code; schemes that start with 99 are private."""
NO_UNIT = codes.UCUM.NoUnits
LONGEST_TEXT = 64
"""Characters of DICOM's type LO: code meanings, labels and descriptions."""
SERIES = {"image": 1, "map": 2, "annotations": 3, "report": 4}


@dataclass(frozen=True)
class Algorithm:
    """The model behind the values.

    name: of the method, or of the file of scores; version: of asmil
    """

    name: str
    version: str = __version__

    def identification(self) -> highdicom.AlgorithmIdentificationSequence:
        """The same for maps and annotations."""
        return highdicom.AlgorithmIdentificationSequence(
            name=clipped(self.name), family=codes.cid7162.ArtificialIntelligence, version=self.version
        )


def clipped(text: str) -> str:
    """The text without line breaks and backslashes, which separate values, in at most 64 characters."""
    return re.sub(r"[\\\s]+", " ", text).strip()[:LONGEST_TEXT]


def own_code(name: str) -> CodedConcept:
    """A code for a name of this run, such as a class or the kind of a map."""
    value = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"
    return CodedConcept(value[:LONGEST_TEXT], SCHEME, clipped(name))


def instance(kind: str, model: str) -> dict[str, Any]:
    """The arguments of highdicom's classes that identify a new object and its equipment. kind: a key of `SERIES`."""
    return {
        "series_instance_uid": highdicom.UID(),
        "series_number": SERIES[kind],
        "sop_instance_uid": highdicom.UID(),
        "instance_number": 1,
        "manufacturer": MANUFACTURER,
        "manufacturer_model_name": clipped(model),
        "software_versions": __version__,
        "device_serial_number": "none",
    }
