"""The results that decide claims: those of the user's runs, or those that come with the package."""

from __future__ import annotations

from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.errors import AsmilError
from asmil.settings.documents import read_json

BUNDLED = "data/measured"
"""In the package: `TABLE.csv` with the results of trainings, and `about.json`, which states how they were made."""
_PREFIX = f"asmil/paper/{BUNDLED}/"
_Source = tuple[str, pd.DataFrame]
"""The folder or file of results, and the results."""


class Measured:
    """Results by table. Folders of `asmil paper` take precedence over bundled results; smoke sizes are left out."""

    def __init__(self, runs: Path | None = None) -> None:
        self._sources: dict[str, _Source] = {**_bundled(), **({} if runs is None else _of_folder(runs))}

    def has(self, table: str) -> bool:
        return table in self._sources

    def results(self, table: str) -> pd.DataFrame:
        return self._sources[table][1]

    def where(self, table: str) -> str:
        """The folder or the bundled file of a table."""
        return self._sources[table][0] if self.has(table) else ""

    @staticmethod
    def is_of_user(where: str) -> bool:
        """Whether results come from a folder of the user."""
        return bool(where) and not where.startswith(_PREFIX)


def _bundled() -> dict[str, _Source]:
    folder = files("asmil.paper").joinpath(BUNDLED)
    if not folder.is_dir():
        return {}
    sources = {}
    for entry in folder.iterdir():
        if entry.name.endswith(".csv"):
            table = entry.name.removesuffix(".csv")
            results = pd.read_csv(StringIO(entry.read_text(encoding="utf-8")))
            sources[table] = (f"{_PREFIX}{entry.name}", results)
    return sources


def _of_folder(runs: Path) -> dict[str, _Source]:
    if not runs.is_dir():
        raise AsmilError(f"{runs}: there is no such folder; give --runs a folder that holds results of `asmil paper`")
    sources: dict[str, _Source] = {}
    for note in sorted([*runs.glob("paper.json"), *runs.glob("*/paper.json")]):
        about = read_json(note, dict[str, Any], "run `asmil paper` again")
        results = note.parent / "results.csv"
        if about.get("size") == "quick" or not results.is_file():
            continue
        table = pd.read_csv(results)
        sources[str(about["table"])] = (str(note.parent), table[table["status"] == "done"])
    return sources
