"""The campaigns themselves: a small run of each, and that they notice what they look for."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.campaigns.contents import digest, is_finite
from tests.campaigns.damage import damage
from tests.campaigns.edits import OF_FORM
from tests.campaigns.results import differences, snapshot

ROOT = Path(__file__).resolve().parents[2]

PLANTED = """
import os, signal, sys, time
from pathlib import Path

from asmil.errors import AsmilError
from tests.campaigns import fuzz
from tests.campaigns.kinds import Kind, all_kinds


def read(what):
    def of(folder):
        text = (folder / "a7.txt").read_text(errors="replace")
        if text == "1 2 3\\n":
            return 1.0
        return what(text)
    return of


def refuse(text):
    raise AsmilError("a7.txt: it is damaged; copy it again")


def refuse_without_a_name(text):
    raise AsmilError("it is damaged")


def trip(text):
    print("Traceback (most recent call last):", file=sys.stderr)
    return 2.0


planted = {
    "clear error": refuse,
    "unclear error": refuse_without_a_name,
    "raw exception": lambda text: {}["missing"],
    "not finite": lambda text: float("nan"),
    "other content": lambda text: 2.0,
    "same result": lambda text: 1.0,
    "traceback": trip,
    "hang": lambda text: time.sleep(60),
    "crash": lambda text: os.kill(os.getpid(), signal.SIGSEGV),
}
kinds = {
    name: Kind(name, "a7.txt", "noform", lambda folder: (folder / "a7.txt").write_text("1 2 3\\n"), read(what))
    for name, what in planted.items()
}
fuzz.all_kinds = lambda: kinds
found = fuzz.main(["--files", "9", "--seed", "4", "--timeout", "0.5", "--workers", "1"])
fuzz.all_kinds = all_kinds
fuzz.main(["--files", "60", "--seed", "1", "--kinds", "annotations", "--workers", "1"])
sys.exit(found)
"""

INTERRUPTED = """
import sys

from tests.campaigns import full_disk, kill

killed = kill.main(["--kills", "3", "--seed", "0", "--commands", "pack", "--workers", "1"])
sys.exit(killed + full_disk.main(["--trials", "2", "--commands", "pack", "--workers", "1"]))
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_fuzzing_tells_outcomes_apart_and_reads_a_few_files():
    done = run("-c", PLANTED)
    assert done.returncode == 1, done.stderr
    assert "60 files" in done.stdout
    planted = done.stdout.partition("9 files")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in planted.splitlines() if "|" in line]
    header, body = rows[0], {row[0]: row for row in rows[2:]}
    for name in header[2:]:
        assert body[name][header.index(name)] == "1", f"{name}: {done.stdout}"
    assert "4:" in done.stdout  # by which a finding is replayed


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="small disks are made as on Linux")
def test_a_few_kills_and_a_full_disk():
    done = run("-c", INTERRUPTED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| pack |") == 2


@pytest.mark.parametrize("form", sorted(OF_FORM.keys() - {"jsonl"}))  # only trainings write those
def test_the_same_seed_does_the_same_damage(tmp_path, form):
    from tests.campaigns.kinds import all_kinds

    of_form = [kind for kind in all_kinds().values() if kind.form == form]
    kind = min(of_form, key=lambda kind: kind.name.startswith("run "))
    kind.make(tmp_path)
    file = tmp_path / kind.file
    pristine = file.read_bytes()
    changed = 0
    for number in range(12):
        found = []
        for _ in range(2):
            file.write_bytes(pristine)
            OF_FORM[form](file, np.random.default_rng(number))
            found.append(file.read_bytes())
        assert found[0] == found[1]
        changed += found[0] != pristine
    assert changed > 6


def test_damage_of_bytes_is_repeatable(tmp_path):
    file = tmp_path / "a.bin"
    for number in range(40):
        results = []
        for _ in range(2):
            if file.is_dir() and not file.is_symlink():
                file.rmdir()
            file.unlink(missing_ok=True)
            file.write_bytes(bytes(range(256)) * 8)
            what = damage(file, "bytes", np.random.default_rng(number))
            results.append((what, file.read_bytes() if file.is_file() else None))
        assert results[0] == results[1]


def test_readings_are_told_apart():
    assert digest({"a": np.arange(3)}) == digest({"a": np.arange(3)})
    assert digest({"a": np.arange(3)}) != digest({"a": np.arange(3.0)})
    assert digest([Path("a")]) == digest([Path("b")])
    assert is_finite([1.0, np.ones(2)])
    assert not is_finite([1.0, np.array([np.inf])])


def test_results_are_compared(tmp_path):
    (tmp_path / "a.json").write_text('{"seconds": 1, "b": 2}')
    before = snapshot(tmp_path)
    (tmp_path / "a.json").write_text('{"seconds": 9, "b": 2}')
    assert differences(snapshot(tmp_path), before) == []
    (tmp_path / "a.json").write_text('{"seconds": 9, "b": 3}')
    (tmp_path / ".x.partial").write_text("")
    assert {line.partition(":")[0] for line in differences(snapshot(tmp_path), before)} == {"differs", "left over"}
    (tmp_path / "a.json").unlink()
    assert "lost: a.json" in differences(snapshot(tmp_path), before)
