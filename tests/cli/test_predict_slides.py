"""`asmil predict RUN SLIDES`: the same features as in training, or none at all."""

from pathlib import Path

import pandas as pd
import pytest

import asmil
from small_slides import write_slide

EXTRACTION_TESTS = Path(__file__).parents[1] / "extraction"
ENCODER = "tiny_encoder:Weighted"
TRUSTED = ("--workers", 0, "--encoder", ENCODER)


@pytest.fixture
def run_on_slides(tmp_path, asmil_here, monkeypatch):
    """A cohort of twelve slides, extracted and trained on with no step in between; its folder."""
    monkeypatch.chdir(EXTRACTION_TESTS)
    rows = []
    for number in range(12):
        write_slide(tmp_path / "slides" / f"s{number}.tif", side_px=360 + 40 * (number % 3), seed=number)
        split = ("train", "train", "val", "test")[number % 4]
        rows.append(f"s{number},{('a', 'b')[number // 4 % 2]},{split}")
    (tmp_path / "cohort.csv").write_text("\n".join(["slide,label,split", *rows]) + "\n")
    extract = ("extract", tmp_path / "slides", "--out", tmp_path / "features", "--encoder", ENCODER, "--workers", 0)
    done = asmil_here(*extract, "--no-qc", "--quiet")
    assert done.returncode == 0, done.stderr
    train = ("train", tmp_path / "cohort.csv", "--method", "abmil", "--out", tmp_path / "run")
    done = asmil_here(*train, "--set", "training.epochs=1", "--quiet")
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_slides_are_predicted_as_their_features_are(run_on_slides, asmil_here):
    place = run_on_slides
    done = asmil_here("predict", place / "run", place / "features", "--out", place / "from_features.csv", "--quiet")
    assert done.returncode == 0, done.stderr
    (place / "slides" / "bad.svs").write_text("not a slide")
    arguments = ("predict", place / "run", place / "slides", "--out", place / "from_slides.csv", *TRUSTED)
    done = asmil_here(*arguments)
    assert done.returncode == 1
    assert "1 of 13 slides" in done.stderr
    assert "bad" in done.stderr
    expected, found = (pd.read_csv(place / f"from_{kind}.csv").set_index("slide") for kind in ("features", "slides"))
    assert set(found.index) == set(expected.index)
    difference = (found["prob_a"] - expected["prob_a"][found.index]).abs()
    assert difference.max() < 1e-3
    assert len(list((place / "from_slides_features").glob("*.h5"))) == 12
    one = asmil_here("predict", place / "run", place / "slides" / "s3.tif", "--out", place / "one.csv", *TRUSTED)
    assert one.returncode == 0, one.stderr
    assert list(pd.read_csv(place / "one.csv")["slide"]) == ["s3"]
    from_python = asmil.predict(place / "run", place / "slides" / "s3.tif", encoder=ENCODER)
    assert from_python["prob_a"].item() == pytest.approx(found["prob_a"]["s3"])


def test_an_own_encoder_may_lie_elsewhere_when_it_is_confirmed(run_on_slides, asmil_here, monkeypatch):
    slide, file = run_on_slides / "slides" / "s3.tif", EXTRACTION_TESTS / ".." / "extraction" / "tiny_encoder.py"
    expected = asmil.predict(run_on_slides / "run", run_on_slides / "features" / "s3.h5")
    monkeypatch.chdir(run_on_slides)
    arguments = ("predict", run_on_slides / "run", slide, "--out", run_on_slides / "p.csv", *TRUSTED[:2])
    done = asmil_here(*arguments, "--encoder", f"{file}:Weighted")
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(run_on_slides / "p.csv")
    assert found["prob_a"].item() == pytest.approx(expected["prob_a"].item(), abs=1e-3)
    done = asmil_here(*arguments, "--encoder", f"{file}:Other")
    assert done.returncode == 1
    assert "tiny_encoder:Weighted" in done.stderr


def test_other_weights_are_refused(run_on_slides, asmil_here, monkeypatch):
    monkeypatch.setenv("TINY_WEIGHT", "3")
    slide = run_on_slides / "slides" / "s3.tif"
    done = asmil_here("predict", run_on_slides / "run", slide, "--out", run_on_slides / "p.csv", *TRUSTED)
    assert done.returncode == 1
    assert "--weights" in done.stderr
    assert not (run_on_slides / "p.csv").exists()


def test_a_run_on_features_of_another_origin_says_that_it_cannot(small_cohort, tmp_path, asmil_here):
    trained = asmil_here(
        *("train", small_cohort, "--method", "mean_pooling", "--out", tmp_path / "run"),
        *("--set", "training.epochs=1", "--quiet"),
    )
    assert trained.returncode == 0, trained.stderr
    write_slide(tmp_path / "a.tif", side_px=300)
    done = asmil_here("predict", tmp_path / "run", tmp_path / "a.tif", "--out", tmp_path / "p.csv")
    assert done.returncode == 1
    assert "asmil extract" in done.stderr


def test_code_that_a_run_names_is_not_executed_unless_confirmed(run_on_slides, asmil_here, monkeypatch):
    run, slide, out = (run_on_slides / name for name in ("run", "slides/s3.tif", "p.csv"))
    working = run_on_slides / "working"
    working.mkdir()
    (working / "stranger.py").write_text("from pathlib import Path\nPath('executed').touch()\nmake = 1\n")
    monkeypatch.chdir(working)
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace(ENCODER, "stranger:make"))
    for more in ((), ("--encoder", "resnet50"), ("--encoder", ENCODER)):
        done = asmil_here("predict", run, slide, "--out", out, "--workers", 0, *more)
        assert done.returncode == 1
        assert "stranger:make" in done.stderr
        assert not (working / "executed").exists()
    assert asmil_here("predict", run, slide, "--out", out, *TRUSTED[:2], "--encoder", "stranger:make").returncode == 1
    assert (working / "executed").exists()
