"""Finding the feature file of a slide by the slide's name."""

from __future__ import annotations

from pathlib import Path

from asmil.cohort.formats import slide_groups
from asmil.cohort.pack_index import is_pack
from asmil.cohort.pack_reading import Pack
from asmil.cohort.problems import fail
from asmil.cohort.source import FeatureSource

# the last found wins: the folder itself before CLAM's subfolders, HDF5 (which has coordinates) before tensors
PLACES = (("pt_files", ".pt"), ("h5_files", ".h5"), ("", ".pt"), ("", ".h5"))


def find_features(place: Path) -> dict[str, FeatureSource]:
    """All slides of a folder of feature files (or CLAM's two subfolders), of a cohort file or a pack, by name."""
    if place.is_file():
        return {name: FeatureSource(place, name) for name in _groups(place)}
    if is_pack(place):
        return {name: FeatureSource(place, name) for name in Pack.open(place).entries}
    if not place.is_dir():
        fail(place, "there is no such folder of features", "correct the path or extract the features first")
    found = {}
    for subfolder, suffix in PLACES:
        # names that begin with a dot are half-written files and what macOS leaves beside real ones
        for path in sorted((place / subfolder).glob(f"[!.]*{suffix}")):
            found[path.stem] = FeatureSource(path)
    return found


def holds_a_cohort(path: Path) -> bool:
    """Whether a file has a group a slide; a file that cannot be read has not, and is named when it is read."""
    try:
        return bool(slide_groups(path))
    except OSError:
        return False


def _groups(path: Path) -> list[str]:
    try:
        names = slide_groups(path)
    except OSError:
        fail(path, "the cohort file is damaged or not HDF5", "copy it again or give a folder of feature files")
    if not names:
        fail(path, "the file has no group a slide", "give a folder of feature files, or a cohort file")
    return names
