"""What synthetic cohorts of features and of slides share: their slides, the random streams, and their folder.

Slide 7 must be the same slide in a cohort of 10 and of 1,000. So nothing is drawn from one long stream: each tissue,
site, patient and slide has its own stream, identified by the seed and by its numbers, and slides are assigned to the
parts of a cohort by quota.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.settings.folder_settings import claim_folder, differing_settings

MANIFEST = "cohort.csv"


@dataclass(frozen=True, slots=True)
class PlannedSlide:
    """The name, patient, split and site of a slide that is not drawn yet; sites are counted from 0."""

    index: int
    slide: str
    patient: str
    split: str
    site: int

    @property
    def site_name(self) -> str:
        """The site as it is written into the manifest, counted from 1."""
        return f"site-{self.site + 1}"


def generator(seed: int, stream: int, *address: int) -> np.random.Generator:
    """The generator of a random stream. stream: what it is for; address: the numbers of its tissue, site, slide, ..."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, *address))))


def log_uniform(rng: np.random.Generator, low: float, high: float, size: int | None = None) -> Any:
    """A number whose logarithm is uniform, or `size` of them."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def parts_by_quota(slides: int, quota: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The part of every slide, and its rank in the part.

    Each slide goes to the part that is furthest below its quota, so the first n slides are shared out like n slides.

    >>> [part for part, _ in parts_by_quota(5, {"train": 3, "test": 2})]
    ['train', 'test', 'train', 'test', 'train']
    """
    total = sum(quota.values())
    taken = dict.fromkeys(quota, 0)
    for done in range(1, slides + 1):
        part = max(taken, key=lambda name: quota[name] * done - total * taken[name])
        yield part, taken[part]
        taken[part] += 1


def slide_name(index: int) -> str:
    """The name of a slide, counted from 0."""
    return f"slide-{index:04d}"


def patient_name(first_slide: int) -> str:
    """The name of a patient, after the first of the patient's slides."""
    return f"patient-{first_slide:04d}"


def claim_cohort(note: Path, settings: Mapping[str, Any], holds: str, again: bool, made: Sequence[str]) -> None:
    """Write the settings into the folder, or raise if it contains a cohort with different settings.

    note: the file of the settings; holds: what the folder contains, for messages
    again: remove a cohort with different settings instead; made: patterns of its files
    """
    folder = note.parent
    if not note.is_file() and (folder / MANIFEST).exists():
        raise AsmilError(
            f"{folder} contains a {MANIFEST} but no {note.name}, so it does not hold {holds}; choose an empty folder"
        )
    if again and differing_settings(note, settings):
        # the manifest first: without it the cohort counts as unfinished
        for pattern in (MANIFEST, *made):
            for path in folder.glob(pattern):
                path.unlink()
    claim_folder(note, settings, holds, again)


def write_manifest(
    folder: Path,
    plans: Sequence[PlannedSlide],
    outcome: Mapping[str, Sequence[Any]],
    more: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write `cohort.csv` and return its path; more: further columns."""
    columns = {
        "slide": [plan.slide for plan in plans],
        "patient": [plan.patient for plan in plans],
        **outcome,
        "split": [plan.split for plan in plans],
        "site": [plan.site_name for plan in plans],
        **(more or {}),
    }
    write_text(folder / MANIFEST, pd.DataFrame(columns).to_csv(index=False))
    return folder / MANIFEST
