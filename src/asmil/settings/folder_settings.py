"""A folder whose files were all made with the same settings, which are stored in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from asmil.errors import AsmilError
from asmil.files import remove_abandoned, write_text
from asmil.settings.config import flat
from asmil.settings.documents import read_yaml
from asmil.settings.made_from import differing_values, in_short

Alike = Callable[[Any, Any], bool]


def claim_folder(
    note: Path,
    wanted: Mapping[str, Any],
    holds: str,
    again: bool = False,
    alike: Mapping[str, Alike] | None = None,
    added: Mapping[str, Any] | None = None,
) -> None:
    """Store the settings in the folder, or refuse if its files were made with others.

    What killed processes left in it is removed.

    note: the YAML file of the settings, in the folder
    holds: what is in the folder, for the message: "features", "a synthetic cohort"
    again: store the new settings instead of refusing; the caller replaces the files that were made with others
    alike: for some names, whether two values mean the same
    added: settings by their dotted names that folders of earlier versions lack, with the values that they had in effect
    """
    folder = note.parent
    if folder.exists() and not folder.is_dir():
        raise AsmilError(f"{folder} is a file; choose another folder")
    remove_abandoned(folder)
    differing = differing_settings(note, wanted, alike, added)
    if differing and not again:
        raise AsmilError(
            f"{folder} holds {holds} with other settings ({in_short(differing)}); choose another folder or the "
            "settings of this one, or give --again to make it again"
        )
    if differing or not note.is_file():
        write_text(note, yaml.safe_dump(dict(wanted), sort_keys=False, allow_unicode=True))


def differing_settings(
    note: Path,
    wanted: Mapping[str, Any],
    alike: Mapping[str, Alike] | None = None,
    added: Mapping[str, Any] | None = None,
) -> list[str]:
    """The differences between the stored settings and the wanted ones; none if no settings are stored.

    alike, added: as for `claim_folder`
    """
    if not note.is_file():
        return []
    stored = flat(read_yaml(note, "restore it, or choose another folder"))
    there, asked = {**(added or {}), **stored}, flat(wanted)
    for name, is_alike in (alike or {}).items():
        if name in there and name in asked and is_alike(there[name], asked[name]):
            there[name] = asked[name]
    return differing_values(there, asked)
