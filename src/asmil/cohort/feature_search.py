"""Find the features of each row of a manifest, and report where missing ones were searched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path

from asmil.cohort.locate import find_features, find_nested_features
from asmil.cohort.pack.files import is_pack
from asmil.cohort.problems import SHOWN, Problem, listed
from asmil.cohort.source import GROUP_MARK, FeatureSource
from asmil.cohort.zarr_stores import is_zarr_store
from asmil.errors import AsmilError, did_you_mean
from asmil.tables.names import FEATURE_SUFFIXES, plain_spaces, without_extension

GIVE_FOLDER = "correct the path, or give the folder of the files with --features"


class FeatureSearch:
    """Finds features by the column `features`, or by slide name in a folder, which is listed only once if needed."""

    def __init__(self, manifest: Path, folder: Path | None) -> None:
        self.manifest = manifest
        self.given = folder is not None
        self.folder = folder if folder is not None else manifest.parent / "features"
        self._of_folder: list[Problem] = []
        self._of_slides: list[Problem] = []
        self._in_several: dict[tuple[str, ...], list[str]] = {}
        # many rows may refer to the same cohort file or pack
        self._named_path = cache(self._look_at)

    def find(self, row: Mapping[str, str]) -> FeatureSource | None:
        """The features of a row; None if there are none (see `problems`)."""
        slide = row["slide"]
        if cell := row.get("features"):
            return self._named(slide, cell)
        if source := self._direct.get(slide) or self._direct.get(without_extension(slide)):
            return source
        candidates = self._in_subfolders(slide)
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            folders = tuple(str(candidate.path.parent) for candidate in candidates)
            self._in_several.setdefault(folders, []).append(slide)
        elif self._direct or self._nested:
            self._report(slide, f"no feature file in {self.folder}", [*self._direct, *self._nested])
        return None

    def problems(self) -> list[Problem]:
        """Features that are missing, or found in several places."""
        several = []
        for folders, slides in self._in_several.items():
            what = f"the features of {len(slides)} slides ({listed(slides)}) are in several folders: {listed(folders)}"
            several.append(Problem("error", str(self.manifest), what, "choose one with --features"))
        return [*self._of_folder, *several, *self._of_slides]

    @cached_property
    def _direct(self) -> Mapping[str, FeatureSource]:
        if not self.given and not self.folder.exists():
            todo = "give their folder with --features, or extract them first"
            self._of_folder.append(
                Problem("error", str(self.manifest), f"there are no features in {self.folder}", todo)
            )
            return {}
        try:
            sources = find_features(self.folder)
        except AsmilError as error:
            self._of_folder.append(Problem("error", str(self.manifest), str(error)))
            return {}
        if not sources and not self._nested:
            todo = "extract features or add a column 'features'"
            what = f"there is no feature file ({', '.join(FEATURE_SUFFIXES)}) in {self.folder}"
            self._of_folder.append(Problem("error", str(self.manifest), what, todo))
        # slides of a manifest have plain spaces, files may be named otherwise
        return {plain_spaces(name): source for name, source in sources.items()} | sources

    @cached_property
    def _nested(self) -> Mapping[str, list[FeatureSource]]:
        is_folder = self.folder.is_dir() and not is_pack(self.folder)
        return find_nested_features(self.folder) if is_folder else {}

    def _in_subfolders(self, slide: str) -> list[FeatureSource]:
        """The files of a slide in subfolders; if the name contains folders, those in folders of these names."""
        names = [name.rpartition("/")[2] for name in (slide, without_extension(slide))]
        candidates = next((self._nested[name] for name in names if name in self._nested), [])
        if "/" not in slide:
            return candidates
        wanted = without_extension(slide)
        exact = [source for source in candidates if source.path.with_suffix("") == self.folder / wanted]
        return exact or [
            source for source in candidates if source.path.with_suffix("").as_posix().endswith(f"/{wanted}")
        ]

    def _named(self, slide: str, cell: str) -> FeatureSource | None:
        named, _, group = cell.partition(GROUP_MARK)
        path, problem = self._named_path(named)
        if problem is None:
            return FeatureSource(path, group or None)
        if self.given and not path.exists() and (source := self._direct.get(path.stem) or self._direct.get(slide)):
            return source  # the files have moved to the folder given by the user
        near = [file.name for file in path.parent.glob("*") if file.suffix == path.suffix and file.is_file()]
        self._report(slide, problem, near, path.name, GIVE_FOLDER)
        return None

    def _look_at(self, named: str) -> tuple[Path, str | None]:
        """A path relative to the manifest, and why it cannot contain features."""
        path = self.manifest.parent / named
        # some tools write paths relative to their working folder
        path = next((candidate for candidate in (path, Path(named)) if _holds_features(candidate)), path)
        if _holds_features(path):
            return path, None
        if path.is_dir():
            return path, f"the feature file is a folder ({path})"
        return path, f"the feature file {'is not a file' if path.exists() else 'does not exist'} ({path})"

    def _report(self, slide: str, what: str, near: Iterable[str], name: str = "", todo: str = "") -> None:
        # finding the closest of many names is slow, so it is done only for the problems that are shown
        if len(self._of_slides) < SHOWN and (known := list(near)):
            todo = did_you_mean(name or slide, known)
        todo = todo or "correct the name or extract the slide"
        self._of_slides.append(Problem("error", str(self.manifest), what, todo, slide))


def _holds_features(path: Path) -> bool:
    return path.is_file() or is_pack(path) or is_zarr_store(path)
