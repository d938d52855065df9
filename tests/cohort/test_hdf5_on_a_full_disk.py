"""A disk that becomes full while HDF5 is written: one sentence and the old file, never a crash of the process."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

from asmil.cohort.hdf5 import new_hdf5

# a limit on file sizes stands for the full disk: every write beyond it fails in the same way
SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np
from asmil import AsmilError
from asmil.runs.attention_file import AttentionWriter, RecordedSlides, Recording

n = 4000
slides = RecordedSlides("epoch", ("a", "b"), ("s", "t"), np.array([0, 1]), ("train", "val"), np.array([n, n]))
writer = AttentionWriter(Path(sys.argv[1]), slides, {})
draw = np.random.default_rng(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
for step in range(3):
    weights = [draw.random(n, dtype=np.float32) for _ in range(2)]
    writer.add(Recording(step, step, weights, np.zeros((2, 2)), np.zeros((2, 3))))
try:
    writer.finish({})
except AsmilError as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.parametrize("limit_bytes", [0, 1, 2048, 20_000])
def test_recorded_attention_on_a_full_disk(tmp_path, limit_bytes):
    words = [sys.executable, "-c", SCRIPT, str(tmp_path), str(limit_bytes)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "part-000000000.h5" in done.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_nothing_is_on_the_disk_before_the_file_is_whole(tmp_path):
    with new_hdf5(tmp_path / "a.h5") as file:
        file["values"] = np.arange(100_000)
        file.flush()
        assert list(tmp_path.iterdir()) == []
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["values"][-1] == 99_999


def test_a_block_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), new_hdf5(path) as file:
        file["values"] = object()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
