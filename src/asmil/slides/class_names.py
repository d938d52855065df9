"""The names of annotated classes that a user calls tumor, or excludes from it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class ClassNames:
    """The tumor classes and the excluded classes given by the user; if there are none, common names are used."""

    tumor: Collection[str] = ()
    exclude: Collection[str] = ()
