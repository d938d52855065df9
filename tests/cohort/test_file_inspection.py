"""The process that reads feature files starts at once, since it imports nothing that only training needs."""

import subprocess
import sys

import numpy as np
import pytest

from asmil.cohort.features import Provenance, write_features
from feature_writers import grid, tiles

SCRIPT = """
import sys
from pathlib import Path
import asmil.engine.process
from asmil.cohort.file_inspection import inspect_file
from asmil.cohort.source import FeatureSource
read = inspect_file(False, True, (FeatureSource(Path(sys.argv[1])), "slide", None))
print(read.info.n_tiles, *{"torch", "pandas", "scipy", "sklearn"} & set(sys.modules))
"""


@pytest.mark.parametrize("ending", ["h5", "npy"])
def test_reading_a_file_of_features_needs_no_torch(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    if ending == "h5":
        write_features(path, tiles(0, 30), grid(30), Provenance(encoder="uni"))
    else:
        np.save(path, tiles(0, 30))
    done = subprocess.run([sys.executable, "-c", SCRIPT, path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["30"]
