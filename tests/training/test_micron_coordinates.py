"""Coordinates in microns, which STAMP stores, reach graph methods and attention files without a resolution."""

import h5py
import numpy as np

from asmil.runs.config import resolve
from asmil.training.run import train_run
from feature_writers import write_stamp

N, WIDTH = 12, 8


def test_microns_are_kept_for_graphs_recordings_and_attention_files(tmp_path, asmil_here):
    draw = np.random.default_rng(3)
    places = {}
    for number in range(N):
        places[number] = 256.0 * np.stack(np.meshgrid(np.arange(3), np.arange(4)), -1).reshape(-1, 2) + number
        features = draw.normal(size=(N, WIDTH)).astype(np.float32) + number % 2
        write_stamp(tmp_path / "features" / f"s{number}.h5", features, places[number])
    rows = [f"s{n},{n % 2},{'train' if n < 6 else 'val' if n < 8 else 'test'}" for n in range(N)]
    (tmp_path / "cohort.csv").write_text("slide,label,split\n" + "\n".join(rows) + "\n")
    short = {"training": {"epochs": 1}}
    train_run(
        tmp_path / "cohort.csv", tmp_path / "graph", resolve("patch_gcn", changes=short)
    )  # refuses bags without places
    run = train_run(tmp_path / "cohort.csv", tmp_path / "run", resolve("abmil", changes=short)).path
    with h5py.File(run / "fold-0" / "seed-0" / "attention.h5") as file:
        assert "coords" not in file
        np.testing.assert_allclose(file["coords_um/0"][()], places[0])
    done = asmil_here("predict", run, tmp_path / "features", "-o", tmp_path / "out.csv", "--attention")
    assert done.returncode == 0, done.stderr
    with h5py.File(tmp_path / "out_attention" / "s5.h5") as file:
        assert "coords" not in file
        np.testing.assert_allclose(file["coords_um"][()], places[5])
        assert file["attention"].shape == (N,)
