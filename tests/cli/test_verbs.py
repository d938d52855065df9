"""The verbs as a user types them."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pandas as pd
import pytest

from asmil.version import __version__


@pytest.fixture(scope="module")
def run(small_cohort, tmp_path_factory):
    """A finished run of ABMIL, made by the command."""
    import subprocess
    import sys

    out = tmp_path_factory.mktemp("runs") / "abmil"
    command = ["train", small_cohort, "-m", "abmil", "--out", out, "--set", "training.epochs=3", "--seeds", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "asmil", *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "macro-F1" in done.stdout
    return out


def test_help_and_version_and_methods(asmil_here):
    assert asmil_here("--version").stdout.strip() == f"asmil {__version__}"
    shown = asmil_here("--help").stdout
    assert all(verb in shown for verb in ("synthetic", "check", "train", "evaluate", "predict", "methods", "doctor"))
    guide = asmil_here("methods").stdout
    assert "simlp" in guide
    assert len(guide.splitlines()) < 40, "at most one screen"
    assert "Ilse" in asmil_here("methods", "--all").stdout
    assert "model.tokens" in asmil_here("methods", "asmil").stdout


def test_doctor(asmil_here):
    findings = json.loads(asmil_here("doctor", "--json").stdout)
    assert {"asmil", "python", "torch", "gpu", "memory", "reads features", "reads slides"} <= findings.keys()
    assert "torch" in asmil_here("doctor").stdout


@pytest.mark.parametrize(("has", "said"), [(True, "yes"), (False, "no")])
def test_doctor_tells_whether_the_cpu_has_bf16(asmil_here, monkeypatch, has, said):
    monkeypatch.setattr("asmil.machine.bf16.cpu_has_bf16", lambda: has)
    assert json.loads(asmil_here("doctor", "--json").stdout)["bf16 on the CPU"].startswith(said)


def test_check_of_a_good_cohort(asmil_here, small_cohort):
    done = asmil_here("check", small_cohort)
    assert done.returncode == 0
    assert "24 slides" in done.stdout
    assert "ready to train" in done.stdout


def test_names_never_change_the_terminal(asmil_here, small_cohort, tmp_path):
    table = pd.read_csv(small_cohort, dtype=str)
    table.loc[0, "label"], table.loc[1, "features"] = "\x1b[2Jtumor", "\x1b]0;x\x07.h5"
    table.to_csv(tmp_path / "cohort.csv", index=False)
    for verb, *options in (["check"], ["train", "--out", tmp_path / "run"]):
        done = asmil_here(verb, tmp_path / "cohort.csv", "--features", small_cohort.parent / "features", *options)
        assert done.returncode == 1
        shown = done.stdout + done.stderr
        assert "\\x1b[2Jtumor" in shown
        assert "\x1b[2J" not in shown
        assert "\x07" not in shown


def test_evaluate_prints_and_writes_a_report(asmil_here, run):
    done = asmil_here("evaluate", run)
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("macro-F1", "macro-AUC", "specificity", "normal", "tumor"))
    assert (run / "report.html").stat().st_size > 10_000
    values = json.loads((run / "evaluation.json").read_text())
    assert values == json.loads(asmil_here("evaluate", run, "--json").stdout)
    low, high = values["metrics"]["macro_auc"]["low"], values["metrics"]["macro_auc"]["high"]
    assert low <= values["metrics"]["macro_auc"]["value"] <= high


def test_no_name_of_a_manifest_writes_outside_the_folder(asmil_here, run, small_cohort, tmp_path):
    feature_file = next((small_cohort.parent / "features").glob("*.h5"))
    for name in ("../../escaped", str(tmp_path / "escaped"), "x/../../../escaped"):
        pd.DataFrame([{"slide": name, "features": feature_file}]).to_csv(tmp_path / "table.csv", index=False)
        before = sorted(tmp_path.rglob("*"))
        done = asmil_here("predict", run, tmp_path / "table.csv", "-o", tmp_path / "a" / "b" / "p.csv", "--attention")
        assert done.returncode == 1
        assert "escaped" in done.stderr
        assert sorted(tmp_path.rglob("*")) == before
    pd.DataFrame([{"slide": "site/a b", "features": feature_file}]).to_csv(tmp_path / "table.csv", index=False)
    done = asmil_here("predict", run, tmp_path / "table.csv", "-o", tmp_path / "p.csv", "--attention")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p_attention" / "site" / "a b.h5").is_file()


def test_predict_a_folder_without_labels(asmil_here, run, small_cohort, tmp_path):
    out, maps = tmp_path / "predictions.csv", tmp_path / "predictions_attention"
    done = asmil_here("predict", run, small_cohort.parent / "features", "--out", out, "--attention")
    assert done.returncode == 0, done.stderr
    assert "24 slides" in done.stdout
    table = pd.read_csv(out)
    classes = ["most_probable_class", "class_at_threshold"]
    counts = ["models_sd", "models_disagree", "n_tiles", "n_models", "used_in_training"]
    columns = ["slide", *classes, "prob_normal", "prob_tumor", *counts, "notes", "predicted", "called"]
    assert list(table.columns) == columns
    assert (table["predicted"] == table["most_probable_class"]).all()
    shown = [line for line in done.stdout.splitlines() if line.split()[:1] and line.split()[0] in set(table["slide"])]
    assert len(shown) == 10
    assert f"{table['prob_tumor'][0]:.4f}" in shown[0]
    threshold = json.loads((run / "operating_point.json").read_text())["threshold"]
    assert (table["class_at_threshold"] == np.where(table["prob_tumor"] >= threshold, "tumor", "normal")).all()
    for row in table.itertuples():
        with h5py.File(maps / f"{row.slide}.h5") as file:
            assert file["attention"].shape == (row.n_tiles,)
            assert file["coords"].shape == (row.n_tiles, 2)
            assert np.isclose(file["attention"][()].sum(), 1, atol=1e-5)
    single = asmil_here("predict", run, small_cohort.parent / "features" / f"{table.slide[0]}.h5", "-o", out)
    assert single.returncode == 0
    assert len(pd.read_csv(out)) == 1


def test_predict_goes_on_after_bad_slides_and_lists_them(asmil_here, run, small_cohort, tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    good = sorted((small_cohort.parent / "features").glob("*.h5"))[:3]
    for path in good:
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "cut.h5").write_bytes(good[0].read_bytes()[:3000])
    with h5py.File(folder / "narrow.h5", "w") as file:
        file["features"], file["coords"] = np.ones((4, 5), np.float32), np.zeros((4, 2), np.int64)
    done = asmil_here("predict", run, folder, "--out", tmp_path / "p.csv")
    assert done.returncode == 1
    assert len(pd.read_csv(tmp_path / "p.csv")) == 3
    assert "2 of 5 slides" in done.stderr
    assert "cut.h5" in done.stderr
    assert "narrow" in done.stderr
    assert "Traceback" not in done.stderr


def test_folds_and_parquet_and_the_cap_are_stated(asmil_here, small_cohort, tmp_path):
    table = pd.read_csv(small_cohort).drop(columns="split")
    table.to_parquet(tmp_path / "cohort.parquet")
    done = asmil_here(
        *("train", tmp_path / "cohort.parquet", "--features", small_cohort.parent / "features", "--folds", 2),
        *("--out", tmp_path / "run", "-m", "abmil", "--set", "training.epochs=1", "--set", "data.max_tiles=16"),
    )
    assert done.returncode == 0, done.stderr
    assert "16 tiles" in done.stderr
    assert "16" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "fold-1" / "seed-0" / "metrics.jsonl").exists()


def test_folds_asked_for_win_over_a_split_column_and_it_is_said(asmil_here, small_cohort, tmp_path):
    settings = ["-m", "abmil", "--set", "training.epochs=1", "--folds", 2]
    done = asmil_here("train", small_cohort, "--out", tmp_path / "run", *settings)
    assert done.returncode == 0, done.stderr
    assert "'split'" in done.stderr
    tested = pd.read_parquet(tmp_path / "run" / "predictions.parquet").query("role == 'test'")
    assert sorted(tested["slide"]) == sorted(pd.read_csv(small_cohort)["slide"])


def test_ctrl_c_is_answered_by_a_sentence(tmp_path):
    """Some versions of typer would end without a word."""
    script = (
        "import typer\n"
        "from asmil.cli import main\n"
        "from asmil.cli.main import Verb\n"
        "app = typer.Typer()\n"
        "@app.command(cls=Verb)\n"
        "def go() -> None:\n"
        "    raise KeyboardInterrupt\n"
        "main.app = app\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
