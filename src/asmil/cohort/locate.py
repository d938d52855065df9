"""Find the feature file of a slide by the slide's name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from asmil.cohort.magnifications import magnification_folders
from asmil.cohort.pack.files import is_pack
from asmil.cohort.pack.reading import Pack
from asmil.cohort.problems import fail
from asmil.cohort.reader import slide_groups
from asmil.cohort.source import FeatureSource
from asmil.cohort.zarr_stores import is_zarr_store
from asmil.errors import AsmilError
from asmil.tables.names import FEATURE_SUFFIXES, file_in

# the last match wins, so the folder itself is preferred to CLAM's subfolders
PLACES = (("pt_files", ".pt"), ("h5_files", ".h5"), *(("", suffix) for suffix in reversed(FEATURE_SUFFIXES)))
# subfolders that belong to the parent folder, or contain only coordinates (CLAM, TRIDENT)
NOT_SEARCHED = ("pt_files", "h5_files", "patches")


def find_features(path: Path) -> dict[str, FeatureSource]:
    """All slides, by name, of a folder of feature files (or CLAM's two subfolders), a cohort file or a pack.

    In a folder of several magnifications, the slides of the finest one; a slide that another lacks fails when it is
    read.
    """
    if path.is_file():
        groups = slide_groups(path)
        if not groups:
            fail(path, "the file does not have one group per slide", "give a folder of feature files, or a cohort file")
        return {name: FeatureSource(path, name) for name in groups}
    if is_pack(path):
        return {name: FeatureSource(path, name) for name in Pack.open(path).entries}
    if not path.is_dir():
        fail(path, "the folder of features does not exist", "fix the path or extract the features first")
    if is_zarr_store(path):
        return {path.stem: FeatureSource(path)}
    if folders := magnification_folders(path):
        return _joined(folders)
    return _in_folder(path)


def extracted_features(folder: Path, slide: str) -> FeatureSource:
    """The features of a slide that `asmil extract` wrote into a folder."""
    folders = magnification_folders(folder) or [folder]
    finest, *coarser = (FeatureSource(file_in(part, slide, ".h5")) for part in folders)
    return replace(finest, coarser=tuple(coarser))


def _joined(folders: Sequence[Path]) -> dict[str, FeatureSource]:
    (_, finest), *coarser = ((folder, find_features(folder)) for folder in folders)
    return {
        slide: replace(
            source,
            coarser=tuple(there.get(slide) or FeatureSource(folder / f"{slide}.h5") for folder, there in coarser),
        )
        for slide, source in finest.items()
    }


def find_nested_features(folder: Path) -> dict[str, list[FeatureSource]]:
    """All slides in the subfolders of a folder, by name; a slide may be in several of them.

    TRIDENT creates one subfolder per encoder; STAMP keeps the subfolders of the slides.
    """
    sources: dict[str, list[FeatureSource]] = {}
    seen = {folder.resolve()}
    for parent, subfolders, _ in os.walk(folder, followlinks=True):
        subfolders[:] = sorted(name for name in subfolders if _may_hold_features(Path(parent, name), seen))
        for name in subfolders:
            for slide, source in _in_folder(Path(parent, name)).items():
                sources.setdefault(slide, []).append(source)
    return sources


def _may_hold_features(folder: Path, seen: set[Path]) -> bool:
    """Whether to search a folder: not those of coordinates or slide vectors, and no folder twice through a link."""
    name = folder.name
    if name.startswith((".", "slide_features")) or name in NOT_SEARCHED or is_zarr_store(folder) or is_pack(folder):
        return False
    real = folder.resolve()
    is_new = real not in seen
    seen.add(real)
    return is_new


def _in_folder(folder: Path) -> dict[str, FeatureSource]:
    sources = {}
    for subfolder, suffix in PLACES:
        # names that begin with a dot are partial files, or files added by macOS
        for path in sorted((folder / subfolder).glob(f"[!.]*{suffix}")):
            if not path.name.endswith(".index.npz"):  # the coordinates that slideflow writes next to a bag
                sources[path.stem] = FeatureSource(path)
    return sources


def holds_a_cohort(path: Path) -> bool:
    """Whether a file has one group per slide; False if it cannot be read (reading it later raises the error)."""
    try:
        return bool(slide_groups(path))
    except (OSError, AsmilError):
        return False
