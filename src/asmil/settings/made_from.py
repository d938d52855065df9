"""What results were made from: recorded with every result, and compared before an existing result is kept.

A verb that skips finished work states the ingredients of each result as a `MadeFrom`, stores its `record()` with the
result, and lets `DoneBefore` decide:

    done = DoneBefore(again)
    to_do = [item for item in items if not (item.exists() and done.keeps(item.name, item.record(), item.made_from()))]
    done.refuse(out)  # before anything is written

The same ingredients: the result is kept. Others: `refuse` names them and stops; with `again` the result is made again.
A result of another version of asmil is kept if all else is the same; `notes` reports it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from asmil.errors import AsmilError
from asmil.files import files_of, write_json
from asmil.settings.documents import read_json
from asmil.version import __version__

RECORDS_FILE = "made_from.json"
"""In a folder of results that cannot hold their records themselves, such as pictures."""
NOT_SET = "not set"
NOT_RECORDED = "it is not recorded what it was made from"
MOST_NAMED, MOST_DIFFERENCES = 5, 4
SAMPLED_ABOVE, BLOCK, BLOCKS = 4 << 20, 64 << 10, 64
"""Of a file above the first size, `sampled_sha256` reads `BLOCKS` blocks of `BLOCK` bytes."""


class Content:
    """A file or other content, compared by its checksum.

    size, changed_ns: of the file, see `state_of`; while both are unchanged, the checksum is not computed again
    """

    def __init__(self, checksum: Callable[[], str], size: int | None = None, changed_ns: int | None = None) -> None:
        self._compute = checksum
        self.size, self.changed_ns = size, changed_ns

    @cached_property
    def checksum(self) -> str:
        """The checksum, computed when it is first asked for."""
        return self._compute()

    def stored(self) -> StoredContent:
        """What a record keeps of it."""
        return StoredContent(checksum=self.checksum, size=self.size, changed_ns=self.changed_ns)

    def is_same(self, stored: StoredContent) -> bool:
        """Whether this is the recorded content; content that earlier versions did not record counts as the same."""
        if stored.checksum is None:
            return True
        now, then = (self.size, self.changed_ns), (stored.size, stored.changed_ns)
        return (None not in now and now == then) or self.checksum == stored.checksum


class StoredContent(BaseModel):
    """What a record keeps of a `Content`. checksum: None if an earlier version did not record it."""

    checksum: str | None = None
    size: int | None = None
    changed_ns: int | None = None


class Record(BaseModel):
    """What a result was made from, as it is stored. asmil: the version that made it, if known."""

    asmil: str | None = None
    values: dict[str, Any] = {}
    contents: dict[str, StoredContent] = {}


@dataclass(frozen=True)
class MadeFrom:
    """What a result is made from now.

    values: settings and other small values, by name; contents: files, by name
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    contents: Mapping[str, Content] = field(default_factory=dict)

    def record(self) -> Record:
        """The record to store with the result."""
        stored = {name: content.stored() for name, content in self.contents.items()}
        return Record(asmil=__version__, values=_plain(self.values), contents=stored)

    def refreshed(self, record: Record) -> Record:
        """A record without differences, with the current state of the files, which are then not read again."""
        contents = {
            name: StoredContent(checksum=stored.checksum, size=now.size, changed_ns=now.changed_ns)
            for name, stored in record.contents.items()
            if (now := self.contents[name])
        }
        return record.model_copy(update={"contents": contents})

    def differences(self, record: Record) -> list[str]:
        """What differs from a record, in words; values with what they were and are."""
        differing = differing_values(record.values, _plain(self.values))
        for name in dict.fromkeys([*self.contents, *record.contents]):
            there, now = record.contents.get(name), self.contents.get(name)
            if there is None or now is None:
                differing.append(f"{name} ({'not used' if there is None else 'used'} there)")
            elif not now.is_same(there):
                differing.append(f"{name} (other content)")
        return differing


def differing_values(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of values that differ, with both values; hashes are not shown."""
    return [
        f"{name}{_both(there.get(name, NOT_SET), now.get(name, NOT_SET))}"
        for name in dict.fromkeys([*now, *there])
        if there.get(name, NOT_SET) != now.get(name, NOT_SET)
    ]


def in_short(differences: Sequence[str]) -> str:
    """The first differences, and how many more there are."""
    more = len(differences) - MOST_DIFFERENCES
    return ", ".join(differences[:MOST_DIFFERENCES]) + (f", and {more} more" if more > 0 else "")


class DoneBefore:
    """Decides which results of earlier commands are kept.

    again: replace results that were made from something else, instead of refusing them
    """

    def __init__(self, again: bool = False) -> None:
        self.again = again
        self._refused: dict[str, list[str]] = {}
        self._versions: dict[str, list[str]] = {}

    def keeps(self, name: str, record: Record | None, made_from: MadeFrom) -> bool:
        """Whether a result is kept; one that was made from something else is kept until `refuse` raises.

        record: of the result; None if it has none, as those of earlier versions
        """
        differences = [NOT_RECORDED] if record is None else made_from.differences(record)
        if not differences:
            if record is not None and record.asmil != __version__:
                made_by = f"asmil {record.asmil}" if record.asmil else "an earlier version of asmil"
                self._versions.setdefault(made_by, []).append(name)
            return True
        if not self.again:
            self._refused.setdefault(in_short(differences), []).append(name)
        return not self.again

    def refuse(self, where: Path) -> None:
        """Raise if any result was made from something else; the message names it and what differs."""
        if self._refused:
            described = "; ".join(f"{_named(names)}: {what}" for what, names in self._refused.items())
            raise AsmilError(
                f"{where} holds results that were made from something else ({described}); nothing was changed: give "
                "--again to make them again (in Python: again=True), or choose another folder"
            )

    @property
    def notes(self) -> list[str]:
        """One sentence per other version of asmil whose results are kept."""
        return [
            f"made by {version} and kept (this is asmil {__version__}): {_named(names)}"
            for version, names in self._versions.items()
        ]


class RecordFile:
    """The records of a folder of results, by name, in one file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORDS_FILE

    def read(self) -> dict[str, Record]:
        """All records; none where the file is missing."""
        if not self.path.is_file():
            return {}
        return read_json(self.path, dict[str, Record], "remove it, and make the results again with --again")

    def write(self, records: Mapping[str, Record]) -> None:
        write_json(self.path, {name: records[name].model_dump(exclude_none=True) for name in sorted(records)})


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sampled_sha256(path: Path) -> str:
    """The SHA-256 of a file's size and blocks that are spread over it; of all bytes if the file is small."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= SAMPLED_ABOVE:
            digest.update(file.read())
        else:
            for number in range(BLOCKS):
                file.seek((size - BLOCK) * number // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.hexdigest()


def state_of(*paths: Path) -> tuple[int, int]:
    """The total size of files, and when they last changed: a copy that keeps its old times counts as changed."""
    states = [file.stat() for path in paths for file in files_of(path)]
    return sum(state.st_size for state in states), max(
        (max(state.st_ctime_ns, state.st_mtime_ns) for state in states), default=0
    )


def file_content(*paths: Path, checksum: Callable[[Path], str] = sha256) -> Content:
    """The content of files and folders together. checksum: of one file, `sampled_sha256` for large ones."""

    def compute() -> str:
        sums = [checksum(file) for path in paths for file in files_of(path)]
        return sums[0] if len(sums) == 1 else hashlib.sha256("\n".join(sums).encode()).hexdigest()

    return Content(compute, *state_of(*paths))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as they are read back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return plain


def _both(there: Any, now: Any) -> str:
    if any(isinstance(value, str) and len(value) == hashlib.sha256().digest_size * 2 for value in (there, now)):
        return " (not recorded there)" if there == NOT_SET else " (other content)"
    return f": there {there}, asked {now}"


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
