"""The JSON files of results in a run folder, as far as other reports repeat them; each is checked when it is read.

Up to version 0.5, `localization.json` and `stability.json` said `measures` instead of `metrics`; both are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AliasChoices, AliasPath, BaseModel, Field

from asmil.errors import AsmilError
from asmil.reporting.estimate import NAN, Estimate, Interval
from asmil.settings.documents import read_json

Content = TypeVar("Content")
AttentionResult = tuple[str, str, str, str, "Number"]
"""A number about attention: its page, the command that wrote it, title, meaning, value."""


class Number(BaseModel):
    """A value with the limits of its interval; None if they are undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def estimate(self) -> Estimate:
        """The same, undefined numbers as nan."""
        value, low, high = (NAN if number is None else number for number in (self.value, self.low, self.high))
        return Estimate(value, Interval(low, high))


class EvaluationFile(BaseModel):
    """`evaluation.json` of `asmil evaluate`; survival is evaluated by patient and has no slides."""

    role: str
    metrics: dict[str, Number]
    slides: int = 0
    patients: int = 0


def _at(*path: str) -> Any:
    """A field that is stored at this path."""
    old = ("measures" if name == "metrics" else name for name in path)
    return Field(validation_alias=AliasChoices(AliasPath(*path), AliasPath(*old)))


class StabilityFile(BaseModel):
    """One run of `stability.json` of `asmil stability`."""

    effective_share: Number = _at("metrics", "effective_share")
    jsd_late: Number = _at("metrics", "jsd_late")


class LocalizationFile(BaseModel):
    """`localization.json` of `asmil localize`; FROC and Dice of maps that are scaled from 0 to 1."""

    tile_auc: Number = _at("metrics", "tile_auc")
    froc: Number = _at("scalings", "minmax", "metrics", "froc")
    dice: Number = _at("scalings", "minmax", "metrics", "dice")


class _MapFaithfulness(BaseModel):
    area: Number


class FaithfulnessFile(BaseModel):
    """`faithfulness.json` of `asmil faithfulness`, by kind of map."""

    kinds: dict[str, _MapFaithfulness]


class ComparedRunFile(BaseModel):
    """One run in `comparison.json`."""

    name: str
    run: Path


class ComparisonFile(BaseModel):
    """The runs of `comparison.json`."""

    runs: list[ComparedRunFile]


def read_result(path: Path, kind: type[Content], command: str) -> Content | None:
    """The results in a file that a command wrote; None if it was not written, an error if it is damaged."""
    return read_json(path, kind, f"write it again with `{command}`") if path.is_file() else None


def read_localization(run: Path) -> LocalizationFile | None:
    """The localization of a run, if there is one."""
    return read_result(run / "localization" / "localization.json", LocalizationFile, "asmil localize")


def attention_results(run: Path) -> tuple[list[AttentionResult], list[str]]:
    """The numbers about attention that other commands wrote into a run folder, and one sentence per damaged file."""
    results, problems = [], []
    for read in (_stability, _localization, _faithfulness):
        try:
            results += list(read(run))
        except AsmilError as error:
            problems.append(str(error))
    return results, problems


def _stability(run: Path) -> Iterator[AttentionResult]:
    runs = read_result(run / "stability.json", list[StabilityFile], "asmil stability")
    for summary in (runs or [])[:1]:
        source = ("stability.html", "asmil stability")
        yield *source, "effective share", "1: attention is flat", summary.effective_share
        yield *source, "late JSD", "movement at the end of training, nats", summary.jsd_late


def _localization(run: Path) -> Iterator[AttentionResult]:
    content = read_localization(run)
    if content is not None:
        for title, number in {"FROC": content.froc, "Dice": content.dice, "tile AUC": content.tile_auc}.items():
            yield "localization/localization.html", "asmil localize", title, "compared with annotations", number


def _faithfulness(run: Path) -> Iterator[AttentionResult]:
    from asmil.explain.kinds import titled

    content = read_result(run / "faithfulness" / "faithfulness.json", FaithfulnessFile, "asmil faithfulness")
    source = ("faithfulness/faithfulness.html", "asmil faithfulness")
    meaning = "how much more removing its highest tiles changes predictions than its lowest; 0: chance"
    for kind, numbers in (content.kinds if content else {}).items():
        yield *source, f"faithfulness of {titled(kind)}", meaning, numbers.area
