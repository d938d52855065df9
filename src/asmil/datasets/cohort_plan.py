"""A cohort made of downloaded files: verified by checksums, and written so that an interrupted command resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from asmil.engine.jobs import Progress
from asmil.errors import AsmilError
from asmil.files import replacing
from asmil.synthetic.plan import MANIFEST, claim_cohort

SETTINGS_FILE = "dataset.yaml"
MADE = ("*.csv", "*.parquet", "features/*")


@dataclass(frozen=True)
class CohortPlan:
    """A cohort that is not written yet.

    table: the manifest
    digests: SHA-256 of the content of each part, whatever the format of the downloaded files
    write_features: writes the features of a slide to a path; None: the user has features of these slides
    suffix: of feature files
    tables: further tables by file name (CSV or Parquet)
    notes: what was not downloaded, and is missing in the cohort
    """

    table: pd.DataFrame
    digests: Mapping[str, str]
    write_features: Callable[[str, Path], None] | None = None
    suffix: str = ".npy"
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def digest(parts: Iterable[str | NDArray[Any]]) -> str:
    """SHA-256 of texts and arrays, with the shapes of the arrays."""
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            state.update(part.encode())
        else:
            state.update(str(part.shape).encode())
            state.update(np.ascontiguousarray(part).tobytes())
    return state.hexdigest()


def table_digest(table: pd.DataFrame) -> str:
    """SHA-256 of the rows of a table as text, in sorted order."""
    return digest(sorted(",".join(map(str, row)) + "\n" for row in table.itertuples(index=False)))


def bags_digest(bags: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of the features of slides by name."""
    return digest(part for slide in sorted(bags) for part in (slide, bags[slide]))


def array_writer(bags: Mapping[str, NDArray[Any]]) -> Callable[[str, Path], None]:
    """Writes features without coordinates as `.npy`."""

    def write(slide: str, path: Path) -> None:
        with replacing(path) as partial, partial.open("wb") as file:
            np.save(file, bags[slide])

    return write


@cache
def published_digests() -> dict[str, dict[str, str]]:
    """The digests of all cohorts, by `dataset/cohort` and part."""
    known: dict[str, dict[str, str]] = json.loads(files(__package__).joinpath("checksums.json").read_text("utf-8"))
    return known


def verify(plan: CohortPlan, name: str) -> None:
    """Raise if a part differs from the published one. name: `dataset/cohort`"""
    for part, found in plan.digests.items():
        published = published_digests()[name][part]
        if found != published:
            raise AsmilError(
                f"the {part} differ from the published ones (SHA-256 {found[:12]}..., published {published[:12]}...); "
                "download them again, or give --unverified to use them as they are"
            )


def write_cohort(plan: CohortPlan, name: str, folder: Path, again: bool, progress: Progress | None) -> Path:
    """Write what is missing of the cohort, the manifest last, and return the manifest. name: `dataset/cohort`"""
    noted = {"dataset": name, **plan.digests}
    claim_cohort(folder / SETTINGS_FILE, noted, "a cohort of a public data set", again, MADE)
    if plan.write_features is not None:
        for done, slide in enumerate(plan.table["slide"], start=1):
            path = folder / "features" / f"{slide}{plan.suffix}"
            if not path.is_file():
                plan.write_features(slide, path)
            if progress is not None:
                progress(done, len(plan.table))
    for file_name, table in {**plan.tables, MANIFEST: plan.table}.items():
        if not (folder / file_name).is_file():
            with replacing(folder / file_name) as partial:
                if file_name.endswith(".parquet"):
                    table.to_parquet(partial, index=False)
                else:
                    table.to_csv(partial, index=False)
    return folder / MANIFEST
