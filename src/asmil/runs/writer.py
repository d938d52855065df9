"""Write a run folder: lock it for one process, write its description once, and clear it to train again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from asmil.errors import AsmilError
from asmil.files import leftovers, write_text
from asmil.machine.locks import locked_folder
from asmil.runs.description import RunDescription, read_description
from asmil.runs.layout import LOCK_FILE, RunLayout
from asmil.settings.made_from import MadeFrom, in_short

TIME_UNIT = "task.time_unit"

_WRITTEN = (
    *("predictions*", "splits*", "init.safetensors", "init.json", "labels.csv", "cache"),
    *("training_slides.safetensors", "similarity.*"),
    *("operating_point*", "evaluation*", "report*", "stability*"),
    *("fold-*", "localization*", "faithfulness*"),
)
"""The content of a run folder: the run, and its reports unless they were written to another folder."""


class OtherRunError(AsmilError):
    """The folder contains a run that was made from something else."""


class RunWriter(RunLayout):
    """The run folder of a training: its description is written once and checked on every resume."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for training by this process."""
        if self.path.exists() and not self.path.is_dir():
            raise AsmilError(f"{self.path} is a file; give --out a new folder")
        busy = f"{self.path}: another process is training into this folder; wait for it, or give another --out"
        with locked_folder(self.path, LOCK_FILE, busy):
            self._remove_leftovers()
            yield

    def _remove_leftovers(self) -> None:
        """Remove temporary files of killed trainings; those of reports may be in use by another command."""
        own = (self.config, self.splits, self.predictions)
        for partial, path in leftovers(self.path):
            if path in own or path.relative_to(self.path).parts[0].startswith(("fold-", "cache")):
                partial.unlink(missing_ok=True)

    def begin(self, description: RunDescription) -> None:
        """Write the description or, if there is already a run, check that it is the same."""
        self.refuse_other_run(description)
        if not self.config.exists():
            self._write(description.to_dict())
            return
        unit, values = description.config.task.time_unit, self.read_values()
        if unit is not None and values["task"].get("time_unit") is None:  # runs of earlier versions have no unit
            self._write({**values, "task": {**values["task"], "time_unit": unit}})

    def _write(self, values: Mapping[str, Any]) -> None:
        write_text(self.config, yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))

    def refuse_other_run(self, description: RunDescription) -> None:
        """Raise if the folder contains a run with a different description."""
        if not self.config.exists():
            return
        there, now = dict(read_description(self).made_from().values), dict(description.made_from().values)
        if TIME_UNIT not in there or TIME_UNIT not in now:  # an unknown unit does not differ from a known one
            there.pop(TIME_UNIT, None)
            now.pop(TIME_UNIT, None)
        differing = MadeFrom(now).differences(MadeFrom(there).record())
        if differing:
            raise OtherRunError(
                f"{self.path} contains a run that was made from something else ({in_short(differing)}); give another "
                "--out, the same inputs and settings to resume it, or --again to train it again from the start"
            )

    def clear(self) -> None:
        """Remove the run and the reports in its folder; other files stay."""
        for pattern in _WRITTEN:
            for path in self.path.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        # last, so that a partly cleared run is still recognized
        self.config.unlink(missing_ok=True)
