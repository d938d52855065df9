"""FROC of cohorts with known tiles is measured on machines that have no packages for images."""

import json
import subprocess
import sys

import pytest
import yaml

PROGRAM = """
import json, sys
from pathlib import Path

IMAGES = {"cv2", "tifffile", "openslide", "imagecodecs", "PIL", "shapely"}


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in IMAGES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
from asmil.engine import InlineEngine
from asmil.experiments.running import SweepFolder
from asmil.experiments.settings import read_sweep

folder = SweepFolder(read_sweep(Path(sys.argv[1])), Path(sys.argv[2]), on_gpu=False)
print(json.dumps([[end.status, end.error] for end in folder.run(InlineEngine())]))
"""


@pytest.mark.heavy
def test_froc_needs_no_image_readers(tmp_path):
    plan = tmp_path / "sweep.yaml"
    synthetic = {"slides": 40, "width": 16, "tiles_min": 20, "tiles_max": 30}
    values = {
        "cohorts": {"toy": {"synthetic": synthetic}},
        "variants": {"abmil": {"method": "abmil"}},
        "settings": {"training.epochs": 1, "record.attention": "none"},
        "measures": ["slides", "froc"],
    }
    plan.write_text(yaml.safe_dump(values))
    command = [sys.executable, "-c", PROGRAM, str(plan), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["done", None]]
    (result,) = (tmp_path / "out").glob("runs/*/*/measures.json")
    (row,) = json.loads(result.read_text())["rows"]
    assert 0 <= row["froc"] <= 1
