"""A folder whose files were all made with the same settings, which are stored in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from asmil.config import flat
from asmil.documents import read_yaml
from asmil.errors import AsmilError
from asmil.files import remove_abandoned, write_text

SHOWN = 4
NOT_SET = "not set"


def claim_folder(note: Path, wanted: Mapping[str, Any], holds: str) -> None:
    """Store the settings in the folder, or refuse if its files were made with others.

    What killed processes left in it is removed.

    note: the YAML file of the settings, in the folder
    holds: what is in the folder, for the message: "features", "a synthetic cohort"
    """
    folder = note.parent
    if folder.exists() and not folder.is_dir():
        raise AsmilError(f"{folder} is a file; choose another folder")
    remove_abandoned(folder)
    if not note.is_file():
        write_text(note, yaml.safe_dump(dict(wanted), sort_keys=False, allow_unicode=True))
        return
    there, asked = flat(read_yaml(note, "restore it, or choose another folder")), flat(wanted)
    differing = [
        f"{name}: there {there.get(name, NOT_SET)}, asked {asked.get(name, NOT_SET)}"
        for name in dict.fromkeys([*asked, *there])
        if there.get(name, NOT_SET) != asked.get(name, NOT_SET)
    ]
    if differing:
        shown = "; ".join(differing[:SHOWN]) + (f"; and {len(differing) - SHOWN} more" if differing[SHOWN:] else "")
        raise AsmilError(
            f"{folder} holds {holds} with other settings ({shown}); choose another folder or the settings of this one"
        )
