"""`asmil train --method NAME` with nothing else to do, for every name that `asmil methods` lists."""

import shutil

import h5py
import numpy as np
import pandas as pd
import pytest

from asmil import build, methods
from asmil.explain.color_scale import SIGNED_KINDS
from asmil.runs.attention_file import read_attention
from asmil.runs.epochs import read_epochs
from asmil.synthetic.bags import SyntheticConfig, write_synthetic

pytestmark = pytest.mark.usefixtures("undrawn_figures")


@pytest.fixture(scope="module")
def tiny_cohort(tmp_path_factory):
    """The manifest of a cohort that every method trains on in a fraction of a second."""
    config = SyntheticConfig(slides=16, width=16, tiles_min=20, tiles_max=32, witness_min=0.2, seed=3)
    return write_synthetic(tmp_path_factory.mktemp("tiny") / "cohort", config)


@pytest.mark.heavy
@pytest.mark.parametrize("method", sorted(methods()))
def test_trains_and_predicts(method, asmil_here, tiny_cohort, tmp_path):
    out = tmp_path / "run"
    done = asmil_here("train", tiny_cohort, "--method", method, "--out", out, "--set", "training.epochs=1")
    assert done.returncode == 0, done.stderr
    assert "macro-AUC" in done.stdout
    records = read_epochs(out / "fold-0" / "seed-0" / "metrics.jsonl")
    assert [record["epoch"] for record in records] == list(range(1, len(records) + 1))
    assert all(np.isfinite(value) for record in records for value in record["train"].values())
    features = tiny_cohort.parent / "features"
    done = asmil_here("predict", out, features, "--out", tmp_path / "new.csv", "--attention")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "new.csv")
    assert len(table) == 16
    assert np.allclose(table["prob_normal"] + table["prob_tumor"], 1)
    with h5py.File(tmp_path / "new_attention" / f"{table['slide'][0]}.h5") as file:
        (name,) = set(file) - {"coords"}
        assert name == build(method, 8, 2).map_kinds[0]
        heat = file[name][()]
        assert len(heat) == table["n_tiles"][0]
        assert heat.min() >= 0 or name in SIGNED_KINDS


WITH_SCORES = sorted(name for name, method in methods().items() if method.model.score_axes)


@pytest.mark.heavy
@pytest.mark.parametrize("method", WITH_SCORES)
def test_trains_with_an_anchor(method, asmil_here, tiny_cohort, tmp_path):
    out = tmp_path / "run"
    options = ("--anchor", "nsf", "--set", "training.epochs=2", "--set", "anchor.momentum=0.5")
    done = asmil_here("train", tiny_cohort, "--method", method, "--out", out, *options)
    assert done.returncode == 0, done.stderr
    records = read_epochs(out / "fold-0" / "seed-0" / "metrics.jsonl")
    assert all(record["train"]["anchor"] > 0 for record in records)
    record = read_attention(out / "fold-0" / "seed-0")
    assert len(record.slides) == 4
    assert record.epochs[-1] == len(records)
    assert not np.allclose(record.attention(0)[0], record.attention(0)[-1], atol=0, rtol=1e-6)


def test_the_second_stage_of_hdmil_reads_low_magnification_tiles(asmil_here, tiny_cohort, tmp_path):
    cohort = tmp_path / "cohort"
    shutil.copytree(tiny_cohort.parent, cohort)
    draw = np.random.default_rng(0)
    for path in sorted((cohort / "features").glob("*.h5")):
        with h5py.File(path, "r+") as file:
            file["lowres/tiles"] = draw.integers(0, 256, (len(file["features"]), 16, 16, 3), dtype=np.uint8)
    settings = ("--set", "model.lipn=true", "--set", "training.epochs=1")
    command = ("train", cohort / "cohort.csv", "--method", "hdmil", "--out", tmp_path / "run", *settings)
    done = asmil_here(*command)
    assert done.returncode == 0, done.stderr
    records = read_epochs(tmp_path / "run" / "fold-0" / "seed-0" / "metrics.jsonl")
    assert [record["stage"] for record in records] == ["dmin", "lipn"]
    assert {"kl", "features", "rate"} <= records[0]["train"].keys()
    assert records[1]["train"].keys() == {"loss", "ce", "mask", "rate"}
    done = asmil_here("predict", tmp_path / "run", tiny_cohort.parent / "features", "--out", tmp_path / "new.csv")
    assert done.returncode != 0
    assert "low-magnification" in done.stderr + done.stdout


@pytest.mark.parametrize("method", ["camil", "patch_gcn"])
def test_methods_that_need_coordinates_say_so(method, asmil_here, tiny_cohort, tmp_path):
    cohort = tmp_path / "cohort"
    shutil.copytree(tiny_cohort.parent, cohort)
    for path in sorted((cohort / "features").glob("*.h5")):
        with h5py.File(path, "r+") as file:
            del file["coords"]
    done = asmil_here("train", cohort / "cohort.csv", "--method", method, "--out", tmp_path / "run")
    assert done.returncode != 0
    assert "coordinates" in done.stderr
    assert "Traceback" not in done.stderr
