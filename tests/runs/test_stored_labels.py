"""Labels that are corrected after a training: every verb about the run says so and names the slides."""

import json
import shutil

import pandas as pd
import pytest

from asmil import load_run
from asmil.runs.run import Run
from asmil.runs.stored_labels import FILE, label_changes
from asmil.viewer.collection import Places, collect

CHANGED = "slide-0003"


@pytest.fixture(scope="module")
def trained(small_cohort, tmp_path_factory):
    from asmil import train

    folder = tmp_path_factory.mktemp("labels")
    shutil.copytree(small_cohort.parent, folder / "cohort")
    settings = {"training.epochs": 1, "record.attention": "all"}
    train(folder / "cohort" / "cohort.csv", folder / "run", method="abmil", settings=settings, progress=False)
    return folder


@pytest.fixture
def corrected(trained):
    """The run, and the manifest with another label of one slide; restored after the test."""
    manifest = trained / "cohort" / "cohort.csv"
    before = manifest.read_text()
    table = pd.read_csv(manifest, dtype=str)
    row = table["slide"] == CHANGED
    table.loc[row, "label"] = "normal" if table.loc[row, "label"].item() == "tumor" else "tumor"
    table.to_csv(manifest, index=False)
    yield trained / "run"
    manifest.write_text(before)


def test_an_unchanged_manifest_has_no_changes(trained):
    assert label_changes(Run(trained / "run")) is None
    assert len(pd.read_csv(trained / "run" / FILE)) == 24


def test_a_moved_manifest_and_an_earlier_version_say_nothing(corrected, tmp_path):
    run = shutil.copytree(corrected, tmp_path / "run")
    (run / FILE).unlink()
    assert label_changes(Run(run)) is None
    run = shutil.copytree(corrected, tmp_path / "again")
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("cohort.csv", "gone.csv"))
    assert label_changes(Run(run)) is None


def test_labels_in_several_columns_have_not_changed(trained, tmp_path):
    """They are joined as at the training."""
    from asmil import train

    cohort = shutil.copytree(trained / "cohort", tmp_path / "cohort")
    table = pd.read_csv(cohort / "cohort.csv", dtype=str)
    table["ER"] = (table.pop("label") == "tumor").astype(int)
    table["PR"] = [1, 0] * (len(table) // 2)
    table.to_csv(cohort / "cohort.csv", index=False)
    train(
        cohort / "cohort.csv",
        tmp_path / "run",
        method="mean_pooling",
        task="multilabel",
        columns={"labels": "ER,PR"},
        settings={"training.epochs": 1},
        progress=False,
    )
    assert label_changes(Run(tmp_path / "run")) is None
    table.loc[table["slide"] == CHANGED, "ER"] = 1 - table.loc[table["slide"] == CHANGED, "ER"]
    table.to_csv(cohort / "cohort.csv", index=False)
    changes = label_changes(Run(tmp_path / "run"))
    assert changes is not None
    assert list(changes.outcomes) == [CHANGED]


VERBS = {
    "check": ("check", "RUN"),
    "evaluate": ("evaluate", "RUN", "--resamples", "10"),
    "heatmap": ("heatmap", "RUN", "slide-0001", "--tiles", "0", "--workers", "0", "--out", "OUT"),
    "stability": ("stability", "RUN", "--out", "OUT"),
    "faithfulness": ("faithfulness", "RUN", "--slides", "1", "--workers", "0", "--resamples", "10", "--out", "OUT"),
    "predict": ("predict", "RUN", "FEATURES", "--out", "OUT.csv"),
}


@pytest.mark.usefixtures("undrawn_figures")
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_every_verb_names_the_slide(corrected, asmil_here, tmp_path, verb):
    places = {
        "RUN": corrected,
        "OUT": tmp_path / "out",
        "OUT.csv": tmp_path / "out.csv",
        "FEATURES": corrected.parent / "cohort" / "features" / "slide-0001.h5",
    }
    done = asmil_here(*(places.get(word, word) for word in verb))
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    assert CHANGED in told
    assert "normal" in told


def test_evaluate_uses_the_stored_labels_and_its_json_says_so(corrected, trained, asmil_here):
    done = json.loads(asmil_here("evaluate", corrected, "--json", "--resamples", "10").stdout)
    assert any(CHANGED in line for line in done["warnings"])
    found = load_run(corrected).evaluate(resamples=10)
    assert any(CHANGED in line for line in found.warnings)
    truth = pd.read_csv(trained / "run" / FILE, dtype=str).set_index("slide")["label"]
    assert (found.rows["target"] == found.rows["slide"].map(truth)).all()
    told = json.loads(asmil_here("check", corrected, "--json").stdout)
    assert told["ok"]
    assert [problem["severity"] for problem in told["problems"]] == ["warning"]


def test_the_viewer_shows_it(corrected):
    assert any(CHANGED in note for note in collect([corrected], Places()).notes)


def test_localize_says_it(corrected, asmil_here, tmp_path):
    truth = corrected.parent / "cohort" / "tile_truth.parquet"
    done = asmil_here("localize", corrected, "--truth", truth, "--resamples", "10", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert CHANGED in done.stdout


def test_a_bundle_does_not_name_the_slide(corrected, asmil_here, tmp_path):
    assert asmil_here("export", corrected, "-o", tmp_path / "bundle").returncode == 0
    assert all(CHANGED.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
