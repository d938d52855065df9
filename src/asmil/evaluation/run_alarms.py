"""The alarms of a run: reasons not to use its predictions or maps, for all that shows something of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asmil.errors import AsmilError
from asmil.evaluation.rows import by_slide, part_of
from asmil.evaluation.stability.alarms import Alarm
from asmil.evaluation.stability.analysis import read_stability
from asmil.runs.bundle import is_bundle, read_bundle_file
from asmil.runs.run import read_run
from asmil.tables.arrays import Floats
from asmil.tables.names import unique_names
from asmil.tasks.base import PredictionFormat, Truth

SAME_PREDICTION_ADVICE = (
    "Try: train longer; or raise the learning rate; or weight rare classes with "
    "`--set training.class_weights=balanced`."
)


def alarms_of_run(run: Path) -> tuple[Alarm, ...]:
    """The alarms of a run folder, or those that a bundle was exported with.

    A run that is not finished raises none about its predictions, one that recorded no attention none about attention.
    """
    if is_bundle(run):
        return tuple(
            Alarm(alarm.kind, alarm.text, alarm.advice, alarm.extent) for alarm in read_bundle_file(run).alarms
        )
    return (*_of_predictions(run), *recorded_alarms(run))


def alarms_given(
    run: Path, task: PredictionFormat, truth: Truth, predictions: Floats, unit: str = "slide"
) -> tuple[Alarm, ...]:
    """The alarms of a run whose predictions are known, one row per slide or patient."""
    return (*_same_prediction(task, truth, predictions, unit), *recorded_alarms(run))


def recorded_alarms(run: Path) -> tuple[Alarm, ...]:
    """The alarms about the attention that a run recorded; none if it recorded nothing."""
    try:
        return read_stability(run).alarms
    except AsmilError:
        return ()


def alarm_findings(runs: Sequence[Path]) -> tuple[str, ...]:
    """The findings of several runs, one sentence each, with the name of the run if there are several."""
    different = list(dict.fromkeys(runs))
    names = dict(zip(different, unique_names(different), strict=True))
    named = [(name, alarm) for run, name in names.items() for alarm in alarms_of_run(run)]
    several = len(different) > 1
    return tuple(f"{name}: {alarm.finding}" if several else alarm.finding for name, alarm in named)


def _of_predictions(run: Path) -> tuple[Alarm, ...]:
    try:
        finished = read_run(run)
    except AsmilError:
        return ()
    rows = next((rows for role in ("test", "val") if len(rows := part_of(finished, role))), None)
    return () if rows is None else _same_prediction(finished.format, *by_slide(finished.format, rows)[1:])


def _same_prediction(
    task: PredictionFormat, truth: Truth, predictions: Floats, unit: str = "slide"
) -> tuple[Alarm, ...]:
    collapsed = task.collapsed(truth, predictions, unit)
    text = f"{collapsed} The model has not learned to separate them."
    return (Alarm("same_prediction", text, SAME_PREDICTION_ADVICE),) if collapsed else ()
