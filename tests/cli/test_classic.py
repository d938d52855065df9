"""`asmil classic` as a user types it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from patience import PATIENCE_S


def write_set(path: Path, leak: bool = False, seed: int = 0) -> Path:
    """24 bags of up to five instances; the positive ones hold one that lies higher."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 6, 24)
    bag, label = np.repeat(np.arange(24), sizes), np.arange(24) % 2
    features = draw.normal(size=(len(bag), 4))
    features[np.cumsum(sizes) - 1, :2] += 2 * label[:, None]
    if leak:
        features = np.column_stack([features, label[bag]])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, features=features, bag=bag, label=label)
    return path


def test_two_sets_and_two_methods_give_tables_and_files(asmil_here, tmp_path):
    for name in ("one", "fox"):
        write_set(tmp_path / "sets" / f"{name}.npz")
    out = tmp_path / "out"
    arguments = ("classic", tmp_path / "sets", "-m", "mi_svm", "-m", "mean_pooling", "--set", "training.epochs=2")
    arguments = (*arguments, "--folds", 2, "--seeds", 1, "--workers", 1, "--out", out, "--quiet")
    done = asmil_here(*arguments)
    assert done.returncode == 0, done.stderr
    assert "last:" in done.stdout
    assert "optimistic" not in done.stdout
    assert "[dim]" not in done.stdout
    assert "paper" in done.stdout
    assert {path.name for path in out.iterdir()} == {
        "classic.json",
        "classic.csv",
        "classic.md",
        "jobs",
        "settings.yaml",
    }
    report = json.loads((out / "classic.json").read_text())
    assert {(entry["set"], entry["name"], entry["rule"]) for entry in report["results"]} == {
        (name, *row)
        for name in ("one", "fox")
        for row in [("mi_svm", "last"), ("mean_pooling", "last"), ("mean_pooling", "val")]
    }
    written = {path: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()}
    again = asmil_here(*arguments, "--optimistic", "--json")
    assert {path: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()} == written
    assert "optimistic" in {entry["rule"] for entry in json.loads(again.stdout)["results"]}
    other = asmil_here(*arguments, "--set", "training.epochs=3")
    assert other.returncode == 1
    assert "set.training.epochs: there 2, asked 3" in other.stderr


def test_a_method_that_trains_one_at_a_time_says_why(asmil_here, tmp_path):
    data = write_set(tmp_path / "set.npz")
    arguments = ("classic", data, "-m", "dtfd", "-m", "mean_pooling", "--set", "training.epochs=1", "--folds", 2)
    done = asmil_here(*arguments, "--seeds", 1, "--workers", 1, "--quiet")
    assert done.returncode == 0, done.stderr
    (note,) = (line for line in done.stderr.splitlines() if line.startswith("note:"))
    assert "dtfd" in note


def test_a_leaked_label_stops_the_run_until_it_is_taken_out(asmil_here, tmp_path):
    path = write_set(tmp_path / "leaky.npz", leak=True)
    arguments = ("classic", path, "-m", "mi_svm", "--folds", 2, "--seeds", 1, "--workers", 1, "--quiet")
    done = asmil_here(*arguments)
    assert done.returncode == 1
    assert "leaky.npz" in done.stderr
    assert "column 5 of 5: 1.000" in done.stderr
    done = asmil_here(*arguments, "--drop-last-column")
    assert done.returncode == 0, done.stderr


def test_a_bad_file_is_told_at_the_end_and_the_others_are_done(asmil_here, tmp_path):
    write_set(tmp_path / "good.npz")
    (tmp_path / "bad.csv").write_text("1,2,3\n1,3,x\n")
    done = asmil_here("classic", tmp_path, "-m", "mi_svm", "--folds", 2, "--seeds", 1, "--workers", 1, "--quiet")
    assert done.returncode == 1
    assert "good" in done.stdout
    assert "failed: " in done.stderr
    assert "bad.csv: 'x'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "abmli"], "'abmil'"),
        (["-m", "abmil", "--preset", "best"], "preset 'best'"),
        (["-m", "abmil", "--set", "model.tokens=3"], "unknown setting 'model.tokens'"),
        (["-m", "mi_svm", "--folds", "20"], "12 bags"),
    ],
)
def test_wrong_words_are_answered(asmil_here, tmp_path, arguments, words):
    done = asmil_here("classic", write_set(tmp_path / "a.npz"), *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def interrupted_arguments(path: Path, out: Path) -> list[str]:
    """A quick job and then a training that goes on for hours."""
    arguments = ["classic", write_set(path), "-m", "mi_svm", "-m", "abmil", "--folds", 2, "--seeds", 1]
    arguments += ["--set", "training.epochs=1000000", "--out", out, "--workers", 1]
    return list(map(str, arguments))


@pytest.mark.heavy
def test_what_was_finished_is_kept_when_the_command_is_killed(asmil_here, tmp_path):
    out = tmp_path / "out"
    arguments = interrupted_arguments(tmp_path / "a.npz", out)
    process = subprocess.Popen([sys.executable, "-m", "asmil", *arguments], stderr=subprocess.DEVNULL)
    kept = out / "jobs" / "a-mi_svm-seed0.json"
    until = time.monotonic() + PATIENCE_S
    while not kept.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert [path.name for path in (out / "jobs").glob("*.json")] == [kept.name]
    before = kept.stat().st_mtime_ns
    done = asmil_here(*(word for word in arguments if word not in ("-m", "abmil", "mi_svm")), "-m", "mi_svm")
    assert done.returncode == 0, done.stderr
    assert kept.stat().st_mtime_ns == before


def test_an_interruption_is_told_and_keeps_what_is_finished(asmil_here, monkeypatch, tmp_path):
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asmil.classic.jobs.train_parts", interrupt)
    done = asmil_here(*interrupted_arguments(tmp_path / "a.npz", tmp_path / "out"))
    assert done.returncode == 130
    assert "interrupted" in done.stderr
    assert [path.name for path in (tmp_path / "out" / "jobs").iterdir()] == ["a-mi_svm-seed0.json"]
