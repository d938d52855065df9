"""Commands on a disk that fills up: a sentence and an exit code, what was whole stays whole, the rest is done later.

python -m tests.campaigns.full_disk --trials 100 --seed 0
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.campaigns.commands import COMMANDS, Command, Ended, import_all, prepare, run_to_end
from tests.campaigns.forked import run_forked
from tests.campaigns.kill import TRIAL_S, Campaign, Reference, Trial, end, lost_trial, problems_of, table
from tests.campaigns.results import differences, snapshot
from tests.campaigns.small_disk import SmallDisk, limited_files, own_mounts

AGAIN_SHARE = 0.3
"""Of the trials: all is done, and the command is given once more without any room."""


class FullDisk(Campaign):
    """Commands whose disk, or largest file, is limited at a share of what they need."""

    def on_a_full_disk(self, number: int) -> Trial:
        """Run a command with too little room, then with enough."""
        draw = np.random.default_rng([self.seed, number])
        command = self.commands[number % len(self.commands)]
        reference = self.references[command.name]
        share = float(draw.uniform(0.01, 0.99))
        again = draw.random() < AGAIN_SHARE
        place = self.folder / f"trial-{number}"
        try:
            if own_mounts():
                return self._on_a_small_disk(number, command, place, reference, share, again)
            return self._with_small_files(number, command, place, reference, share)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _on_a_small_disk(
        self, number: int, command: Command, place: Path, reference: Reference, share: float, again: bool
    ) -> Trial:
        log = place.with_suffix(".log")
        disk = SmallDisk(place)
        try:
            prepare(command, self.data, place)
            if again:
                whole = problems_of(run_to_end(command, place, log), place, reference)
                disk.leave(0)
                problems = [*whole, *_ill_mannered(run_to_end(command, place, log))]
                disk.make_room()
                problems += differences(snapshot(place), reference.results)
                return Trial(number, command.name, ("no room, given again",), tuple(problems))
            disk.leave(int(share * reference.written))
            ended = run_to_end(command, place, log)
            problems = _ill_mannered(ended)
            disk.make_room()
            problems += problems_of(run_to_end(command, place, log), place, reference)
            return Trial(number, command.name, (f"{share:.0%} of the room",) * (ended.code != 0), tuple(problems))
        finally:
            disk.close()

    def _with_small_files(
        self, number: int, command: Command, place: Path, reference: Reference, share: float
    ) -> Trial:
        log = place.with_suffix(".log")
        prepare(command, self.data, place)
        ended = run_to_end(command, place, log, before=limited_files(max(1, int(share * reference.largest))))
        problems = _ill_mannered(ended)
        problems += problems_of(run_to_end(command, place, log), place, reference)
        return Trial(number, command.name, (f"files up to {share:.0%}",) * (ended.code != 0), tuple(problems))


def _ill_mannered(ended: Ended) -> list[str]:
    """What a command may not do when there is no room."""
    told = " ".join(ended.output.split())[-300:]
    if ended.code < 0:
        return [f"ends by signal {-ended.code}: {told}"]
    if "Traceback (most recent call last)" in ended.output:
        return [f"a traceback: {told}"]
    if ended.code != 0 and not any(word in ended.output for word in ("error: ", "failed: ")):
        return [f"ends with {ended.code} without a sentence: {told}"]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if any trial failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.full_disk", description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default="", help="only those whose name contains this; changes the numbers")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    commands = [command for command in COMMANDS if options.commands in command.name]
    if not commands:
        parser.error(f"no command contains {options.commands!r}; known are {', '.join(one.name for one in COMMANDS)}")
    import_all()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="asmil-disk-") as name:
        campaign = FullDisk(commands, Path(name), options.seed, options.workers)
        campaign.prepare()
        trials = []
        for number, found in run_forked(
            range(options.trials), lambda _: campaign.on_a_full_disk, options.workers, TRIAL_S
        ):
            trials.append(found if isinstance(found, Trial) else lost_trial(campaign, number, found))
    trials.sort(key=lambda trial: trial.number)
    print(table(trials, "full"))
    how = "a small disk" if os.geteuid() == 0 else "small files"
    return end(trials, f"{len(trials)} trials on {how}", options.seed, began)


if __name__ == "__main__":
    sys.exit(main())
