"""Damaged files of every kind, read by the public functions: a clear error, the same, or other content; nothing else.

python -m tests.campaigns.fuzz --files 5000 --seed 0
python -m tests.campaigns.fuzz --replay 0:1234
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import asmil
from asmil.errors import AsmilError
from tests.campaigns.contents import digest, is_finite
from tests.campaigns.damage import Damage, damage, restore
from tests.campaigns.forked import Died, Hung, run_forked
from tests.campaigns.kinds import Kind, all_kinds

GOOD = ("clear error", "same result", "other content")
FINDINGS = ("unclear error", "raw exception", "not finite", "unfit accepted", "traceback", "hang", "crash")
TIMEOUT_S = 20.0
PATIENCE = 2
"""A file that took too long is tried once more with so many times the limit: the machine may have been busy."""
MEMORY_MB = 3000
SHOWN_IDS = 4


@dataclass(frozen=True)
class Outcome:
    """What became of one damaged file; `where` is the place in asmil from which an exception came."""

    name: str
    kind: str
    damage: str = ""
    message: str = ""
    where: str = ""


class DamagedFiles:
    """Reads damaged files one after another, in a folder of its own.

    seed: with the number of a file it decides the kind and the damage
    """

    def __init__(self, kinds: Sequence[Kind], templates: Path, folder: Path, seed: int) -> None:
        self.kinds, self.templates, self.folder, self.seed = kinds, templates, folder, seed
        self._known: dict[str, tuple[bytes, str, bool]] = {}

    def __call__(self, index: int) -> Outcome:
        """The outcome of the file with this number."""
        kind = self.kinds[index % len(self.kinds)]
        place = self.folder / kind.name
        file = place / kind.file
        pristine, expected, was_finite = self._pristine(kind)
        done = damage(file, kind.form, np.random.default_rng([self.seed, index]))
        try:
            if file.is_file() and file.read_bytes() == pristine:
                return Outcome("same result", kind.name, done.what)
            return self._outcome(kind, place, done, expected, was_finite)
        finally:
            if kind.writes:
                shutil.rmtree(place)
                shutil.copytree(self.templates / kind.name, place)
            else:
                restore(file, pristine)

    def damaged_copy(self, index: int, target: Path) -> tuple[Path, str]:
        """One damaged file in a copy of its folder, to look at, and what was done to it."""
        kind = self.kinds[index % len(self.kinds)]
        shutil.copytree(self.templates / kind.name, target)
        done = damage(target / kind.file, kind.form, np.random.default_rng([self.seed, index]))
        return target / kind.file, done.what

    def describe(self, index: int) -> str:
        """What is done to a file."""
        with tempfile.TemporaryDirectory() as name:
            return self.damaged_copy(index, Path(name) / "copy")[1]

    def _pristine(self, kind: Kind) -> tuple[bytes, str, bool]:
        if kind.name not in self._known:
            place = self.folder / kind.name
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(self.templates / kind.name, place)
            pristine = (place / kind.file).read_bytes()
            try:
                value = kind.read(place)
                self._known[kind.name] = pristine, digest(value), is_finite(value)
            except AsmilError:
                if not kind.refused:
                    raise
                self._known[kind.name] = pristine, "refused", True
            if kind.writes:
                shutil.rmtree(place)
                shutil.copytree(self.templates / kind.name, place)
        return self._known[kind.name]

    def _outcome(self, kind: Kind, place: Path, done: Damage, expected: str, was_finite: bool) -> Outcome:
        found = Outcome("", kind.name, done.what)
        try:
            value = kind.read(place)
        except AsmilError as error:
            name = "clear error" if _names_the_file(str(error), kind, place) else "unclear error"
            return replace(found, name=name, message=str(error), where=_where(error))
        except OSError as error:
            if error.filename is not None:  # which `asmil` tells in one sentence
                return replace(found, name="clear error", message=str(error))
            return replace(found, name="raw exception", message=_describe(error), where=_where(error))
        except Exception as error:  # noqa: BLE001 that is what is looked for
            return replace(found, name="raw exception", message=_describe(error), where=_where(error))
        if was_finite and not is_finite(value):
            return replace(found, name="not finite")
        if digest(value) == expected:
            return replace(found, name="same result")
        return replace(found, name="unfit accepted" if done.unfit else "other content")


def _names_the_file(message: str, kind: Kind, place: Path) -> bool:
    """Whether a message names the file, its slide or the folder that it lies in."""
    file = Path(kind.file)
    slide = [file.stem] if any(letter.isdigit() for letter in file.stem) else []
    return any(name in message for name in (file.name, str(place), *slide))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _where(error: BaseException) -> str:
    """The last line of asmil that an exception passed."""
    home = str(Path(asmil.__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(home)]
    if not frames:
        return "outside of asmil"
    return f"{Path(frames[-1].filename).relative_to(home)}:{frames[-1].lineno}"


class _Worker:
    """Reads in a forked process with limited memory, and looks at what libraries print."""

    def __init__(self, files: DamagedFiles, log: Path) -> None:
        self.files = files
        self.log = log
        self._output = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(self._output, 1)
        os.dup2(self._output, 2)
        used = _used_address_space()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_MB * 2**20,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def __call__(self, index: int) -> Outcome:
        os.ftruncate(self._output, 0)
        os.lseek(self._output, 0, os.SEEK_SET)
        outcome = self.files(index)
        sys.stderr.flush()
        printed = self.log.read_text(encoding="utf-8", errors="replace")
        if "Traceback (most recent call last)" in printed and outcome.name in GOOD:
            return replace(outcome, name="traceback", message=printed.strip()[-300:])
        return outcome


def _used_address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def make_templates(kinds: Iterable[Kind], folder: Path) -> None:
    """Write a valid file of every kind, in a process of its own: the parent of the workers must not start threads."""

    def make_work(_: int) -> Any:
        def make(number: int) -> str | None:
            try:
                for kind in kinds:
                    (folder / kind.name).mkdir(parents=True)
                    kind.make(folder / kind.name)
                    _read_once(kind, folder / kind.name)
            except Exception:  # noqa: BLE001 told by the parent
                return traceback.format_exc()
            return None

        return make

    ((_, problem),) = run_forked([0], make_work, 1, timeout_s=1800)  # also on a busy machine
    if problem is not None:
        raise RuntimeError(f"the valid files could not be made: {problem}")


def _read_once(kind: Kind, folder: Path) -> None:
    """A valid file must be readable, or else nothing is learned from damaged ones."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "copy"
        shutil.copytree(folder, place)
        try:
            kind.read(place)
        except AsmilError as error:
            if not kind.refused:
                raise RuntimeError(f"{kind.name}: {error}") from error


def fuzz(
    kinds: Sequence[Kind],
    indices: Sequence[int],
    seed: int,
    folder: Path,
    workers: int = 2,
    timeout_s: float = TIMEOUT_S,
) -> dict[int, Outcome]:
    """The outcome of every damaged file by its number."""
    templates = folder / "valid"
    make_templates(kinds, templates)

    def make_work(slot: int) -> _Worker:
        place = Path(tempfile.mkdtemp(prefix=f"worker-{slot}-", dir=folder))
        return _Worker(DamagedFiles(kinds, templates, place, seed), place / "output")

    found: dict[int, Outcome] = {}
    began = time.monotonic()
    for index, result in run_forked(indices, make_work, workers, timeout_s):
        found[index] = result
        if len(found) % 500 == 0:
            print(f"  {len(found)} of {len(indices)} files, {time.monotonic() - began:.0f} s", file=sys.stderr)
    late = [index for index, result in found.items() if isinstance(result, Hung)]
    found.update(run_forked(late, make_work, workers, PATIENCE * timeout_s))
    files = DamagedFiles(kinds, templates, folder / "described", seed)
    return {index: _ended(found[index], files, index) for index in sorted(found)}


def _ended(result: Outcome | Hung | Died, files: DamagedFiles, index: int) -> Outcome:
    if isinstance(result, Outcome):
        return result
    kind, what = files.kinds[index % len(files.kinds)].name, files.describe(index)
    if isinstance(result, Hung):
        return Outcome("hang", kind, what, f"longer than {result.seconds:g} s")
    return Outcome("crash", kind, what, result.how)


def table(outcomes: Iterable[Outcome]) -> str:
    """How many files of each kind ended in which way, as Markdown."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.kind][outcome.name] += 1
    total: Counter[str] = sum(counts.values(), Counter())
    shown = [*GOOD, *(name for name in FINDINGS if total[name])]
    lines = [f"| kind | files | {' | '.join(shown)} |", f"| --- |{' ---: |' * (len(shown) + 1)}"]
    for kind, count in [*counts.items(), ("all", total)]:
        lines.append(f"| {kind} | {count.total()} | {' | '.join(str(count[name] or '') for name in shown)} |")
    return "\n".join(lines)


def findings_text(outcomes: dict[int, Outcome], seed: int) -> str:
    """The findings, those of one cause together, with the numbers by which they are replayed."""
    causes: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for index, outcome in outcomes.items():
        if outcome.name in FINDINGS:
            where = outcome.where or outcome.kind
            causes[outcome.name, where, outcome.message.partition(":")[0][:40]].append(index)
    lines = []
    for (name, where, _), indices in sorted(causes.items(), key=lambda item: (item[0][0], -len(item[1]))):
        first = outcomes[indices[0]]
        ids = " ".join(f"{seed}:{index}" for index in indices[:SHOWN_IDS]) + (" ..." if indices[SHOWN_IDS:] else "")
        told = " ".join(first.message.split())[:160]
        lines.append(f"{name}, {len(indices)} x, {where} ({first.kind}; {first.damage}): {told} [{ids}]")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if there was any finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fuzz", description=__doc__)
    parser.add_argument("--files", type=int, default=5000, help="damaged files to read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="only kinds whose name contains this; changes what a number means")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds that a file may take")
    parser.add_argument("--replay", metavar="SEED:NUMBER", help="read one file again and show what happens")
    parser.add_argument("--keep", type=Path, help="with --replay: an absent folder for the damaged file")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in all_kinds().values() if options.kinds in kind.name]
    if not kinds:
        parser.error(f"no kind contains {options.kinds!r}; known are {', '.join(all_kinds())}")
    _one_thread()
    with tempfile.TemporaryDirectory(prefix="asmil-fuzz-") as name:
        folder = Path(name)
        if options.replay:
            seed, _, index = options.replay.partition(":")
            return _replay(kinds, int(seed), int(index), folder, options.timeout, options.keep)
        began = time.monotonic()
        outcomes = fuzz(kinds, range(options.files), options.seed, folder, options.workers, options.timeout)
    print(table(outcomes.values()))
    wrong = sum(outcome.name in FINDINGS for outcome in outcomes.values())
    seconds = time.monotonic() - began
    print(f"\n{len(outcomes)} files of {len(kinds)} kinds, seed {options.seed}, {seconds:.0f} s: {wrong} findings")
    if wrong:
        print(findings_text(outcomes, options.seed))
    return int(wrong > 0)


def _replay(kinds: Sequence[Kind], seed: int, index: int, folder: Path, timeout_s: float, keep: Path | None) -> int:
    kind = kinds[index % len(kinds)]
    make_templates([kind], folder / "valid")
    files = DamagedFiles(kinds, folder / "valid", folder / "here", seed)
    if keep is not None:
        print(files.damaged_copy(index, keep)[0])
    ((_, result),) = run_forked([index], lambda _: files, 1, timeout_s)
    outcome = _ended(result, files, index)
    print(f"{outcome.name}: {outcome.kind}; {outcome.damage}; {outcome.where}\n{outcome.message}")
    return int(outcome.name in FINDINGS)


def _one_thread() -> None:
    """Before the first fork: a library's pool of threads does not survive it."""
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)


if __name__ == "__main__":
    sys.exit(main())
