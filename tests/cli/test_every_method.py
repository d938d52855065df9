"""`asmil train --method NAME` with nothing else to do, for every name that `asmil methods` lists."""

import h5py
import numpy as np
import pandas as pd
import pytest

from asmil import methods
from asmil.training.epoch_log import read_epochs


@pytest.mark.parametrize("method", sorted(methods()))
def test_trains_and_predicts(method, asmil_here, small_cohort, tmp_path):
    out = tmp_path / "run"
    done = asmil_here("train", small_cohort, "--method", method, "--out", out, "--set", "training.epochs=2")
    assert done.returncode == 0, done.stderr
    assert "macro-AUC" in done.stdout
    records = read_epochs(out / "fold-0" / "seed-0" / "metrics.jsonl")
    assert [record["epoch"] for record in records] == list(range(1, len(records) + 1))
    assert all(np.isfinite(value) for record in records for value in record["train"].values())
    features = small_cohort.parent / "features"
    done = asmil_here("predict", out, features, "--out", tmp_path / "new.csv", "--attention")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "new.csv")
    assert len(table) == 24
    assert np.allclose(table["prob_normal"] + table["prob_tumor"], 1)
    with h5py.File(tmp_path / "new_attention" / f"{table['slide'][0]}.h5") as file:
        (name,) = set(file) - {"coords"}
        assert name == methods()[method].model.heatmap_kinds[0]
        heat = file[name][()]
        assert len(heat) == table["n_tiles"][0]
        assert heat.min() >= 0
