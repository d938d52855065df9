"""Progress bars of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asmil.cohort.splits import Splits
from asmil.training.observer import RunObserver
from asmil.training.run_folder import RunDescription

WATCHED = {"macro_f1": "F1", "macro_auc": "AUC", "c_index": "C-index", "r2": "R2"}
"""Validation metrics that are shown after each epoch, where the task has them."""


@contextmanager
def training_progress(console: Console) -> Iterator[RunObserver]:
    """An observer of a run that shows its progress on a console while the block runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
    )
    progress = Progress(*columns, console=console)

    class Bars(RunObserver):
        def __init__(self) -> None:
            self.task = progress.add_task("", total=None, visible=False, unit="epochs", status="")

        def preparing(self, what: str, done: int, total: int) -> None:
            progress.start()
            left = done < total
            progress.update(self.task, description=what, completed=done, total=total, visible=left, unit="slides")

        def began(self, description: RunDescription, splits: Splits) -> None:
            config = description.config
            counts = splits.table.groupby("role")["slide"].nunique()
            roles = ", ".join(f"{counts.get(role, 0)} {role}" for role in ("train", "val", "test"))
            trainings = splits.n_folds * config.seeds
            what = f"{config.method} ({config.preset}), {trainings} training{'s' * (trainings > 1)}, slides: {roles}"
            progress.console.print(f"[bold]{what}[/bold]", highlight=False)

        def note(self, text: str) -> None:
            progress.console.print(f"note: {text}", highlight=False)

        def already_trained(self, fold: int, seed: int) -> None:
            self._show(fold, seed, total=1, completed=1, unit="training", status="already trained")

        def training(self, fold: int, seed: int, epochs: int) -> None:
            self._show(fold, seed, total=epochs, completed=0, unit="epochs", status="")

        def _show(self, fold: int, seed: int, **fields: Any) -> None:
            progress.reset(self.task, description=f"fold {fold}, seed {seed}", visible=True, **fields)

        def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
            status = f"{record['stage']}  " if "stage" in record else ""
            status += f"loss {record['train']['loss']:.3f}"
            for name, short in WATCHED.items():
                value = (record["val"] or {}).get(name)
                status += "" if value is None else f"  val {short} {value:.3f}"
            # seeds that train side by side take turns
            progress.update(
                self.task, description=f"fold {fold}, seed {seed}", completed=record["epoch"], status=status
            )

    try:
        yield Bars()
    finally:
        if progress.live.is_started:
            progress.stop()
