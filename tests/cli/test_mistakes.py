"""A user's mistakes: one sentence that says what, where and what to do, and an exit code other than zero."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from asmil.cli import main
from asmil.engine.jobs import attempt
from asmil.errors import GPU_FULL


@pytest.fixture
def cohort(small_cohort, tmp_path) -> Path:
    """A copy of the small cohort that a test may break."""
    shutil.copytree(small_cohort.parent, tmp_path / "cohort")
    return tmp_path / "cohort" / "cohort.csv"


def features(cohort: Path, slide: str) -> Path:
    return cohort.parent / "features" / f"{slide}.h5"


def edit(cohort: Path, change) -> None:
    table = pd.read_csv(cohort, dtype=str)
    change(table).to_csv(cohort, index=False)


def missing_file(cohort):
    features(cohort, "slide-0003").unlink()
    return ["slide-0003"]


def one_class(cohort):
    edit(cohort, lambda table: table.assign(label="tumor"))
    return ["tumor", "two classes"]


def lonely_class(cohort):
    def change(table):
        table = table.drop(columns="split")
        table.loc[0, "label"] = "rare"
        return table

    edit(cohort, change)
    return ["rare"]


def not_a_number(cohort):
    with h5py.File(features(cohort, "slide-0002"), "r+") as file:
        file["features"][4, 1] = np.nan
    return ["slide-0002", "NaN", "tile 4"]


def no_tiles(cohort):
    path = features(cohort, "slide-0001")
    with h5py.File(path, "r+") as file:
        del file["features"], file["coords"]
        file["features"], file["coords"] = np.zeros((0, 24), np.float16), np.zeros((0, 2), np.int64)
    return ["slide-0001", "no tiles"]


def misspelt_column(cohort):
    edit(cohort, lambda table: table.rename(columns={"label": "lable"}))
    return ["lable", "label"]


def truncated_file(cohort):
    path = features(cohort, "slide-0005")
    path.write_bytes(path.read_bytes()[:2500])
    return ["slide-0005.h5"]


def two_widths(cohort):
    path = features(cohort, "slide-0005")
    with h5py.File(path, "r+") as file:
        n = len(file["coords"])
        del file["features"], file.attrs["crc32"]
        file["features"] = np.ones((n, 71), np.float16)
    return ["slide-0005.h5", " 71 "]


def same_content_twice(cohort):
    shutil.copy(features(cohort, "slide-0004"), features(cohort, "slide-0009"))
    return ["slide-0004", "slide-0009"]


def leaking_patient(cohort):
    def change(table):
        table.loc[table["split"] == "test", "patient"] = table.loc[table["split"] == "train", "patient"].iloc[0]
        return table

    edit(cohort, change)
    return ["patient"]


BROKEN = [
    missing_file,
    one_class,
    lonely_class,
    not_a_number,
    no_tiles,
    misspelt_column,
    truncated_file,
    two_widths,
    same_content_twice,
    leaking_patient,
]


@pytest.mark.parametrize("break_cohort", BROKEN)
def test_a_broken_cohort_is_explained_by_check_and_refused_by_train(asmil_here, cohort, break_cohort, tmp_path):
    words = break_cohort(cohort)
    checked = asmil_here("check", cohort)
    trained = asmil_here("train", cohort, "-m", "abmil", "--out", tmp_path / "run", "--set", "training.epochs=1")
    for done, told in ((checked, checked.stdout), (trained, trained.stderr)):
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert all(word in told for word in words), told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "asml"], ["unknown method 'asml'", "'asmil'"]),
        (["--preset", "papr"], ["no preset 'papr'", "'paper'"]),
        (["--set", "training.lrr=1"], ["unknown setting 'training.lrr'", "'lr'"]),
        (["--set", "training.lr=fast"], ["training.lr", "fast"]),
        (["--set", "training.device=cuda:7"], ["cuda:7", "asmil doctor"]),
        (["--folds", "40"], ["class", "40"]),
        (["--features", "nowhere"], ["nowhere"]),
    ],
)
def test_wrong_words_on_the_command_line(asmil_here, small_cohort, tmp_path, arguments, words):
    done = asmil_here("train", small_cohort, "--out", tmp_path / "run", *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "run" / "fold-0").exists()


@pytest.mark.parametrize("verb", [["check"], ["train", "--out", "run"]])
def test_a_manifest_that_does_not_exist(asmil_here, tmp_path, verb, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = asmil_here(verb[0], tmp_path / "chort.csv", *verb[1:])
    assert done.returncode == 1
    assert "chort.csv" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_exported_file_is_not_a_run(asmil_here, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"an exported model")
    done = asmil_here("predict", tmp_path / "model.onnx", tmp_path, "--out", tmp_path / "new.csv")
    assert done.returncode == 1
    assert "model.onnx" in done.stderr
    assert "asmil export" in done.stderr


def test_a_folder_that_is_not_a_run(asmil_here, tmp_path):
    for verb in (["evaluate", tmp_path], ["predict", tmp_path, tmp_path]):
        done = asmil_here(*verb)
        assert done.returncode == 1
        assert "run" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_a_full_disk_is_one_sentence_and_loses_nothing(asmil_command, small_cohort, tmp_path):
    """The disk is full as soon as a checkpoint is written: a file size limit stands in for it."""
    import resource
    import subprocess
    import sys

    out = tmp_path / "run"
    command = [sys.executable, "-m", "asmil", "train", str(small_cohort), "--out", str(out), "-m", "abmil"]
    command += ["--set", "training.epochs=2", "--set", "record.attention=none"]

    def small_files() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))

    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=small_files)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "safetensors" in done.stderr
    assert not list(out.rglob("*.partial"))
    again = asmil_command(*command[3:])
    assert again.returncode == 0, again.stderr


def test_a_full_gpu_is_told_without_a_traceback(monkeypatch, capsys):
    def full(*arguments, **options):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 170.00 MiB.")

    assert attempt(full, "job") == (None, GPU_FULL)
    monkeypatch.setattr(main, "app", full)
    assert main._run() == 1
    assert GPU_FULL in capsys.readouterr().err
