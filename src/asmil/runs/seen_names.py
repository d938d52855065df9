"""Recognize slides and patients that a run was trained on by their names, also with a bundle.

A bundle contains hashes of the names. They are salted and slow to compute, so that lists of names cannot be compared
with many bundles at once, but whoever has the name of a patient can find out whether it is among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import pbkdf2_hmac, sha256

import numpy as np

from asmil.cohort.manifest import Slide
from asmil.cohort.tile_hashes import Hashes
from asmil.tables.columns import TCGA
from asmil.tables.names import folded

ROUNDS = 1000
"""Of the key derivation; about half a millisecond per name."""


def keys_of(slide: str, patient: str) -> dict[str, str]:
    """What a slide is recognized by: slide, patient and the patient in a TCGA barcode, each with its name."""
    keys = {f"slide {folded(slide)}": f"slide {slide}", f"patient {folded(patient)}": f"patient {patient}"}
    for name in (slide.rpartition("/")[2], patient):
        if barcode := TCGA.match(name):
            keys.setdefault(f"patient {folded(barcode[0])}", f"TCGA patient {barcode[0].upper()}")
    return keys


def hashed_names(patients: Mapping[str, str], salt: Hashes) -> Hashes:
    """The hashes of slides and their patients, ascending; salt: the hashes of tiles in the same bundle."""
    keys = {key for slide, patient in patients.items() for key in keys_of(slide, patient)}
    return np.array(sorted(_hash(key, salt) for key in keys), dtype=np.uint64)


def _hash(key: str, salt: Hashes) -> int:
    digest = pbkdf2_hmac("sha256", key.encode(), sha256(salt.tobytes()).digest(), ROUNDS, dklen=8)
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class SeenNames:
    """The names of slides and patients of a training: as keys, or as hashes with their salt."""

    keys: frozenset[str | int]
    salt: Hashes | None = None

    def recognize(self, slides: Iterable[Slide]) -> dict[str, str]:
        """By which name each slide that the training had is recognized."""
        known: dict[str, bool] = {}
        found: dict[str, str] = {}
        for slide in slides:
            # slides named after their patients have one name twice
            for key, name in keys_of(slide.slide, slide.patient).items():
                if key not in known:
                    known[key] = (key if self.salt is None else _hash(key, self.salt)) in self.keys
                if known[key]:
                    found.setdefault(slide.slide, name)
        return found
