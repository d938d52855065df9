"""The folder of a synthetic cohort: its settings, and its manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.settings.folder_settings import claim_folder, differing_settings
from asmil.synthetic.plan import PlannedSlide

MANIFEST = "cohort.csv"


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
