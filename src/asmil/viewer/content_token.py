"""Tokens for addresses: browsers may cache answers, since another or a changed file has another token.

A token is made from the path, size and times of a file, without reading it. This includes the time of the last status
change (ctime), so that a file replaced by one of the same size and date is recognized.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from asmil.cohort.source import FeatureSource, source_state
from asmil.errors import AsmilError
from asmil.runs.layout import PREDICTIONS_FILE, TASK_FILE, RunLayout, is_finished
from asmil.slides.file_names import MIRAX_SUFFIX
from asmil.version import __version__

OF_RUN = ("config.yaml", "splits.csv", PREDICTIONS_FILE)
OF_TRAINING = (PREDICTIONS_FILE, TASK_FILE, "checkpoints/best.safetensors", "attention.h5")
TOKEN_LENGTH = 16

State = tuple[tuple[str, int, int, int], ...]


class Outdated(AsmilError):
    """A page requests something that has changed since the page was loaded."""


def token(*parts: object) -> str:
    """A short text that differs for different parts."""
    text = "\0".join(map(repr, (__version__, *parts)))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:TOKEN_LENGTH]


def file_state(path: Path) -> State:
    """Path, size and times of a file, or of all files of a folder; 0 for a missing file.

    The pixels of a .mrxs file are in the folder of its name.
    """
    return tuple(_stated(str(file)) for file in _files(path))


def features_state(source: FeatureSource | None) -> object:
    """A value that changes when features are written again."""
    if source is None:
        return None
    try:
        return str(source), source_state(source), [file_state(path) for path in source.paths if path.is_file()]
    except (AsmilError, OSError):
        return str(source), None


def run_token(layout: RunLayout) -> str:
    """A token that changes when a run is trained again, or when one of its trainings ends; not with every epoch."""
    files = [layout.path / name for name in OF_RUN]
    for _, _, folder in layout.trainings():
        if is_finished(folder):
            files += [folder / name for name in OF_TRAINING]
    return token("run", [_stated(str(file)) for file in files])


def _files(path: Path) -> Iterable[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    if path.suffix.lower() == MIRAX_SUFFIX:
        return [path, *_files(path.with_suffix(""))]
    return [path]


def _stated(path: str) -> tuple[str, int, int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
