"""Bundles: runs to share, with models, settings and a model card, but without names or data of slides and patients.

A bundle is a folder with the layout of a run. Its `bundle.json` lists every file with its SHA-256, so that missing and
changed files are detected, and contains the metrics of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, FiniteFloat

from asmil.errors import AsmilError
from asmil.files import write_json
from asmil.settings.documents import read_json
from asmil.settings.made_from import sha256
from asmil.version import __version__

BUNDLE_FILE = "bundle.json"
FORMAT = 1
_REMEDY = "copy the bundle again, or export the run again"


class BundleMetric(BaseModel):
    """A metric of the test set with its 95 % confidence interval; None if it is undefined."""

    title: str
    value: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None


class BundleAlarm(BaseModel):
    """An alarm of the run: its kind, the finding with its meaning, what to try, and which trainings if not all."""

    kind: str
    text: str
    advice: str
    extent: str = ""


class Bundle(BaseModel):
    """The content of `bundle.json`.

    files: SHA-256 of every other file, by its path in the bundle
    metrics: metrics of the test set, by name; sizes: the size of the test set, as text
    alarms: of the run when it was exported; the recorded attention that raised them is not in the bundle
    """

    format: Annotated[int, Field(ge=1)]
    asmil: str
    files: Mapping[str, str]
    metrics: Mapping[str, BundleMetric]
    sizes: str
    alarms: tuple[BundleAlarm, ...] = ()


def is_bundle(path: Path) -> bool:
    """Whether a folder is a bundle rather than a run folder."""
    return (path / BUNDLE_FILE).is_file()


def refuse_bundle(path: Path) -> None:
    """Raise if a bundle is given where data about single slides are needed."""
    if is_bundle(path):
        raise AsmilError(
            f"{path} is a bundle: it has models and metrics, but nothing about single slides; give the run that it was "
            "exported from, or predict slides with the bundle"
        )


def read_bundle_file(path: Path) -> Bundle:
    """Read `bundle.json` alone."""
    return read_json(path / BUNDLE_FILE, Bundle, _REMEDY)


def read_bundle(path: Path) -> Bundle:
    """Read `bundle.json` and compare all files with it; AsmilError names a file that is missing or changed."""
    bundle = read_bundle_file(path)
    if bundle.format > FORMAT:
        raise AsmilError(f"{path / BUNDLE_FILE}: it was written by asmil {bundle.asmil}; update asmil to use it")
    for name, digest in bundle.files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise AsmilError(f"{path / BUNDLE_FILE}: '{name}' is outside the bundle; {_REMEDY}")
        file = path / name
        if not file.is_file():
            raise AsmilError(f"{file} is missing from the bundle; {_REMEDY}")
        if sha256(file) != digest:
            raise AsmilError(f"{file} has changed since the export (its SHA-256 differs); {_REMEDY}")
    return bundle


def seal_bundle(
    folder: Path,
    metrics: Mapping[str, BundleMetric] | None = None,
    sizes: str = "",
    alarms: tuple[BundleAlarm, ...] = (),
) -> None:
    """Write `bundle.json` for the files of a folder, which makes it a bundle."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    checksums = {path.relative_to(folder).as_posix(): sha256(path) for path in files}
    bundle = Bundle(
        format=FORMAT, asmil=__version__, files=checksums, metrics=metrics or {}, sizes=sizes, alarms=alarms
    )
    write_json(folder / BUNDLE_FILE, bundle.model_dump(mode="json"))
