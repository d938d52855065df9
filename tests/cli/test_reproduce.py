"""The command that a report prints trains the same run again, from any folder."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from asmil.models.registry import methods
from asmil.runs.config import preset_names, resolve
from asmil.runs.described import train_command
from asmil.runs.run import Run
from asmil.settings.config import flat, merge, parse_assignments
from small_task_cohorts import write_cohort

SHORT = ["--set", "training.epochs=2", "--device", "cpu"]
SMALL = ["--method", "abmil", "--set", "model.inner=8", "--set", "model.attention=8"]
OWN = """
import torch
from asmil import MILModel
from asmil.models.base import ModelConfig, Output


class Config(ModelConfig):
    hidden: int = 8


class Mean(MILModel):
    config_type = Config

    def __init__(self, in_features, n_outputs, config):
        super().__init__(in_features, n_outputs, config)
        self.layer = torch.nn.Linear(in_features, config.hidden)
        self.head = torch.nn.Linear(config.hidden, n_outputs)

    def forward(self, bag):
        embedded = self.layer(bag.features.float()).mean(dim=0)
        return Output(self.head(embedded), None, embedded)
"""
CASES = {
    "classification": ("classification", ["--folds", "2", "--seed", "5", "--set", "training.lr=1e-5"]),
    "survival": ("survival", ["--seeds", "2", "--time-unit", "days", "--set", "task.bins=3"]),
    "regression": ("regression", ["--set", "training.betas=[0.9, 0.99]", "--set", "training.lr_drops=[1]"]),
    "multilabel": ("multilabel", ["--anchor", "nsf", "--set", "anchor.weight=0.1", "--plain"]),
    "preset": ("classification", ["--method", "clam_sb", "--preset", "official", "--set", "data.max_tiles=5"]),
    "sites": ("classification", ["--leave-one-site-out", "--stabilizer", "entropy=0.1"]),
    "nested": ("classification", ["--inner-folds", "2", "--grid", "training.lr=[1e-5, 3e-3]"]),
}


def reported(page: Path) -> list[str]:
    """The words of the training command in a page."""
    (found,) = re.findall("<code>(asmil train.*?)</code>", page.read_text(encoding="utf-8"))
    return shlex.split(html.unescape(re.sub("<[^>]*>", "", found)))


def renamed(manifest: Path, **names: str) -> str:
    """Give columns of a manifest other names; what `--columns` needs to find them."""
    table = pd.read_csv(manifest)
    table.rename(columns=names).to_csv(manifest, index=False)
    return ",".join(f"{name}={column}" for name, column in names.items())


def trained_again(asmil_here: Any, run: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the printed command in a fresh folder; the predictions and all settings must be equal."""
    words = reported(run / "report.html")
    fresh.mkdir()
    monkeypatch.chdir(fresh)
    done = asmil_here(*words[1:], "--quiet")
    assert done.returncode == 0, done.stderr
    again = fresh / words[words.index("--out") + 1]
    tables = [pd.read_parquet(one / "predictions.parquet") for one in (run, again)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    first, second = (flat(yaml.safe_load((one / "config.yaml").read_text())) for one in (run, again))
    places = {"cohort.manifest", "cohort.features", "method", "init.weights"}
    assert {key: value for key, value in first.items() if key not in places} == {
        key: value for key, value in second.items() if key not in places
    }


@pytest.mark.usefixtures("undrawn_figures")
def test_a_run_with_chosen_columns_and_features_elsewhere_is_reproduced(tmp_path, asmil_here, monkeypatch):
    home = tmp_path / "my slides"
    manifest = write_cohort(home, "regression", n_patients=8)
    (home / "features").rename(home / "the features")
    columns = renamed(manifest, label="TMB (mut/Mb)", slide="Image", patient="who")
    monkeypatch.chdir(home)
    options = ["--task", "regression", "--columns", columns, "--features", "the features", *SMALL, *SHORT]
    done = asmil_here("train", "cohort.csv", *options, "--out", "a run", "--quiet")
    assert done.returncode == 0, done.stderr
    page = (home / "a run" / "report.html").read_text(encoding="utf-8")
    assert "Left out" not in page
    assert "16 slides" in page
    trained_again(asmil_here, home / "a run", tmp_path / "elsewhere", monkeypatch)


@pytest.mark.heavy
@pytest.mark.usefixtures("undrawn_figures")
@pytest.mark.parametrize("case", CASES)
def test_every_printed_command_reproduces_its_run(case, tmp_path, asmil_here, monkeypatch):
    kind, options = CASES[case]
    manifest = write_cohort(tmp_path, kind, split="--folds" not in options, sites=4)
    columns = renamed(
        manifest, **({"time": "OS_days", "event": "dead"} if kind == "survival" else {"label": "my label"})
    )
    words = ["--task", kind, "--columns", columns, *(SMALL if "--method" not in options else []), *SHORT, *options]
    run = tmp_path / "run"
    done = asmil_here("train", manifest, *words, "--out", run, "--quiet")
    assert done.returncode == 0, done.stderr
    trained_again(asmil_here, run, tmp_path / "fresh", monkeypatch)


@pytest.mark.heavy
@pytest.mark.usefixtures("undrawn_figures")
def test_runs_from_weights_and_of_own_code_are_reproduced(tmp_path, asmil_here, monkeypatch):
    manifest = write_cohort(tmp_path, "classification")
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    own = ["--method", "mine.py:Mean", "--set", "model.hidden=5", *SHORT]
    for name, options in {"own": own, "base": [*SMALL, *SHORT], "tuned": ["--init", "base", *SHORT]}.items():
        done = asmil_here("train", manifest, *options, "--out", name, "--quiet")
        assert done.returncode == 0, done.stderr
    for name in ("own", "tuned"):
        trained_again(asmil_here, tmp_path / name, tmp_path / f"fresh {name}", monkeypatch)


def stored(folder: Path, values: dict[str, Any]) -> Run:
    """A run folder with these settings."""
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return Run(folder)


def test_a_report_does_not_execute_the_code_that_a_run_names(tmp_path):
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    config = resolve("abmil").model_dump(mode="json") | {"method": f"{tmp_path / 'mine.py'}:Mean"}
    assert train_command(stored(tmp_path, config | {"cohort": {"manifest": "cohort.csv"}}), "again") is not None
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "about",
    [{}, {"manifest": "cohort.csv", "columns": {"label": "grade, final"}}],
    ids=["no manifest", "a column that --columns cannot name"],
)
def test_no_command_is_printed_that_would_fail(about, tmp_path):
    values = resolve("abmil").model_dump(mode="json") | {"cohort": about}
    assert train_command(stored(tmp_path, values), "again") is None


CHANGES: dict[str, Any] = {
    "folds": 4,
    "seeds": 3,
    "training.seed": 7,
    "training.lr": 1e-5,
    "training.betas": [0.8, 0.9],
    "training.clip_norm": 2.5,
    "training.device": "cpu",
    "training.track": ["tensorboard"],
    "data.leave_out": "site",
    "data.max_tiles": 100,
    "record.attention": "none",
    "record.every": 5,
    "nested.folds": 2,
    "nested.grid": {"training.lr": [1e-5, 1e-3], "training.select": ["last"]},
}


@pytest.mark.parametrize("method", sorted(methods()))
def test_the_command_states_every_setting_of_every_preset(method, tmp_path):
    for preset in preset_names(methods()[method]):
        changes: dict[str, Any] = {}
        for name, value in CHANGES.items():
            changes = merge(changes, _tree(name, value))
        config = resolve(method, preset, changes)
        about = {"manifest": "my cohort.csv", "columns": {"label": "a b", "patient": "case"}}
        command = train_command(stored(tmp_path, config.model_dump(mode="json") | {"cohort": about}), "the run")
        assert command is not None
        words = shlex.split(command)
        assert words[:3] == ["asmil", "train", "my cohort.csv"]
        assert words[words.index("--columns") + 1] == "label=a b,patient=case"
        assert _resolved(words) == config


def _tree(name: str, value: Any) -> dict[str, Any]:
    section, _, key = name.partition(".")
    return {section: {key: value}} if key else {section: value}


def _resolved(words: list[str]) -> Any:
    """The settings that the words of a command describe, as `asmil train` reads them."""
    pairs = list(zip(words[3::2], words[4::2], strict=True))
    given = dict(pairs)
    tree = parse_assignments([value for option, value in pairs if option == "--set"])
    grid = flat(parse_assignments([value for option, value in pairs if option == "--grid"], "--grid"))
    own = {"folds": int(given["--folds"]), "seeds": int(given["--seeds"]), "training": {"seed": int(given["--seed"])}}
    own |= {"nested": {"folds": int(given["--inner-folds"]), "grid": grid}}
    return resolve(given["--method"], given["--preset"], merge(tree, own))
