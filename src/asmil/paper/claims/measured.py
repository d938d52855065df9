"""The results that decide claims: those of the user's runs, or those that come with the package."""

from __future__ import annotations

import json
from collections.abc import Collection
from copy import copy
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.errors import AsmilError
from asmil.settings.documents import read_json

BUNDLED = "data/measured"
"""In the package: `TABLE.csv` with the results of trainings, and `about.json`, which states how they were made.

`caveats` in `about.json`: by data set, what limits all results on its stand-in.
"""
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

    def caveats(self, table: str, datasets: Collection[str]) -> dict[str, str]:
        """By data set, what limits the bundled results of a table on it; empty for results of the user."""
        if not self.has(table) or self.is_of_user(self.where(table)):
            return {}
        known = json.loads(files("asmil.paper").joinpath(BUNDLED, "about.json").read_text(encoding="utf-8"))["caveats"]
        used = [name for name in datasets if self.results(table)["cohort"].str.startswith(f"{name}-").any()]
        return {name: known[name] for name in used if name in known}

    def without(self, table: str, datasets: Collection[str]) -> Measured:
        """The same without the results of a table on these data sets."""
        where, results = self._sources[table]
        left = results[~results["cohort"].str.startswith(tuple(f"{name}-" for name in datasets))]
        rest = copy(self)
        rest._sources = {name: source for name, source in self._sources.items() if name != table}
        if len(left):
            rest._sources[table] = (where, left)
        return rest


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
