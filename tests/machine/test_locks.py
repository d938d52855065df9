"""One writer at a time, and no lock outlives its process."""

import subprocess
import sys
import threading
import time

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


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_again(tmp_path):
    """A waiting process does not end up with the lock of a file that is gone."""
    path, there = tmp_path / "lock", []

    def wait_for_it():
        with locked(path):
            there.append(path.exists())

    waiting = threading.Thread(target=wait_for_it)
    with locked(path):
        waiting.start()
        time.sleep(0.2)
        path.unlink()
    waiting.join()
    assert there == [True]


def test_locks_of_one_process_exclude_each_other(tmp_path):
    with locked(tmp_path / "lock"), pytest.raises(AsmilError, match="busy"), locked(tmp_path / "lock", "busy"):
        pass
