"""Progress of a training (a live table in a terminal, plain lines elsewhere and in a log file) and of an extraction."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asmil.cohort.splits import ROLES, Splits
from asmil.console import messages, say
from asmil.reporting.formats import format_count, format_duration
from asmil.runs.description import RunDescription
from asmil.training.run_parts import RunObserver

if TYPE_CHECKING:
    from asmil.extraction.extract import Done

WATCHED = {"loss": "loss", "macro_f1": "F1", "macro_auc": "AUC", "c_index": "C-index", "r2": "R2"}
"""Validation metrics that are shown after each epoch, where the task has them."""
LINES_PER_TRAINING = 10
"""About so many plain lines per training."""
ROWS = 8
"""Epochs in the live table."""
NUMBER = 5
"""Columns of a number in the live table, at least."""


@contextmanager
def training_progress(console: Console, log: Path | None = None) -> Iterator[RunObserver]:
    """An observer of a run that shows its progress on a console while the block runs.

    log: a file that plain lines are appended to as well
    """
    with ExitStack() as stack:
        shown: list[_Display] = []
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(log.open("a", encoding="utf-8", buffering=1))
            shown.append(PlainLines(lambda line: _write_line(file, line)))
        if not console.quiet:
            lively = console.is_terminal and not console.is_dumb_terminal
            shown.append(LiveTable(console, stack) if lively else PlainLines(lambda line: say(console, line)))
        yield _Reporter(shown)


class SlideProgress:
    """A bar over slides that are extracted, with a count of tiles as workers report them, or slide by slide."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._console = messages(quiet)
        columns = (TextColumn("extracting"), BarColumn(), MofNCompleteColumn(), TextColumn("slides"))
        tiles = TextColumn("{task.fields[tiles]:,} tiles")
        self._progress = Progress(*columns, tiles, TimeElapsedColumn(), console=self._console)
        self._task = self._progress.add_task("", total=total, tiles=0)
        self._reported = 0

    def report(self, n_tiles: Any) -> None:
        """Count tiles that were encoded."""
        self._reported += n_tiles
        self._progress.update(self._task, tiles=self._reported)

    def follow(self, results: Iterable[Done]) -> list[Done]:
        """All results, shown as they come."""
        seen: list[Done] = []
        with self._progress:
            for done in results:
                seen.append(done)
                finished = sum(result.report.n_tiles for result in seen if result.report is not None)
                self._progress.update(self._task, completed=len(seen), tiles=max(finished, self._reported))
                if done.error is not None and self._console.is_terminal:
                    say(self._console, f"failed: {done.error}", style="red")
        return seen


def _write_line(file: Any, line: str) -> None:
    file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def describe_run(description: RunDescription, splits: Splits) -> str:
    """What is trained, in one line: the method, how often, and the slides of each fold."""
    config = description.config
    counts = [[len(splits.slides(fold, role)) for role in ROLES] for fold in range(splits.n_folds)]
    parts = [f"{_range(column)} {role}" for role, column in zip(ROLES, zip(*counts, strict=True), strict=True)]
    each = "slides" if splits.n_folds == 1 else "slides in each fold"
    times = f"{format_count(splits.n_folds, 'fold')} x {format_count(config.seeds, 'seed')}"
    trainings = format_count(splits.n_folds * config.seeds, "training")
    return f"{config.method} ({config.preset}), {times} = {trainings}; {each}: {', '.join(parts)}"


def _range(values: Sequence[int]) -> str:
    """The smallest and the largest of some numbers.

    >>> _range([8, 8]), _range([7, 8])
    ('8', '7 to 8')
    """
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


@dataclass
class Pace:
    """How much of a run is done, and how long the rest takes at the pace so far.

    trainings: in all; finished: of them; epochs: of one training; done: epochs of the trainings that run now
    trained: epochs trained since the clock was started
    """

    trainings: int
    finished: int = 0
    epochs: int = 0
    done: dict[tuple[int, int], int] = field(default_factory=dict)
    trained: int = 0
    started: float = field(default_factory=time.monotonic)

    def begin(self, training: tuple[int, int], epochs: int, epochs_done: int) -> None:
        """A training of this many epochs begins, or is resumed."""
        if not self.trained:
            self.started = time.monotonic()
        self.epochs = epochs
        self.done[training] = epochs_done

    def advance(self, training: tuple[int, int], epoch: int) -> None:
        """An epoch of a training has ended."""
        self.trained += 1
        self.done[training] = epoch

    def finish(self, training: tuple[int, int]) -> None:
        """A training has ended, perhaps before its last epoch."""
        self.finished += 1
        self.done.pop(training, None)

    def seconds_left(self, epochs: int) -> float | None:
        """How long this many epochs take; None before the first has ended."""
        return epochs * (time.monotonic() - self.started) / self.trained if self.trained else None

    def left_in_run(self) -> int:
        """Epochs that the run still has."""
        waiting = self.trainings - self.finished - len(self.done)
        return waiting * self.epochs + sum(self.epochs - epoch for epoch in self.done.values())


@dataclass
class _State:
    """What all displays show of a run."""

    title: str
    folds: int
    seeds: int
    first_seed: int
    pace: Pace
    sites: Mapping[int, str] = field(default_factory=dict)

    def name(self, training: tuple[int, int]) -> str:
        """The name of a training: fold 2 of 5, seed 1 of 3; with the site that the fold tests, if it is one."""
        fold, seed = training
        site = f" (site {self.sites[fold]})" if fold in self.sites else ""
        return f"fold {fold + 1} of {self.folds}{site}, seed {seed - self.first_seed + 1} of {self.seeds}"


class _Display:
    """Shows a run; the default shows nothing."""

    def preparing(self, what: str, done: int, total: int) -> None: ...

    def message(self, text: str) -> None: ...

    def epoch(self, state: _State, training: tuple[int, int], record: Mapping[str, Any]) -> None: ...

    def trained(self, state: _State) -> None: ...


class _Reporter(RunObserver):
    """Keeps count of a run, and lets every display show it."""

    def __init__(self, displays: Sequence[_Display]) -> None:
        self._displays = displays
        self._state = _State("", 1, 1, 0, Pace(1))

    def _message(self, text: str) -> None:
        for display in self._displays:
            display.message(text)

    def preparing(self, what: str, done: int, total: int) -> None:
        for display in self._displays:
            display.preparing(what, done, total)

    def began(self, description: RunDescription, splits: Splits) -> None:
        config = description.config
        pace = Pace(splits.n_folds * config.seeds)
        title = describe_run(description, splits)
        self._state = _State(title, splits.n_folds, config.seeds, config.training.seed, pace, splits.sites)
        self._message(title)

    def note(self, text: str) -> None:
        self._message(f"note: {text}")

    def already_trained(self, fold: int, seed: int) -> None:
        self._state.pace.finished += 1
        self._message(f"{self._state.name((fold, seed))}: already trained")

    def training(self, fold: int, seed: int, epochs: int, epochs_done: int) -> None:
        self._state.pace.begin((fold, seed), epochs, epochs_done)
        if 0 < epochs_done < epochs:
            self._message(f"{self._state.name((fold, seed))}: resuming at epoch {epochs_done + 1} of {epochs}")

    def trained(self, fold: int, seed: int) -> None:
        self._state.pace.finish((fold, seed))
        for display in self._displays:
            display.trained(self._state)

    def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
        self._state.pace.advance((fold, seed), int(record["epoch"]))
        for display in self._displays:
            display.epoch(self._state, (fold, seed), record)


class PlainLines(_Display):
    """A line for about every tenth epoch, for pipes and log files."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def message(self, text: str) -> None:
        self._write(text)

    def epoch(self, state: _State, training: tuple[int, int], record: Mapping[str, Any]) -> None:
        epoch, epochs = int(record["epoch"]), state.pace.epochs
        if epoch not in (1, epochs) and epoch % max(1, epochs // LINES_PER_TRAINING):
            return
        values = ", ".join(f"{name} {value}" for name, value in epoch_values(record).items())
        left = state.pace.seconds_left(state.pace.left_in_run())
        time_left = "" if left is None else f"; {format_duration(left)} left for the run"
        self._write(f"{state.name(training)}, epoch {epoch} of {epochs}: {values}{time_left}")


class LiveTable(_Display):
    """The last epochs as a table, with bars for the training and for the run, redrawn in place."""

    def __init__(self, console: Console, stack: ExitStack) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._stack = stack
        self._rows: deque[tuple[tuple[int, int], Mapping[str, Any]]] = deque(maxlen=ROWS)

    def message(self, text: str) -> None:
        say(self._console, text)

    def preparing(self, what: str, done: int, total: int) -> None:
        self._show(Text("") if done >= total else self._bar(f"{what}: {done} of {total} slides", done, total, ""))

    def epoch(self, state: _State, training: tuple[int, int], record: Mapping[str, Any]) -> None:
        self._rows.append((training, record))
        self._draw(state)

    def trained(self, state: _State) -> None:
        self._draw(state)

    def _draw(self, state: _State) -> None:
        if not self._rows:
            return
        training, record = self._rows[-1]
        pace = state.pace
        here = format_duration(pace.seconds_left(max(0, pace.epochs - int(record["epoch"]))))
        whole = format_duration(pace.seconds_left(pace.left_in_run()))
        trained = int(record["epoch"])
        total = pace.trainings * pace.epochs
        self._show(
            Group(
                self._table(state.sites),
                self._bar(f"{state.name(training)}: epoch {trained} of {pace.epochs}", trained, pace.epochs, here),
                self._bar(
                    f"run: {pace.finished} of {format_count(pace.trainings, 'training')} done",
                    total - pace.left_in_run(),
                    total,
                    whole,
                ),
            )
        )

    def _show(self, content: Any) -> None:
        if not self._live.is_started:
            self._stack.enter_context(self._live)
        self._live.update(content, refresh=True)

    def _bar(self, text: str, done: int, total: int, left: str) -> Table:
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True, min_width=min(44, self._console.width // 2))
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right", min_width=12)
        grid.add_row(Text(text), ProgressBar(total=max(1, total), completed=done), Text(f"{left} left" if left else ""))
        return grid

    def _table(self, sites: Mapping[int, str]) -> Table:
        shown = [epoch_values(record) for _, record in self._rows]
        names = list(dict.fromkeys(name for values in shown for name in values))
        folds = [sites.get(fold, str(fold)) for (fold, _), _ in self._rows]
        first = "site" if sites else "fold"
        room, fitting = self._console.width - max(map(len, [first, *folds])) - len(" seed epoch "), 0
        while fitting < len(names) and (room := room - max(len(names[fitting]), NUMBER) - 1) >= 0:
            fitting += 1
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for name in (first, "seed", "epoch", *names[:fitting]):
            table.add_column(name, justify="right", no_wrap=True)
        for fold, ((_, seed), record), values in zip(folds, self._rows, shown, strict=True):
            cells = (values.get(name, "") for name in names[:fitting])
            table.add_row(fold, str(seed), str(record["epoch"]), *cells)
        return table


def epoch_values(record: Mapping[str, Any]) -> dict[str, str]:
    """What an epoch's record is shown as: the most telling values first."""
    values = {"stage": str(record["stage"])} if "stage" in record else {}
    train = dict(record["train"])
    values["loss"] = _number(train.pop("loss", None))
    for name, short in WATCHED.items():
        value = (record["val"] or {}).get(name)
        if value is not None:
            values[f"val {short}"] = _number(value)
    if "effective_share" in record:
        values["tiles used"] = f"{record['effective_share']:.0%}"
    return values | {name: _number(value) for name, value in train.items() if len(train) > 1}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"
