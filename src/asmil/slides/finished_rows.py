"""The table of finished slides in a folder, one row per slide, so that an interrupted command can be resumed."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from asmil.engine.jobs import Engine, MakeWorker, Outcome
from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.settings.made_from import RecordFile

SAVE_EVERY_S = 2.0


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Row = TypeVar("Row", bound=_Dataclass)


class FinishedRows(Generic[Row]):
    """The rows of finished slides by name, in a CSV file, and the records of what they were made from, next to it.

    row_type: a dataclass whose first field is the name of the slide
    """

    def __init__(self, path: Path, row_type: type[Row]) -> None:
        self._path, self._row_type = path, row_type
        self._records = RecordFile(path.parent)
        self.rows: dict[str, Row] = self._read()
        self.records = self._records.read()

    def run(self, engine: Engine, make_worker: MakeWorker, jobs: Sequence[Any]) -> Generator[Outcome, None, None]:
        """Run jobs that give a row and a record; both are saved every two seconds, and at the end or an interruption.

        A job has the name of its slide, whose earlier row is dropped. Close the iterator if it is not exhausted.
        """
        for job in jobs:
            self.rows.pop(job.name, None)
        saved_at = time.monotonic()
        try:
            with closing(engine.run(make_worker, jobs)) as outcomes:
                for outcome in outcomes:
                    if outcome.result is not None:
                        self.rows[outcome.job.name], self.records[outcome.job.name] = outcome.result
                    if time.monotonic() - saved_at > SAVE_EVERY_S:
                        self._save()
                        saved_at = time.monotonic()
                    yield outcome
        finally:
            self._save()

    def _save(self) -> None:
        self._records.write(self.records)  # first: a row without a record is one of an earlier version
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(self._row_type)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(self.rows[name]) for name in sorted(self.rows))
        write_text(self._path, text.getvalue())

    def _read(self) -> dict[str, Row]:
        if not self._path.is_file():
            return {}
        kinds = {field.name: field.type for field in fields(self._row_type)}
        adapter = TypeAdapter(self._row_type)
        try:
            with self._path.open(encoding="utf-8", newline="") as file:
                lines = list(csv.DictReader(file))
            cells = [
                {name: text if kinds[name] == "str" else text or None for name, text in line.items()} for line in lines
            ]
            return {str(row["slide"]): adapter.validate_python(row) for row in cells}
        except (KeyError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise AsmilError(
                f"{self._path}: this table was not written by this command ({reason}); remove it to process its slides "
                "again"
            ) from None
