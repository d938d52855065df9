"""Every statement of a model card follows from the run: it changes when the facts change."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import asmil
from asmil.cohort.features import Provenance, write_features
from asmil.evaluation.site_overlap import SiteOverlap, site_overlap
from asmil.export.bundle import write_bundle
from asmil.runs.config import resolve
from asmil.runs.run import Run
from asmil.training.run import train_run
from small_task_cohorts import write_cohort

SITES: dict[str, dict[str, list[str]]] = {
    "same": {"train": ["a", "b"], "val": ["a"], "test": ["a", "b"]},
    "other": {"train": ["a", "b"], "val": ["a"], "test": ["c"]},
    "mixed": {"train": ["a", "b"], "val": ["a"], "test": ["b", "c"]},
    "some": {"train": ["a", "b"], "val": ["a"], "test": ["a", ""]},
}
"""Of each part, the sites that its patients come from in turn."""


def trained(folder: Path, kind: str = "classification", sites: str | None = None, **changes: Any) -> Path:
    manifest = write_cohort(folder, kind)
    if sites is not None:
        table = pd.read_csv(manifest)
        of_patient = {}
        for part, rows in table.groupby("split"):
            names = SITES[sites][str(part)]
            of_patient |= {patient: names[n % len(names)] for n, patient in enumerate(rows["patient"].unique())}
        table.assign(site=table["patient"].map(of_patient)).to_csv(manifest, index=False)
    settings = {"training": {"epochs": 1, "device": "cpu"}, "model": {"inner": 8, "attention": 8}}
    config = resolve("abmil", changes=settings | {"task": {"kind": kind}} | changes)
    return train_run(manifest, folder / "run", config).path


def limits(card: str) -> list[str]:
    return re.findall(r"^- (.*)$", card.split("## Limits")[1], re.MULTILINE)


def card_of(run: Path, name: str = "bundle") -> str:
    return (write_bundle(run, run.parent / name) / "README.md").read_text(encoding="utf-8")


def test_the_sites_of_test_slides_are_counted(tmp_path):
    found, cards = {}, {}
    for case in SITES:
        run = trained(tmp_path / case, sites=case)
        found[case] = site_overlap(Run(run))
        cards[case] = limits(card_of(run))
    assert found == {
        "same": SiteOverlap(8, 0, 0, 2, 2),
        "other": SiteOverlap(0, 8, 0, 1, 2),
        "mixed": SiteOverlap(4, 4, 0, 2, 2),
        "some": SiteOverlap(4, 0, 4, 1, 2),
    }
    about_sites = [next(line for line in card if "site" in line) for card in cards.values()]
    assert len(set(about_sites)) == len(SITES)
    # nothing is claimed of a manifest that is not the one of the training, or gone
    run = tmp_path / "other" / "run"
    manifest = tmp_path / "other" / "cohort.csv"
    pd.read_csv(manifest).assign(site="a").to_csv(manifest, index=False)
    assert site_overlap(Run(run)) is None
    changed = card_of(run, "changed")
    manifest.unlink()
    assert limits(card_of(run, "gone")) == limits(changed)
    assert not set(about_sites) & set(limits(changed))


def test_models_units_labels_and_features_are_those_of_the_run(tmp_path):
    survival = trained(tmp_path / "s", "survival", seeds=2, task={"kind": "survival", "time_unit": "weeks"})
    labels = trained(tmp_path / "m", "multilabel")
    cards = {"survival": card_of(survival), "multilabel": card_of(labels)}
    summary = {name: card.split("\n## ")[0] for name, card in cards.items()}
    assert "weeks" in summary["survival"]
    assert "2 seeds" in summary["survival"]
    assert "weeks" not in summary["multilabel"]
    assert "Labels: a, b." in summary["multilabel"]
    for card in cards.values():
        assert "| patients in the cohort | 16 |" in card
        assert "| test slides | 8 of 4 patients |" in card
        assert any("drawn" in line for line in limits(card))  # the encoder of these features
        assert "approved" not in card
    # the models of several seeds were tested one by one; that of a single training was tested as it is
    assert any("single trainings" in line for line in limits(cards["survival"]))
    assert not any("single trainings" in line for line in limits(cards["multilabel"]))


def test_the_command_of_a_card_runs(tmp_path, asmil_here, monkeypatch):
    run = trained(tmp_path)
    card = card_of(run)
    (command,) = re.findall("^asmil predict .*$", card, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    words = [word.replace("THIS_FOLDER", "bundle") for word in shlex.split(command)[1:]]
    assert asmil_here(*words).returncode == 0
    assert len(pd.read_csv("predictions.csv")) == 32
    (script,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    exec(script.replace("THIS_FOLDER", "bundle"), {})
    assert isinstance(asmil.load_run("bundle"), asmil.TrainedRun)


@pytest.mark.parametrize("known", [True, False])
def test_what_is_not_known_of_the_features_is_said(known, tmp_path):
    manifest = write_cohort(tmp_path, "classification", n_patients=8)
    draw = np.random.default_rng(0)
    for file in (tmp_path / "features").glob("*.h5"):
        provenance = Provenance(encoder="uni", tile_um=128.0, tile_px=256) if known else Provenance()
        write_features(file, draw.normal(size=(5, 24)), np.arange(10).reshape(5, 2) * 256, provenance)
    config = resolve("abmil", changes={"training": {"epochs": 1, "device": "cpu"}, "model": {"inner": 8}})
    card = card_of(train_run(manifest, tmp_path / "run", config).path)
    (line,) = (line for line in limits(card) if "24 numbers" in line)
    assert ("uni" in line, "128" in line, "unknown" in line) == (known, known, not known)
