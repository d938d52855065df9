"""Pretrained weights that would make results wrong, `--init`: each is refused by name before anything is written."""

import shutil

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from asmil.runs.training_slides import FILE

SHORT = ("--set", "training.epochs=1", "--set", "record.attention=none", "-q")


@pytest.fixture(scope="module")
def first(small_cohort, tmp_path_factory):
    """A run whose splits are those of its manifest, and its bundle."""
    from asmil import train

    out = tmp_path_factory.mktemp("first")
    settings = {"training.epochs": 1, "record.attention": "none"}
    run = train(small_cohort, out / "run", method="abmil", settings=settings, progress=False)
    run.save_pretrained(out / "bundle")
    return out


@pytest.fixture
def cohort(small_cohort, tmp_path):
    shutil.copytree(small_cohort.parent, tmp_path / "cohort")
    return tmp_path / "cohort" / "cohort.csv"


def edit(cohort, change):
    change(pd.read_csv(cohort, dtype=str)).to_csv(cohort, index=False)


def exchanged(table):
    """Training slides become test slides."""
    return table.assign(split=table["split"].map({"train": "test", "test": "train", "val": "val"}))


@pytest.fixture
def start(asmil_here, tmp_path):
    def run(cohort, init):
        done = asmil_here("train", cohort, "--init", init, *SHORT[:4], "--dry-run", "-o", tmp_path / "second")
        assert not (tmp_path / "second").exists()
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.mark.parametrize("source", ["run", "bundle"])
def test_the_same_split_may_go_on(first, cohort, start, source):
    done = start(cohort, first / source)
    assert done.returncode == 0, done.stderr


def test_validation_slides_that_were_trained_on_are_refused(first, cohort, start):
    edit(cohort, lambda table: table.assign(split=table["split"].replace({"train": "val", "val": "train"})))
    done = start(cohort, first / "run")
    assert done.returncode == 1
    assert pd.read_csv(cohort, dtype=str).query("split == 'val'")["slide"].min() in done.stderr


def test_test_slides_that_the_weights_were_trained_on_are_refused(first, cohort, start):
    edit(cohort, exchanged)
    trained_on = pd.read_csv(cohort, dtype=str).query("split == 'test'")["slide"]
    for source in ("run", "bundle"):
        done = start(cohort, first / source)
        assert done.returncode == 1
        assert trained_on.iloc[0] in done.stderr
    old = shutil.copytree(first / "run", cohort.parent / "old")
    (old / FILE).unlink()  # as in earlier versions, whose runs go by names
    assert trained_on.iloc[0] in start(cohort, old).stderr


def test_renamed_slides_are_recognized_by_their_tiles(first, cohort, start):
    def rename(table):
        for name in table["slide"]:
            (cohort.parent / "features" / f"{name}.h5").rename(cohort.parent / "features" / f"new-{name}.h5")
        return exchanged(table).assign(slide="new-" + table["slide"], patient="new-" + table["patient"])

    edit(cohort, rename)
    assert "new-slide" in start(cohort, first / "run").stderr


def test_a_class_at_another_place_is_refused_and_other_classes_are_told(first, cohort, start):
    edit(cohort, lambda table: table.replace({"label": {"normal": "zebra"}}))
    done = start(cohort, first / "run")
    assert done.returncode == 1
    assert "tumor, zebra" in done.stderr
    edit(cohort, lambda table: table.replace({"label": {"zebra": "a", "tumor": "b"}}))
    done = start(cohort, first / "run")
    assert done.returncode == 0, done.stderr
    assert "a, b" in done.stdout


def test_features_of_another_encoder_are_refused(first, cohort, start):
    for path in (cohort.parent / "features").glob("*.h5"):
        with h5py.File(path, "r+") as file:
            file.attrs["encoder"] = "uni"
    done = start(cohort, first / "run")
    assert done.returncode == 1
    assert "uni" in done.stderr


def test_features_of_another_encoder_are_refused_without_provenance(tmp_path, asmil_here):
    def write(name, seed):
        draw, mixing = np.random.default_rng(seed), np.random.default_rng(seed).standard_normal((4, 32))
        (tmp_path / name / "features").mkdir(parents=True)
        rows = []
        for number in range(20):
            tiles = draw.standard_normal((40, 4)) @ mixing + 0.5 * draw.standard_normal((40, 32))
            torch.save(torch.from_numpy(tiles.astype(np.float32)), tmp_path / name / "features" / f"{name}{number}.pt")
            split = "train" if number < 12 else "val" if number < 16 else "test"
            rows.append({"slide": f"{name}{number}", "label": "ab"[number % 2], "split": split})
        pd.DataFrame(rows).to_csv(tmp_path / name / "cohort.csv", index=False)
        return tmp_path / name / "cohort.csv"

    one, other = write("one", 1), write("other", 2)
    run = tmp_path / "run"
    assert asmil_here("train", one, "-m", "abmil", *SHORT, "-o", run).returncode == 0
    done = asmil_here("train", other, "--init", run, "--dry-run", *SHORT[:4], "-o", tmp_path / "second")
    assert done.returncode == 1
    assert "best.safetensors" in done.stderr
    assert "other/cohort.csv" in done.stderr
