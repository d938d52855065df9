"""What a prediction says of a slide that is unlike those of the training."""

import json

import numpy as np
import pytest

from asmil.cohort.features import FeatureSource, Provenance, inspect_features, write_features
from asmil.runs.prediction import slide_notes


def info(tmp_path, tiles=20, **provenance):
    path = tmp_path / "a.h5"
    write_features(path, np.ones((tiles, 4)), np.zeros((tiles, 2)), Provenance(**provenance))
    return inspect_features(FeatureSource(path))


def test_nothing_to_say(tmp_path):
    assert slide_notes([info(tmp_path, mpp=0.25, mpp_source="openslide", tile_um=128.0, tile_px=256)]) == ""


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mpp": 2.0, "mpp_source": "openslide", "tile_um": 128.0, "tile_px": 256}, "2 um/px"),
        ({"mpp": 0.5, "mpp_source": "objective (guess)"}, "guessed"),
        ({"extraction": json.dumps({"tissue": {"share": 0.5, "notes": ["dark background"]}})}, "dark background"),
        ({"tiles": 3}, "3 tiles"),
    ],
)
def test_what_a_reader_should_know(tmp_path, options, named):
    assert named in slide_notes([info(tmp_path, **options)])
