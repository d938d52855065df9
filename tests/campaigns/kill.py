"""Commands killed at any moment and given again: they must end with the bits of an uninterrupted run.

python -m tests.campaigns.kill --kills 300 --seed 0
python -m tests.campaigns.kill --replay 0:17
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asmil.files import ABANDONED_SECONDS
from tests.campaigns.commands import (
    COMMANDS,
    ROOT,
    Command,
    Ended,
    Moment,
    import_all,
    make_data,
    prepare,
    run_to_end,
)
from tests.campaigns.forked import Died, Hung, run_forked
from tests.campaigns.results import differences, snapshot

MOST_KILLS = 4
REAL_EVERY = 20
"""One of so many trials starts `python -m asmil` anew, as a user does, instead of forking."""
TRIAL_S = 3600.0
START_S = 60.0


@dataclass(frozen=True)
class Reference:
    """What an uninterrupted run left, how long it took, its events, and its bytes: all, and of the largest file."""

    results: dict[str, str]
    seconds: float
    events: int
    written: int
    largest: int


@dataclass(frozen=True)
class Trial:
    """A command, killed several times and then left alone."""

    number: int
    command: str
    kills: tuple[str, ...]
    problems: tuple[str, ...]


class Campaign:
    """The commands with their inputs and references, in a folder."""

    def __init__(self, commands: Sequence[Command], folder: Path, seed: int, workers: int) -> None:
        self.commands, self.folder, self.seed, self.workers = commands, folder, seed, workers
        self.data = folder / "data"
        self.references: dict[str, Reference] = {}

    def prepare(self) -> None:
        """Make the inputs, and run every command without interruption."""
        inputs = {name for command in self.commands for name in command.inputs}
        _in_a_process(lambda: make_data(self.data, inputs))
        places = range(len(self.commands))
        for place, found in run_forked(places, lambda _: self._reference, self.workers, TRIAL_S):
            if not isinstance(found, Reference):
                raise RuntimeError(f"{self.commands[place].name}: {found}")
            self.references[self.commands[place].name] = found

    def _reference(self, number: int) -> Reference | str:
        command = self.commands[number]
        place = self.folder / "references" / command.name
        prepare(command, self.data, place)
        ended = run_to_end(command, place, place.with_suffix(".log"))
        if ended.code != 0:
            return f"it fails without being interrupted: {ended.output[-1000:]}"
        sizes = [path.stat().st_size for path in (place / "out").rglob("*") if path.is_file()]
        return Reference(snapshot(place), ended.seconds, ended.events, sum(sizes), max(sizes))

    def trial(self, number: int) -> Trial:
        """Kill a command at moments that the seed and the number decide, give it again, and compare."""
        draw = np.random.default_rng([self.seed, number])
        command = self.commands[number % len(self.commands)]
        reference = self.references[command.name]
        place = self.folder / f"trial-{number}"
        prepare(command, self.data, place)
        try:
            if number % REAL_EVERY == REAL_EVERY - 1:
                return self._real(number, command, place, reference, draw)
            return self._forked(number, command, place, reference, draw)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _forked(
        self, number: int, command: Command, place: Path, reference: Reference, draw: np.random.Generator
    ) -> Trial:
        log = place.with_suffix(".log")
        kills: list[str] = []
        left = reference.events
        for _ in range(int(draw.integers(1, MOST_KILLS + 1))):
            moment = _moment(reference, left, draw)
            ended = run_to_end(command, place, log, moment)
            if ended.code != -signal.SIGKILL:
                problems = problems_of(ended, place, reference)
                return Trial(number, command.name, tuple(kills), tuple(problems))
            kills.append(f"event {moment.event} + {moment.seconds:.3f} s")
            _age_partials(place)
            left = max(2, left - ended.events)
        return Trial(
            number, command.name, tuple(kills), tuple(problems_of(run_to_end(command, place, log), place, reference))
        )

    def _real(
        self, number: int, command: Command, place: Path, reference: Reference, draw: np.random.Generator
    ) -> Trial:
        kills = []
        process = _start(command, place)
        if _out_appears(place, process):
            time.sleep(float(draw.uniform(0, reference.seconds)))
        if process.poll() is None:
            process.kill()
            kills.append("a process of its own")
        process.communicate()
        _age_partials(place)
        process = _start(command, place)
        output, _ = process.communicate(timeout=TRIAL_S)
        ended = Ended(process.returncode, output, 0.0)
        return Trial(number, command.name, tuple(kills), tuple(problems_of(ended, place, reference)))


def _age_partials(place: Path) -> None:
    """Let an hour pass for temporary files: younger ones are kept, since another process may be writing them."""
    before = time.time() - 2 * ABANDONED_SECONDS
    for partial in place.rglob(".*.partial"):
        os.utime(partial, (before, before))


def _moment(reference: Reference, left: int, draw: np.random.Generator) -> Moment:
    """At an event, shortly after one, or after some time."""
    kind = draw.random()
    event = int(draw.integers(1, left + 1))
    if kind < 0.5:
        return Moment(event, 0.0)
    if kind < 0.75:
        return Moment(event, float(draw.uniform(0.0005, 2 * reference.seconds / reference.events)))
    return Moment(None, float(draw.uniform(0.05, 0.95)) * reference.seconds * left / reference.events)


def problems_of(ended: Ended, place: Path, reference: Reference) -> list[str]:
    """What is wrong with how a command ended, and with what it left."""
    found = []
    if ended.code != 0:
        told = " ".join(ended.output.split())[-300:]
        found.append(f"ends with {ended.code}: {told}")
    if "Traceback (most recent call last)" in ended.output:
        found.append("a traceback")
    return [*found, *differences(snapshot(place), reference.results)]


def _start(command: Command, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "asmil", *command.arguments],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _out_appears(place: Path, process: subprocess.Popen[str]) -> bool:
    end = time.monotonic() + START_S
    while not (place / "out").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return (place / "out").exists()


def _in_a_process(work: Callable[[], None]) -> None:
    """The parent of forked workers must not start threads, so the work is done by a child."""

    def make_work(_: int) -> Any:
        def run(__: int) -> str | None:
            try:
                work()
            except Exception:  # noqa: BLE001 told by the parent
                return traceback.format_exc()
            return None

        return run

    ((_, problem),) = run_forked([0], make_work, 1, TRIAL_S)
    if problem is not None:
        raise RuntimeError(str(problem))


def run_trials(campaign: Campaign, kills: int) -> list[Trial]:
    """Trials until so many processes were killed."""
    trials: list[Trial] = []
    began = time.monotonic()
    while (done := sum(len(trial.kills) for trial in trials)) < kills:
        wanted = max(campaign.workers, (kills - done) // 2)
        numbers = range(len(trials), len(trials) + wanted)
        for number, found in run_forked(numbers, lambda _: campaign.trial, campaign.workers, TRIAL_S):
            trials.append(found if isinstance(found, Trial) else lost_trial(campaign, number, found))
            if trials[-1].problems:
                print(f"  {problems_text(trials[-1:], campaign.seed)}", file=sys.stderr)
        done = sum(len(trial.kills) for trial in trials)
        print(f"  {done} of {kills} kills, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return sorted(trials, key=lambda trial: trial.number)


def lost_trial(campaign: Campaign, number: int, found: Hung | Died) -> Trial:
    """A trial that did not come to an end."""
    what = f"hangs for {found.seconds:g} s" if isinstance(found, Hung) else f"the campaign itself broke: {found.how}"
    return Trial(number, campaign.commands[number % len(campaign.commands)].name, (), (what,))


def table(trials: Iterable[Trial], disturbed: str = "kills") -> str:
    """Trials, disturbances and failed trials of every command, as Markdown."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for trial in trials:
        counts[trial.command].update(trials=1, kills=len(trial.kills), failed=int(bool(trial.problems)))
    total: Counter[str] = sum(counts.values(), Counter())
    lines = [f"| command | trials | {disturbed} | failed |", "| --- | ---: | ---: | ---: |"]
    for name, count in [*counts.items(), ("all", total)]:
        lines.append(f"| {name} | {count['trials']} | {count['kills']} | {count['failed'] or ''} |")
    return "\n".join(lines)


def problems_text(trials: Iterable[Trial], seed: int) -> str:
    """What went wrong, with the number by which a trial is replayed."""
    return "\n".join(
        f"{trial.command} [{seed}:{trial.number}], disturbed at {'; '.join(trial.kills)}: "
        + ", ".join(trial.problems[:4])
        + (f" and {len(trial.problems) - 4} more" if trial.problems[4:] else "")
        for trial in trials
        if trial.problems
    )


def end(trials: Sequence[Trial], what: str, seed: int, began: float) -> int:
    """Print what was done and what went wrong; returns the exit code."""
    failed = sum(bool(trial.problems) for trial in trials)
    print(f"\n{what}, seed {seed}, {time.monotonic() - began:.0f} s: {failed} trials failed")
    if failed:
        print(problems_text(trials, seed))
    return int(failed > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if any trial failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="processes to kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default="", help="only those whose name contains this; changes the numbers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--replay", metavar="SEED:NUMBER", help="one trial again")
    options = parser.parse_args(arguments)
    commands = [command for command in COMMANDS if options.commands in command.name]
    if not commands:
        parser.error(f"no command contains {options.commands!r}; known are {', '.join(one.name for one in COMMANDS)}")
    import_all()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="asmil-kill-") as name:
        if options.replay:
            seed, _, number = options.replay.partition(":")
            campaign = Campaign(commands, Path(name), int(seed), 1)
            campaign.prepare()
            ((_, found),) = run_forked([int(number)], lambda _: campaign.trial, 1, TRIAL_S)
            trials = [found if isinstance(found, Trial) else lost_trial(campaign, int(number), found)]
        else:
            campaign = Campaign(commands, Path(name), options.seed, options.workers)
            campaign.prepare()
            trials = run_trials(campaign, options.kills)
    print(table(trials))
    kills = sum(len(trial.kills) for trial in trials)
    return end(trials, f"{kills} kills in {len(trials)} trials", campaign.seed, began)


if __name__ == "__main__":
    sys.exit(main())
