"""One writer at a time, and no lock outlives its process."""

import subprocess
import sys

import pytest

from asmil import AsmilError
from asmil.machine.locks import locked, locked_folder

HOLD = """
import sys
from pathlib import Path
from asmil.machine.locks import locked
with locked(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    path = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield path, process
    process.kill()
    process.wait()


def test_a_second_holder_is_refused_and_a_killed_one_blocks_nobody(holder):
    path, process = holder
    with pytest.raises(AsmilError, match="busy"), locked(path, "busy"):
        pass
    process.kill()
    process.wait()
    with locked(path, "busy"):
        pass


def test_a_folder_that_got_no_file_is_removed(tmp_path):
    folder = tmp_path / "a" / "b"
    with pytest.raises(ZeroDivisionError), locked_folder(folder, ".lock", "busy"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with locked_folder(folder, ".lock", "busy"):
        (folder / "file").touch()
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "file"]


def test_a_folder_that_was_there_stays(tmp_path):
    with locked_folder(tmp_path, ".lock", "busy"):
        pass
    assert tmp_path.is_dir()


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_again(tmp_path, monkeypatch):
    import asmil.machine.locks as locks

    path, taken = tmp_path / "lock", []
    original = locks._take

    def take(file, busy):
        original(file, busy)
        taken.append(file)
        if len(taken) == 1:
            path.unlink()

    monkeypatch.setattr(locks, "_take", take)
    with locked(path):
        assert path.exists()
    assert len(taken) == 2
