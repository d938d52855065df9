"""Run folders and feature files that earlier versions wrote still open, and predict what they predicted then.

`versions/X.Y.Z` was written by the code of that version: `asmil synthetic cohort --slides 12 --width 16 --tiles-min 20
--tiles-max 24`, `asmil train cohort/cohort.csv --method abmil --out run --set training.epochs=1 --set model.inner=8
--set model.attention=4 --set record.attention=none` (0.1.0 has no `record`) and `asmil predict run cohort/features
--out predicted.csv`; two of the feature files are kept, and of the run what a prediction reads.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import asmil
from asmil.cohort.features import FeatureSource, inspect_features, read_bag
from asmil.evaluation.evaluate import evaluate_run
from asmil.version import __version__

VERSIONS = Path(__file__).parent / "versions"
NAMES = sorted(path.name for path in VERSIONS.iterdir())


@pytest.mark.parametrize("version", NAMES)
def test_feature_files_open(version):
    for path in sorted((VERSIONS / version / "features").glob("*.h5")):
        source = FeatureSource(path)
        bag = read_bag(source, path.stem, verify=True)
        assert bag.width == 16
        assert 20 <= len(bag) <= 24
        assert bag.coords is not None
        assert inspect_features(source).layout == "asmil"
        assert inspect_features(source).tile_um


@pytest.mark.parametrize("version", NAMES)
def test_runs_open_and_predict_as_they_did(version):
    folder = VERSIONS / version
    run = asmil.load_run(folder / "run", device="cpu")
    found = run.predict(folder / "features").set_index("slide")
    frozen = pd.read_csv(folder / "predicted.csv").set_index("slide").loc[found.index]
    np.testing.assert_allclose(found["prob_tumor"], frozen["prob_tumor"], atol=1e-5)
    assert list(found.index) == ["slide-0000", "slide-0001"]


@pytest.mark.parametrize("version", NAMES)
def test_the_predictions_of_runs_are_evaluated(version):
    assert evaluate_run(VERSIONS / version / "run", resamples=20).metrics


def test_the_version_is_the_same_everywhere():
    repository = Path(__file__).parents[2]
    cited = re.search(r"^version: (.+)$", (repository / "CITATION.cff").read_text(), re.MULTILINE)
    released = re.findall(r"^## \[(\d[^]]*)\]", (repository / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == __version__ == released[0]
    assert released == sorted(released, reverse=True)


def test_every_minor_version_is_kept():
    major, minor = (int(part) for part in __version__.split(".")[:2])
    assert {f"{major}.{number}.0" for number in range(1, minor + 1)} <= set(NAMES)
