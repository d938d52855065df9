"""Commands on tiny cohorts, for campaigns that interrupt them, and how one is run in a forked process."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENCODER = "tests.extraction.tiny_encoder:Weighted"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
POLL_S = 0.002
PATIENCE_S = 600.0
"""A command that takes longer hangs, also on a busy machine."""
TASKS = ("classification", "survival", "regression", "multilabel")
HEAVY = (
    "asmil.classic",
    "asmil.cli.main",
    "asmil.evaluation",
    "asmil.evaluation.evaluate",
    "asmil.evaluation.stability",
    "asmil.evaluation.survival",
    "asmil.extraction.extract",
    "asmil.slides.survey",
    "asmil.runs.prediction",
    "asmil.training.run",
    "lifelines",
    "matplotlib.pyplot",
    "sklearn.ensemble",
    "sklearn.svm",
)
"""What the commands import: their processes are forked after that."""


@dataclass(frozen=True)
class Command:
    """A command, given in a folder that holds copies of its inputs.

    inputs: folders of the common data
    """

    name: str
    arguments: tuple[str, ...]
    inputs: tuple[str, ...]


def _train(name: str, cohort: str, *more: str, method: str = "abmil", epochs: int = 3) -> Command:
    settings = [f"training.epochs={epochs}", "training.checkpoint_seconds=0"]
    words = [word for setting in settings for word in ("--set", setting)]
    arguments = ("train", f"{cohort}/cohort.csv", "--out", "out", "--quiet", "--method", method, *words, *more)
    return Command(f"train {name}", arguments, (cohort,))


_RECORDED = ("--set", "record.attention=all", "--set", "record.every=3")
_BARE = ("--set", "record.attention=none")

COMMANDS = (
    _train("abmil", "classification"),
    _train("asmil", "classification", method="asmil"),
    _train("clam", "classification", *_BARE, method="clam_sb"),
    _train("transmil", "classification", *_BARE, method="transmil", epochs=2),
    _train("dtfd", "classification", *_BARE, method="dtfd", epochs=2),
    _train("recorded attention", "classification", *_RECORDED, method="asmil"),
    _train("folds", "classification", "--folds", "2", *_BARE, epochs=2),
    _train("seeds", "classification", "--seeds", "2", *_BARE, epochs=2),
    _train(
        "nested", "classification", "--folds", "2", "--inner-folds", "2", "--grid", "training.lr=[1e-3,1e-2]", epochs=1
    ),
    _train("disk cache", "classification", "--set", "data.cache=disk", *_BARE),
    _train("cox", "survival", "--task", "survival", "--set", "task.loss=cox", "--set", "training.accumulate=4"),
    _train("hazard", "survival", "--task", "survival", "--set", "task.loss=hazard"),
    _train("regression", "regression", "--task", "regression"),
    _train("multilabel", "multilabel", "--task", "multilabel"),
    Command(
        "extract",
        ("extract", "slides", "--out", "out", "--encoder", ENCODER, "--workers", "0", "--quiet"),
        ("slides",),
    ),
    Command("pack", ("pack", "classification/cohort.csv", "--out", "out", "--quiet"), ("classification",)),
    Command(
        "classic",
        (
            *("classic", "sets", "--out", "out", "-m", "abmil", "-m", "bag_forest", "--seeds", "2", "--folds", "3"),
            *("--set", "training.epochs=2", "--workers", "1", "--quiet"),
        ),
        ("sets",),
    ),
    Command(
        "predict",
        ("predict", "run", "classification/cohort.csv", "--out", "out/p.csv", "--attention", "--quiet"),
        ("run", "classification"),
    ),
    Command("evaluate", ("evaluate", "run", "--out", "out", "--resamples", "50"), ("run",)),
    Command(
        "synthetic",
        ("synthetic", "out", "--slides", "8", "--tiles-min", "20", "--tiles-max", "30", "--width", "16"),
        (),
    ),
)


def make_data(folder: Path, names: Collection[str]) -> None:
    """Make inputs of commands by their names: a cohort of every task, slides, a benchmark set, a finished run."""
    from tests.campaigns.classic_kinds import write_npz
    from tests.extraction.small_slides import write_slides
    from tests.training.small_task_cohorts import write_cohort

    for task in TASKS:
        if task in names or (task == "classification" and "run" in names):
            write_cohort(_made(folder / task), task, n_patients=8)
    if "slides" in names:
        write_slides(_made(folder / "slides"), 4, side_px=400)
    if "sets" in names:
        write_npz(_made(folder / "sets") / "toy.npz")
    if "run" in names:
        training = _train("for others", "classification", "--seeds", "2", *_BARE, epochs=2)
        ended = run_to_end(training, folder, folder / "output")
        if ended.code != 0:
            raise RuntimeError(f"the run that commands need could not be trained: {ended.output}")
        (folder / "out").rename(folder / "run")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def prepare(command: Command, data: Path, folder: Path) -> None:
    """A new folder with copies of what a command reads, with their times: packs and runs note them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in command.inputs:
        shutil.copytree(data / name, folder / name)


def import_all() -> None:
    """Import what commands need, once, with one thread: pools of threads do not survive a fork."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in HEAVY:
        importlib.import_module(name)
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)


@dataclass(frozen=True)
class Ended:
    """How a command ended; `events` counts what it did to files, `code` is minus the number of a signal."""

    code: int
    output: str
    seconds: float
    events: int = 0


@dataclass(frozen=True)
class Moment:
    """When a command is killed: at its n-th event (None: at its start), and so many seconds later."""

    event: int | None
    seconds: float


def run_to_end(
    command: Command,
    folder: Path,
    output: Path,
    moment: Moment | None = None,
    timeout_s: float = PATIENCE_S,
    before: Callable[[], None] | None = None,
) -> Ended:
    """Run a command in a forked process, in a folder; kill it at a moment, if one is given.

    before: called in the process first, e.g. to limit it
    An event is the opening of a file for writing, or a file or folder made, moved or removed: just before it happens.
    """
    reading, writing = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_command(command, folder, output, writing, moment, before)
    os.close(writing)
    code, events = _wait(pid, reading, moment, began, timeout_s)
    os.close(reading)
    return Ended(code, output.read_text(encoding="utf-8", errors="replace"), time.monotonic() - began, events)


def _be_command(
    command: Command, folder: Path, output: Path, pipe: int, moment: Moment | None, before: Callable[[], None] | None
) -> None:
    """Become the command; never returns."""
    code = 1
    try:
        os.chdir(folder)
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.pop("COLUMNS", None)
        sys.argv = ["asmil", *command.arguments]
        from asmil.cli.main import main

        if before is not None:
            before()
        _count_events(pipe, moment)
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 as the interpreter would do
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or 1
        os._exit(code)


def _count_events(pipe: int, moment: Moment | None) -> None:
    """Tell the parent of every event; at the one of an exact moment, the process ends by itself."""
    count = 0
    exact = moment.event if moment is not None and moment.seconds == 0 else None

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if name == "open":
            flags = arguments[2]
            if not isinstance(flags, int) or not flags & WRITING or str(arguments[0]).startswith("/dev/"):
                return
        elif name not in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            return
        count += 1
        if count == exact:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(pipe, b".")

    sys.addaudithook(hook)


def _wait(pid: int, pipe: int, moment: Moment | None, began: float, timeout_s: float) -> tuple[int, int]:
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_NONBLOCK)
    events, due = 0, None
    if moment is not None and moment.event is None:
        due = began + moment.seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        try:
            while read := os.read(pipe, 4096):
                events += len(read)
        except BlockingIOError:
            pass
        if done:
            return os.waitstatus_to_exitcode(status), events
        now = time.monotonic()
        if due is None and moment is not None and moment.event is not None and events >= moment.event:
            due = now + moment.seconds
        if now > began + timeout_s or (due is not None and now >= due):
            os.kill(pid, signal.SIGKILL)
            due = now + timeout_s
        time.sleep(POLL_S)
