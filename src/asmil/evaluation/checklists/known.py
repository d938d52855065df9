"""What is known about a model: its run, the evaluation of the run, and the file of an external validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from asmil.errors import AsmilError
from asmil.evaluation.evaluate import evaluate_run
from asmil.evaluation.run_evaluation import RunEvaluation
from asmil.runs.run import Run
from asmil.settings.documents import read_json

VALIDATION_FILE = "validation.json"


@dataclass(frozen=True)
class Known:
    """Sources of the facts in a checklist.

    validation: the content of `validation.json`; empty if there is none
    """

    run: Run
    validation: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def evaluation(self) -> RunEvaluation | None:
        """None for a bundle, and for a run without test slides."""
        tested = not self.run.is_bundle and (self.run.predictions["role"] == "test").any()
        return evaluate_run(self.run) if tested else None

    @cached_property
    def evaluated(self) -> dict[str, Any]:
        """All numbers of the evaluation; empty if there is none."""
        return {} if self.evaluation is None else self.evaluation.to_dict()


def gather(run: Path | str, validation: Path | str | None = None) -> Known:
    """Read a run or bundle and the validation in a folder (or its file)."""
    opened = Run(run)
    return Known(opened, {} if validation is None else _read_validation(Path(validation), opened))


def at(values: Any, *keys: str) -> Any:
    """The value under several keys; None where one is missing: files of other versions may lack some.

    >>> at({"a": {"b": 1}}, "a", "b"), at({"a": None}, "a", "b")
    (1, None)
    """
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _read_validation(path: Path, run: Run) -> dict[str, Any]:
    file = path / VALIDATION_FILE if path.is_dir() else path
    if not file.is_file():
        raise AsmilError(f"{file}: the file does not exist; give the --out folder of `asmil validate`")
    content = read_json(file, dict[str, Any], "write it again with `asmil validate`")
    task, method = at(content, "model", "task"), at(content, "model", "method")
    if (task, method) != (run.kind, run.method):
        raise AsmilError(
            f"{file}: this is a validation of {method} for {task}, but {run.path} is {run.method} for {run.kind}; "
            "give the run that was validated"
        )
    return content
