"""`asmil predict` says how certain predictions are: sets, rule-outs, disagreement, similarity to the training."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import asmil
from asmil.evaluation.uncertainty.run_calibration import FILE as CALIBRATION_FILE
from asmil.evaluation.uncertainty.similarity import FILE as SIMILARITY_FILE

WIDTH = 12


def write_slides(folder, names, draw, shift=0.0):
    """Features of slides, the odd ones of which are tumors."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        tiles = draw.standard_normal((8, WIDTH)) + draw.standard_normal(WIDTH) + 2 * (number % 2) * np.eye(WIDTH)[0]
        torch.save(torch.from_numpy(tiles.astype(np.float32) + np.float32(shift)), folder / f"{name}.pt")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run of two folds and two seeds on 48 patients, and its bundle."""
    folder, draw = tmp_path_factory.mktemp("certainty"), np.random.default_rng(0)
    names = [f"s{number:02d}" for number in range(48)]
    write_slides(folder / "features", names, draw)
    labels = [("normal", "tumor")[number % 2] for number in range(48)]
    pd.DataFrame({"slide": names, "patient": names, "label": labels}).to_csv(folder / "cohort.csv", index=False)
    settings = {"training.epochs": 2, "record.attention": "none", "data.val_share": 0.5}
    run = asmil.train(
        folder / "cohort.csv",
        folder / "run",
        method="mean_pooling",
        folds=2,
        seeds=2,
        settings=settings,
        progress=False,
    )
    run.save_pretrained(folder / "bundle")
    write_slides(folder / "new", [f"n{number}" for number in range(12)], draw)
    write_slides(folder / "other", [f"o{number}" for number in range(12)], draw, shift=4.0)
    return folder


def test_predictions_carry_their_certainty(place, asmil_here, tmp_path):
    asked = ("--coverage", 0.8, "--per-class", "--max-missed", 0.1, "--positive", "tumor")
    found = {}
    for source in ("run", "bundle"):
        done = asmil_here("predict", place / source, place / "new", "-o", tmp_path / "p.csv", "-q", "--json", *asked)
        assert done.returncode == 0, done.stderr
        found[source] = pd.read_csv(tmp_path / "p.csv").drop(columns="used_in_training")
        assert len(json.loads(done.stdout)["sets"]) == 2
    pd.testing.assert_frame_equal(found["run"], found["bundle"])
    table = found["run"]
    sets = table["conformal_set"].fillna("").str.split(";")
    expected = [names[0] if len(names) == 1 and names[0] else "abstain" for names in sets]
    assert table["conformal_class"].tolist() == expected
    assert table["ruled_out_tumor"].any()
    assert table.groupby("ruled_out_tumor")["prob_tumor"].mean().is_monotonic_decreasing
    assert table["models_disagree"].isin([0, 0.25, 0.5, 0.75]).all()
    assert (table["models_sd"] > 0).all()
    assert table["similarity_p"].between(0.999 / 49, 1).all()
    from_python = asmil.predict(place / "run", place / "new", coverage=0.8, per_class=True)
    assert from_python["conformal_class"].tolist() == table["conformal_class"].tolist()


def test_slides_unlike_the_training_are_named(place, asmil_here, tmp_path):
    done = asmil_here("predict", place / "bundle", place / "other", "-o", tmp_path / "p.csv", "-q", "--json")
    (sentence,) = json.loads(done.stdout)["warnings"]
    assert "12 of 12" in sentence
    assert sum(f"o{number}" in sentence.replace(",", " ").replace(")", " ").split() for number in range(12)) == 3
    assert pd.read_csv(tmp_path / "p.csv")["similarity_p"].max() < 0.05
    done = asmil_here("predict", place / "bundle", place / "new", "-o", tmp_path / "p.csv", "-q", "--json")
    assert json.loads(done.stdout)["warnings"] == []


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (("--coverage", 0.999), "999"),
        (("--max-missed", 0.01), "tumor"),
        (("--max-missed", 0.1, "--positive", "tumour"), "'tumor'"),
        (("--per-class",), "--coverage"),
        (("--confidence", 0.9), "--max-missed"),
        (("--coverage", 90), "90"),
    ],
)
def test_what_cannot_be_guaranteed_is_refused(place, asmil_here, tmp_path, asked, named):
    done = asmil_here("predict", place / "run", place / "new", "-o", tmp_path / "p.csv", "-q", *asked)
    assert done.returncode == 1
    assert named in done.stderr
    assert not (tmp_path / "p.csv").exists()


def test_files_of_earlier_versions_say_what_is_missing(place, asmil_here, tmp_path):
    run = asmil.load_run(place / "run")
    (place / "run" / SIMILARITY_FILE).rename(place / "kept")
    try:
        run.save_pretrained(tmp_path / "bundle")
        done = asmil_here("predict", tmp_path / "bundle", place / "new", "-o", tmp_path / "p.csv", "-q")
    finally:
        (place / "kept").rename(place / "run" / SIMILARITY_FILE)
    assert done.returncode == 0
    assert SIMILARITY_FILE in done.stderr
    assert "similarity_p" not in pd.read_csv(tmp_path / "p.csv")
    stored = json.loads((tmp_path / "bundle" / CALIBRATION_FILE).read_text())
    assert set(stored) == {"classes", "folds", "targets", "patients", "probabilities"}
    assert not any(name in json.dumps(stored) for name in ("s00", "s47"))
