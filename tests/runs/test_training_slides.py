"""What a run keeps of its training slides: it recognizes them and the features of another encoder."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from asmil import AsmilError, evaluate
from asmil.cohort.feature_structure import LEAST_SCORE, compare_features, fit_structure
from asmil.cohort.features import FeatureSource, read_bag
from asmil.cohort.manifest import Slide
from asmil.cohort.tile_hashes import sketch_of, tile_hashes
from asmil.runs.seen_names import SeenNames
from asmil.runs.training_slides import FILE, TrainingSlides, read_training_slides
from shared_data import SHARED_DATA, shared_file
from small_task_cohorts import write_cohort

WIDTH = 48
SHORT = ("--set", "training.epochs=1", "--set", "record.attention=none", "-q")


def encoder(seed):
    """Features as one encoder makes them: few directions that vary together, and noise."""
    mixing = np.random.default_rng(seed).standard_normal((6, WIDTH))

    def encode(draw, n=60):
        site = draw.standard_normal(WIDTH) * 0.5
        return (draw.standard_normal((n, 6)) @ mixing + site + 0.7 * draw.standard_normal((n, WIDTH))).astype(
            np.float32
        )

    return encode


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on plain tensors, which do not say what made them."""
    from asmil import train

    folder = tmp_path_factory.mktemp("plain")
    encode, draw = encoder(0), np.random.default_rng(1)
    (folder / "features").mkdir()
    rows = []
    for number in range(24):
        label = ("normal", "tumor")[number % 2]
        torch.save(torch.from_numpy(encode(draw) + (number % 2)), folder / "features" / f"s{number:02d}.pt")
        split = "train" if number < 14 else "val" if number < 18 else "test"
        rows.append({"slide": f"s{number:02d}", "patient": f"p{number}", "label": label, "split": split})
    pd.DataFrame(rows).to_csv(folder / "cohort.csv", index=False)
    settings = {"training.epochs": 2, "record.attention": "none"}
    train(folder / "cohort.csv", folder / "run", method="abmil", settings=settings, progress=False)
    return folder


def predicted(asmil_here, *arguments, out):
    done = asmil_here("predict", *arguments, "-o", out, "-q", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), pd.read_csv(out)


def renamed_copy(trained, folder):
    """Slides s00 (training), s14 (validation) and s20 (test) under other names, with permuted tiles."""
    folder.mkdir()
    for name, new in (("s00", "a"), ("s14", "b"), ("s20", "c")):
        tiles = torch.load(trained / "features" / f"{name}.pt", weights_only=True)
        torch.save(
            tiles[torch.randperm(len(tiles), generator=torch.Generator().manual_seed(3))][1:], folder / f"{new}.pt"
        )
    return folder


def test_slides_of_the_training_are_marked_and_left_out_of_the_metrics(trained, tmp_path, asmil_here):
    told, table = predicted(asmil_here, trained / "run", trained / "cohort.csv", out=tmp_path / "p.csv")
    assert table.set_index("slide")["used_in_training"].to_dict() == {f"s{n:02d}": n < 18 for n in range(24)}
    assert table["target"].tolist() == ["normal", "tumor"] * 12
    assert any("18" in line and "s00" in line for line in told["warnings"])
    found = told["evaluation"]
    assert (found["slides"], found["used_in_training"], found["only_used_in_training"]) == (6, 18, False)
    assert found["metrics"]["accuracy"]["value"] == pytest.approx(evaluate(trained / "run").metrics["accuracy"].value)
    assert found["metrics"]["accuracy"]["low"] <= found["metrics"]["accuracy"]["value"]


def test_metrics_of_training_slides_alone_are_called_so(trained, tmp_path, asmil_here):
    table = pd.read_csv(trained / "cohort.csv").iloc[:10]
    table.to_csv(tmp_path / "seen.csv", index=False)
    told, _ = predicted(
        asmil_here, trained / "run", tmp_path / "seen.csv", "--features", trained / "features", out=tmp_path / "p.csv"
    )
    assert told["evaluation"]["only_used_in_training"]
    printed = asmil_here(
        "predict", trained / "run", tmp_path / "seen.csv", "--features", trained / "features", "-o", tmp_path / "p.csv"
    )
    assert "accuracy" in printed.stdout
    assert "10 slides" in printed.stdout


def test_labels_that_the_run_does_not_know_are_named(trained, tmp_path, asmil_here):
    table = pd.read_csv(trained / "cohort.csv").replace({"label": {"tumor": "Tumour"}})
    table.to_csv(tmp_path / "other.csv", index=False)
    told, table = predicted(
        asmil_here, trained / "run", tmp_path / "other.csv", "--features", trained / "features", out=tmp_path / "p.csv"
    )
    assert any("Tumour" in line for line in told["warnings"])
    assert table["target"].isna().tolist() == [False, True] * 12
    assert told["evaluation"]["without_outcome"] == 12
    printed = asmil_here(
        "predict", trained / "run", tmp_path / "other.csv", "--features", trained / "features", "-o", tmp_path / "p.csv"
    )
    assert printed.returncode == 0, printed.stderr


@pytest.mark.parametrize("as_bundle", [False, True])
def test_training_slides_are_recognized_under_other_names(trained, tmp_path, asmil_here, as_bundle):
    model = trained / "run"
    if as_bundle:
        model = tmp_path / "bundle"
        assert asmil_here("export", trained / "run", "-o", model).returncode == 0
    told, table = predicted(asmil_here, model, renamed_copy(trained, tmp_path / "new"), out=tmp_path / "p.csv")
    assert table["used_in_training"].tolist() == [True, True, False]
    assert any("'a'" in line and "'b'" in line and "'c'" not in line for line in told["warnings"])
    assert told["evaluation"] is None


def test_a_bundle_names_no_slide(trained, tmp_path, asmil_here):
    asmil_here("export", trained / "run", "-o", tmp_path / "bundle")
    for file in (tmp_path / "bundle").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"s00" not in content, file
            assert b"p13" not in content, file
    assert read_training_slides(tmp_path / "bundle").sketches == {}


def test_a_slide_with_the_name_of_another_is_new(trained, tmp_path, asmil_here):
    (tmp_path / "new").mkdir()
    torch.save(torch.from_numpy(encoder(0)(np.random.default_rng(8))), tmp_path / "new" / "s00.pt")
    told, table = predicted(asmil_here, trained / "run", tmp_path / "new", out=tmp_path / "p.csv")
    assert table["used_in_training"].tolist() == [False]
    assert table["notes"].notna().all()
    assert told["warnings"] == []


def test_features_of_another_encoder_are_told_and_those_of_another_site_are_not(trained, tmp_path, asmil_here):
    for name, encode, scale in (("same", encoder(0), 1), ("other", encoder(5), 1), ("scaled", encoder(0), 40)):
        (tmp_path / name).mkdir()
        draw = np.random.default_rng(7)
        for number in range(6):
            tiles = (encode(draw) + draw.standard_normal(WIDTH).astype(np.float32)) * scale
            torch.save(torch.from_numpy(tiles), tmp_path / name / f"new{number}.pt")
        told, table = predicted(asmil_here, trained / "run", tmp_path / name, out=tmp_path / f"{name}.csv")
        if name == "same":
            assert told["warnings"] == []
        else:
            assert any("6 of 6" in line and "new0" in line for line in told["warnings"])
            assert table["notes"].notna().all()


def test_python_warns_as_the_command_does(trained, tmp_path):
    from asmil import AsmilWarning, load_run

    with pytest.warns(AsmilWarning, match=r"2 of 3.*'a'"):
        table = load_run(trained / "run").predict(renamed_copy(trained, tmp_path / "new"))
    assert table["used_in_training"].tolist() == [True, True, False]


def test_runs_of_earlier_versions_go_by_names(trained, tmp_path, asmil_here):
    run = shutil.copytree(trained / "run", tmp_path / "run")
    (run / FILE).unlink()
    _, table = predicted(asmil_here, run, trained / "features", out=tmp_path / "p.csv")
    assert table["used_in_training"].sum() == 18


def test_a_damaged_file_is_named(trained, tmp_path):
    run = shutil.copytree(trained / "run", tmp_path / "run")
    path = run / FILE
    path.write_bytes(path.read_bytes()[:-3] + b"abc")
    with pytest.raises(AsmilError, match=FILE):
        read_training_slides(run)


def test_what_is_stored_comes_back(tmp_path):
    draw = np.random.default_rng(0)
    hashes = {name: draw.integers(0, 2**63, n).astype(np.uint64) for name, n in (("a", 400), ("b", 5), ("c", 1))}
    stored = TrainingSlides({name: sketch_of(values) for name, values in hashes.items()})
    stored.save(tmp_path)
    found = read_training_slides(tmp_path)
    assert [found.recognize(sketch_of(draw.permutation(values))) for values in hashes.values()] == ["a", "b", "c"]
    assert found.recognize(sketch_of(hashes["a"]), among=["b"]) is None
    assert found.recognize(sketch_of(draw.integers(0, 2**63, 400).astype(np.uint64))) is None
    bundled = stored.for_bundle({"a": "p", "TCGA-AA-0001-01": "q"})
    (tmp_path / "bundle").mkdir()
    bundled.save(tmp_path / "bundle")
    bundled = read_training_slides(tmp_path / "bundle")
    names = SeenNames(frozenset(bundled.names.tolist()), bundled.hashes)
    new = [("A", "x"), ("b", "p"), ("tcga-aa-0001-02", "y"), ("b", "q2"), ("TCGA-AA-0002-01", "z")]
    new = [Slide(slide, patient, None, FeatureSource(Path())) for slide, patient in new]
    assert [names.recognize([slide]) != {} for slide in new] == [True, True, True, False, False]
    assert [bundled.recognize(sketch_of(values)) for values in hashes.values()] == ["", "", ""]
    assert bundled.recognize(sketch_of(np.append(hashes["c"], np.arange(50, dtype=np.uint64)))) is None


def test_features_without_structure_are_never_called_other():
    draw = np.random.default_rng(0)
    structure = fit_structure([draw.standard_normal((40, 30)).astype(np.float32) for _ in range(20)])
    assert structure.reference == 0
    assert compare_features(structure, draw.standard_normal((40, 30)).astype(np.float32)).difference == ""
    assert fit_structure([draw.standard_normal((40, 30)).astype(np.float32)]) is None


@pytest.mark.parametrize("cohort", ["brca", "gbmlgg"])
def test_real_tissues_of_one_encoder_agree_and_permuted_dimensions_do_not(cohort):
    """TCGA: slides of five tissues by one encoder; the structure of one tissue fits the others."""

    def slides(name):
        with np.load(shared_file(SHARED_DATA / "tcga_hipt" / f"{name}.npz")) as file:
            parts = np.split(file["features"].astype(np.float32), file["offsets"][1:-1])
        return [part for part in parts if len(part) >= 8]

    structure = fit_structure([part[:32] for part in slides(cohort)[::8]])
    order = np.random.default_rng(0).permutation(192)
    for name in ("brca", "lung", "blca", "gbmlgg", "ucec"):
        for part in slides(name)[::10]:
            assert compare_features(structure, part).score > LEAST_SCORE
            assert compare_features(structure, part[:, order]).score < LEAST_SCORE


def test_the_bag_that_is_predicted_has_the_hashes_of_its_file(trained):
    source = FeatureSource(trained / "features" / "s00.pt")
    stored = read_training_slides(trained / "run")
    assert stored.recognize(sketch_of(tile_hashes(read_bag(source, "s00").features))) == "s00"


@pytest.mark.parametrize(
    "kind", ["survival", *(pytest.param(kind, marks=pytest.mark.heavy) for kind in ("regression", "multilabel"))]
)
def test_predictions_of_every_task_are_evaluated_as_the_run_is(kind, tmp_path, asmil_here):
    cohort = write_cohort(tmp_path, kind)
    done = asmil_here("train", cohort, "-m", "abmil", "--task", kind, "-o", tmp_path / "run", *SHORT)
    assert done.returncode == 0, done.stderr
    told, table = predicted(asmil_here, tmp_path / "run", cohort, out=tmp_path / "p.csv")
    run = evaluate(tmp_path / "run", resamples=10)
    assert set(run.run.format.truth_columns) <= set(table.columns)
    assert told["evaluation"]["slides"] == run.n_slides == (~table["used_in_training"]).sum()
    for name, one in run.metrics.items():
        if np.isfinite(one.value):
            assert told["evaluation"]["metrics"][name]["value"] == pytest.approx(one.value, abs=1e-6), name
