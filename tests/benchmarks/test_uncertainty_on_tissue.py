"""The numbers of docs/uncertainty.md, from a cohort of a few random slides."""

import json

import cv2
import h5py
import numpy as np
import pandas as pd
import pytest

import asmil
import uncertainty_on_tissue as benchmark

WIDTH = 12


def write_cohort(folder, patients, shift=0.0):
    """One slide per patient, of the sites A8, B1 and B2; every second one is a tumor."""
    draw = np.random.default_rng(patients)
    (folder / "features").mkdir(parents=True)
    names = [f"{folder.name}{number:03d}" for number in range(patients)]
    for number, name in enumerate(names):
        tiles = draw.standard_normal((8, WIDTH)) + draw.standard_normal(WIDTH) + 3 * (number % 2) * np.eye(WIDTH)[0]
        np.save(folder / "features" / f"{name}.npy", (tiles + shift).astype(np.float32))
    labels = [("normal", "tumor")[number % 2] for number in range(patients)]
    sites = [("A8", "B1", "B2")[number % 3] for number in range(patients)]
    table = pd.DataFrame({"slide": names, "patient": names, "label": labels, "site": sites})
    table.to_csv(folder / "cohort.csv", index=False)
    return folder / "cohort.csv"


@pytest.fixture
def measure(tmp_path, capsys):
    def run(*arguments):
        benchmark.main([*map(str, arguments), "--record", str(tmp_path / "record.json")])
        assert capsys.readouterr().out.startswith("| ")
        return json.loads((tmp_path / "record.json").read_text())["rows"]

    return run


@pytest.mark.heavy
@pytest.mark.usefixtures("undrawn_figures")
def test_sets_are_measured_on_patients_that_were_left_out(measure, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "NEW_PATIENTS", 20)
    cohort, parts = write_cohort(tmp_path / "brca", 150), tmp_path / "parts"
    assert [row["patients"] for row in measure("split", cohort, "--out", parts)] == [80, 20, 50]
    tables = {name: pd.read_csv(parts / f"{name}.csv") for name in ("train", "new", "sites")}
    assert pd.concat(tables.values())["patient"].is_unique
    assert set(tables["sites"]["site"]) == {"A8"}
    features = cohort.parent / "features"
    settings = {"training.epochs": 2, "data.val_share": 0.5, "record.attention": "none"}
    run = {"method": "mean_pooling", "folds": 2, "settings": settings, "progress": False}
    asmil.train(parts / "train.csv", tmp_path / "run", features=features, **run)
    manifests = (parts / "new.csv", parts / "sites.csv")
    new, sites = measure("coverage", tmp_path / "run", *manifests, "--features", features)
    assert (new["patients"], sites["patients"]) == (20, 50)
    assert new["0.9 per class: all"] >= new["0.8 per class: all"]
    assert new["tumor slides ruled out"] <= new["tumor slides"] == (tables["new"]["label"] == "tumor").sum()
    assert sites["similarity_p <= 0.05, A8"] == sites["similarity_p <= 0.05"]
    (folds,) = measure("folds", tmp_path / "run")
    assert folds["patients"] == 80
    mean = tables["train"]["label"].map({name: folds[f"0.9: {name}"] for name in ("normal", "tumor")}).mean()
    assert folds["0.9: all"] == pytest.approx(mean, abs=1e-3)


def test_shifted_cohorts_and_images_are_found(measure, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "LEFT_OUT", 20)
    rows = measure("similarity", write_cohort(tmp_path / "brca", 90), write_cohort(tmp_path / "nsclc", 30, shift=4.0))
    lung, drawn, *sites = rows
    assert (lung["named"], lung["slides"]) == (30, 30)
    assert lung["whole, p"] < 0.001 < drawn["whole, p"]
    assert sorted(site["left out"] for site in sites) == ["A8", "B1", "B2"]

    monkeypatch.setattr(benchmark, "NEW_IMAGES", 10)
    draw, out = np.random.default_rng(0), tmp_path / "stain"
    (tmp_path / "images").mkdir()
    for number in range(40):
        cv2.imwrite(str(tmp_path / "images" / f"{number}.png"), draw.integers(0, 256, (8, 8, 3), np.uint8))

    def extract(copies, features, **settings):
        """Pixels as features."""
        features.mkdir(parents=True)
        for copy in copies.iterdir():
            with h5py.File(features / f"{copy.stem}.h5", "w") as file:
                file["features"] = cv2.imread(str(copy)).reshape(-1, 3).astype(np.float32)
                file["coords"] = np.zeros((64, 2), np.int64)

    monkeypatch.setattr(asmil, "extract", extract)
    stained = {row["left out"]: row for row in measure("stain", tmp_path / "images", "--out", out)}
    assert list(stained) == list(benchmark.SHIFTS)
    assert stained["original"]["whole, p"] > 0.001 > stained["h0.5e1.6"]["whole, p"]
    image = draw.integers(0, 256, (8, 8, 3)).astype(np.uint8)
    assert np.abs(benchmark._restained(image, 1, 1).astype(int) - image).max() <= 1
