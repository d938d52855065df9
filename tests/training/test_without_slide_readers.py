"""Training from features needs nothing that opens slides: a GPU machine may lack it."""

import subprocess
import sys

import pandas as pd
import pytest

SCRIPT = """
import sys
for name in ("openslide", "cv2", "imagecodecs", "tifffile"):
    sys.modules[name] = None
import asmil.training.run
from asmil.cli.main import app
cohort, out, features = sys.argv[1:]
quick = ["--method", "abmil", "--set", "training.epochs=1", "--quiet"]
for words in (
    ["train", cohort, "--out", f"{out}/run", *quick],
    ["evaluate", f"{out}/run"],
    ["predict", f"{out}/run", features, "--out", f"{out}/p.csv", "--quiet"],
    ["predict", f"{out}/run", cohort, "--out", f"{out}/q.csv", "--quiet"],
):
    app(words, standalone_mode=False)
"""


@pytest.mark.heavy
def test_features_are_trained_evaluated_and_predicted_without_slide_readers(small_cohort, tmp_path):
    words = [sys.executable, "-c", SCRIPT, small_cohort, tmp_path, small_cohort.parent / "features"]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    of_features, of_cohort = (pd.read_csv(tmp_path / name, dtype=str) for name in ("p.csv", "q.csv"))
    assert of_cohort["target"].notna().all()
    pd.testing.assert_frame_equal(of_features, of_cohort.drop(columns="target"))
