"""The files that a user downloaded, found by their names wherever they are in a folder."""

from __future__ import annotations

import os
from pathlib import Path

from asmil.errors import AsmilError

LFS_POINTER = b"version https://git-lfs"


class Downloads:
    """The files below a folder. A name may have folders before it (`tcga_brca/splits_0.csv`), which must match."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise AsmilError(f"--from {folder} is not a folder; give the folder with the downloaded files")
        self.folder = folder
        self._by_name: dict[str, list[Path]] = {}
        for parent, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if name != ".git")
            for name in [*files, *folders]:
                self._by_name.setdefault(name, []).append(Path(parent) / name)

    def all(self, name: str) -> list[Path]:
        """All files and folders of this name, the least deep ones first."""
        parts = Path(name).parts
        paths = [path for path in self._by_name.get(parts[-1], ()) if path.parts[-len(parts) :] == parts]
        return sorted(paths, key=lambda path: (len(path.parts), path))

    def find(self, *names: str) -> Path | None:
        """The first of these that is there."""
        return next((path for name in names for path in self.all(name)), None)

    def need(self, *names: str) -> Path:
        """The first of these that is there; an error if none is."""
        path = self.find(*names)
        if path is None:
            raise AsmilError(f"{' or '.join(names)} is missing in {self.folder}")
        if path.is_file():
            refuse_pointer(path)
        return path


def refuse_pointer(path: Path) -> None:
    """Raise if Git stored a pointer in place of the file."""
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise AsmilError(f"{path} is a pointer of Git LFS, not the file itself; check out the commit that has it")
