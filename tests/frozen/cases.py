"""Small runs of every task, and the commands whose outputs are frozen.

Write the outputs of the present code (only after a change that is meant to alter numbers):

    PYTHONPATH=tests:tests/evaluation python tests/frozen/cases.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import yaml

from fake_compared_runs import THREE, write_compared_run
from fake_recorded_slides import FakeRun, write_fake_run
from fake_run_folder import write_run
from fake_survival_run import exponential_patients, write_survival_run

OUTPUTS = Path(__file__).parent / "outputs"
DATA_FILES = (".json", ".csv", ".md", ".tex")
FEW = ("--resamples", "200")
UNTRAINED = 1e-12
"""A learning rate that leaves a model as its seed drew it, so that all machines have the same one."""


def asmil(*arguments: object) -> None:
    """Run a command in this process; a failure shows in the files that are missing."""
    from asmil.cli.main import main

    with mock.patch.object(sys, "argv", ["asmil", *map(str, arguments)]), suppress(SystemExit):
        main()


def evaluate_classification(folder: Path) -> None:
    for name in ("two", "three"):
        classes = ("normal", "tumor") if name == "two" else THREE
        parts = [
            write_run(folder / name / role, classes, folds=2, seeds=2, role=role, slides=40 + 8 * (role == "val"))
            for role in ("val", "test")
        ]
        run = folder / f"{name}_classes"
        shutil.copytree(folder / name / "test", run)
        pd.concat(parts, ignore_index=True).to_parquet(run / "predictions.parquet")
        shutil.rmtree(folder / name)
        asmil("evaluate", run, *FEW)
        asmil("evaluate", run, *FEW, "--role", "val")
        asmil("evaluate", run, *FEW, "--unit", "patient", "--threshold", "sensitivity:0.9")
    write_run(folder / "repeated", THREE, folds=2, seeds=2, overlapping=True)
    asmil("evaluate", folder / "repeated", *FEW)
    asmil("evaluate", folder / "three_classes", folder / "repeated", *FEW, "--out", folder / "both")


def evaluate_survival(folder: Path) -> None:
    write_survival_run(folder / "bins")
    write_survival_run(folder / "cox", n=60, folds=1, seeds=1, curves=False)
    asmil("evaluate", folder / "bins", *FEW)
    asmil("evaluate", folder / "bins", folder / "cox", *FEW, "--out", folder / "both")


def evaluate_regression(folder: Path) -> None:
    write_regression(folder / "values", 0.5)
    write_regression(folder / "repeated", 1.0, overlapping=True)
    asmil("evaluate", folder / "values", *FEW)
    asmil("evaluate", folder / "values", folder / "repeated", *FEW, "--out", folder / "both")


def evaluate_multilabel(folder: Path) -> None:
    write_multilabel(folder / "labels", 1.0)
    write_multilabel(folder / "other", 2.0)
    asmil("evaluate", folder / "labels", *FEW)
    asmil("evaluate", folder / "labels", folder / "other", *FEW, "--out", folder / "both")


def compare_classification(folder: Path) -> None:
    for name, quality, noise in (("a", 0.6, 0), ("b", 1.4, 1), ("c", 0.9, 2)):
        write_compared_run(folder / name, quality, noise_seed=noise, folds=2, slides_a_patient=2)
        write_compared_run(folder / f"three_{name}", quality, THREE, noise_seed=noise, seeds=2)
    runs = [folder / name for name in "abc"]
    asmil("compare", *runs, *FEW, "--all-pairs", "--out", folder / "two_classes")
    asmil("compare", *runs[:2], *FEW, "--unit", "patient", "--out", folder / "patients")
    asmil("compare", folder / "three_a", folder / "three_b", *FEW, "--out", folder / "three_classes")


def compare_other_tasks(folder: Path) -> None:
    patients = exponential_patients(90)
    for name, noise in (("a", 0.3), ("b", 1.5)):
        write_survival_run(folder / f"survival_{name}", noise=noise, patients=patients)
        write_regression(folder / f"regression_{name}", noise)
        write_multilabel(folder / f"multilabel_{name}", noise)
    for task in ("survival", "regression", "multilabel"):
        asmil("compare", folder / f"{task}_a", folder / f"{task}_b", *FEW, "--out", folder / task)


def localize(folder: Path) -> None:
    from asmil.runs.config import resolve
    from asmil.synthetic.bags import SyntheticConfig, write_synthetic
    from asmil.training.run import train_run

    config = SyntheticConfig(slides=24, width=24, tiles_min=20, tiles_max=60, witness_min=0.1, seed=3)
    manifest = write_synthetic(folder / "cohort", config)
    changes = {"training": {"epochs": 1, "device": "cpu", "lr": UNTRAINED, "select": "last"}}
    train_run(manifest, folder / "run", resolve("abmil", changes=changes))
    truth = folder / "cohort" / "tile_truth.parquet"
    scalings = ("--scaling", "gated", "--scaling", "rank")
    asmil("localize", folder / "run", "--truth", truth, *scalings, *FEW, "--quiet", "--device", "cpu")


def stability(folder: Path) -> None:
    write_fake_run(folder / "calm", FakeRun(side=8, n_recordings=6, restless=0.1))
    write_fake_run(folder / "restless", FakeRun(side=8, n_recordings=6, restless=2.0, seeds=3, with_coords=False))
    asmil("stability", folder / "calm")
    asmil("stability", folder / "calm", folder / "restless", "--out", folder / "both")


def classic(folder: Path) -> None:
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 6, 24)
    bag, label = np.repeat(np.arange(24), sizes), np.arange(24) % 2
    features = draw.normal(size=(len(bag), 4))
    features[np.cumsum(sizes) - 1, :2] += 2 * label[:, None]
    np.savez(folder / "fox.npz", features=features, bag=bag, label=label)
    methods = ("-m", "mi_svm", "-m", "mean_pooling", "--set", "training.epochs=1", "--set", f"training.lr={UNTRAINED}")
    asmil("classic", folder / "fox.npz", *methods, "--folds", 2, "--seeds", 2, "--workers", 1, "-q", "-o", folder / "o")


CASES: dict[str, Callable[[Path], None]] = {
    case.__name__: case
    for case in (
        evaluate_classification,
        evaluate_survival,
        evaluate_regression,
        evaluate_multilabel,
        compare_classification,
        compare_other_tasks,
        localize,
        stability,
        classic,
    )
}


def write_regression(path: Path, noise: float, overlapping: bool = False) -> None:
    rng, table = np.random.default_rng(1), _keys(60, overlapping)
    truth = dict(zip(table["slide"].unique(), 5 + rng.normal(size=60), strict=True))
    table["target"] = table["slide"].map(truth)
    table["value"] = table["target"] + noise * rng.normal(size=len(table))
    _write(path, {"kind": "regression"}, table)


def write_multilabel(path: Path, noise: float) -> None:
    rng, table = np.random.default_rng(2), _keys(60)
    for label, share in (("gland", 0.5), ("necrosis", 0.2)):
        truth = dict(zip(table["slide"].unique(), rng.random(60) < share, strict=True))
        table[f"target_{label}"] = table["slide"].map(truth).astype(int)
        logit = 2 * table[f"target_{label}"] - 1 + noise * rng.normal(size=len(table))
        table[f"prob_{label}"] = 1 / (1 + np.exp(-logit))
    _write(path, {"kind": "multilabel", "classes": ["gland", "necrosis"]}, table)


def _keys(n: int, overlapping: bool = False) -> pd.DataFrame:
    slides = pd.DataFrame({"slide": [f"s{i}" for i in range(n)], "patient": [f"p{i // 2}" for i in range(n)]})
    slides["role"] = "test"
    folds = [slides.assign(fold=fold) if overlapping else slides[np.arange(n) // 2 % 2 == fold] for fold in (0, 1)]
    folds = [part.assign(fold=fold) for fold, part in enumerate(folds)]
    return pd.concat([part.assign(seed=seed) for seed in (0, 1) for part in folds], ignore_index=True)


def _write(path: Path, task: dict[str, object], table: pd.DataFrame) -> None:
    path.mkdir(parents=True)
    config = {"method": "abmil", "preset": "paper", "task": task, "training": {"select": "last"}}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    table.to_parquet(path / "predictions.parquet")


def written_by(case: str, folder: Path) -> dict[str, str]:
    """The data files that the commands of a case leave, by their path below the folder, which is cut from all texts."""
    before = set(folder.rglob("*"))
    CASES[case](folder)
    skipped = {"cohort", "checkpoints", "jobs", "splits.csv"}
    return {
        str(file.relative_to(folder)): file.read_text(encoding="utf-8").replace(f"{folder}/", "")
        for file in sorted(set(folder.rglob("*")) - before)
        if file.suffix in DATA_FILES and not skipped & set(file.relative_to(folder).parts) and "fold-" not in str(file)
    }


def main() -> None:
    for case in sys.argv[1:] or CASES:
        shutil.rmtree(OUTPUTS / case, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            for name, text in written_by(case, Path(folder)).items():
                (OUTPUTS / case / name).parent.mkdir(parents=True, exist_ok=True)
                (OUTPUTS / case / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
