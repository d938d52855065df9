"""Every verb that skips finished work: it notices what its results were made from, and `--again` makes them again.

One test for all verbs: make the result, run the command again (kept, to the byte), change one ingredient (refused,
naming it, and nothing is touched), then `--again` (another result), and once more without it (kept).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml

from asmil.cli.main import main
from asmil.cohort.features import FeatureSource, inspect_features
from asmil.settings.made_from import RECORDS_FILE
from asmil.synthetic.bags import SyntheticConfig, write_synthetic
from small_slides import write_slide
from small_tissues import write_tissue

TINY = {"slides": 16, "width": 16, "tiles_min": 20, "tiles_max": 24, "witness_min": 0.1, "seed": 3}
TRAINED = ["--method", "abmil", "--set", "training.epochs=1", "--set", "model.inner=8", "--set", "model.attention=4"]
ENCODER = """\
import torch

class Tiny(torch.nn.Module):
    tile_px = 64

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(SCALE))

    def forward(self, x):
        return self.scale * x.mean((2, 3))

class Mean(torch.nn.Module):
    def forward(self, features, coords=None, tile_px_level0=None, mpp=None):
        return SCALE * features.mean(0)
"""


def edit_yaml(path: Path, change: Callable[[dict], None]) -> None:
    values = yaml.safe_load(path.read_text())
    change(values)
    path.write_text(yaml.safe_dump(values, sort_keys=False))


def swap_labels(lab: Path) -> None:
    table = pd.read_csv(lab / "cohort" / "cohort.csv")
    table["label"] = table["label"].map({"tumor": "normal", "normal": "tumor"})
    table.to_csv(lab / "cohort" / "cohort.csv", index=False)


def other_features(lab: Path) -> None:
    """Features of another encoder: as many tiles in the same places, in files of the same name."""
    for path in sorted((lab / "cohort" / "features").glob("*.h5")):
        with h5py.File(path, "r+") as file:
            file["features"][...] = np.flip(file["features"][()], axis=1)
            del file.attrs["crc32"]


def other_manifest(lab: Path) -> None:
    """Other slides under the same name of the manifest."""
    manifest = lab / "cohort" / "cohort.csv"
    table = pd.read_csv(manifest)
    table[table["slide"] != table["slide"].iloc[0]].to_csv(manifest, index=False)


def train_again(lab: Path) -> None:
    assert run("train", "cohort/cohort.csv", *TRAINED, "--seed", "5", "-o", "run", "--again") == 0


def other_slide(lab: Path) -> None:
    """Another slide of the same size in bytes, under the same name."""
    path = lab / "slides" / "slide-0.tif"
    size = path.stat().st_size
    write_slide(path, seed=9)
    with path.open("ab") as file:
        file.truncate(max(size, path.stat().st_size))


def other_code(lab: Path) -> None:
    (lab / "own.py").write_text(ENCODER.replace("SCALE", "3.0"))


def more_folds(lab: Path) -> None:
    edit_yaml(lab / "sweep.yaml", lambda plan: plan.update(folds=3))


def other_rate(lab: Path) -> None:
    edit_yaml(lab / "sweep.yaml", lambda plan: plan["variants"]["plain"]["settings"].update({"training.lr": 0.01}))


def more_slides(lab: Path) -> None:
    edit_yaml(lab / "synthetic.yaml", lambda plan: plan["cohorts"]["lab"]["synthetic"].update(slides=40))


def other_bags(lab: Path) -> None:
    write_bags(lab, seed=2)


def write_bags(lab: Path, seed: int = 1) -> None:
    draw = np.random.default_rng(seed)
    bags = np.repeat(np.arange(16), 3)
    table = pd.DataFrame({"bag": bags, "label": bags % 2, "f1": draw.normal(size=48), "f2": draw.normal(size=48)})
    for name in ("bags.csv", "fox.csv"):
        table.to_csv(lab / name, index=False)


@dataclass(frozen=True)
class Case:
    """made: the results, which no refused command may touch; needs: what must be there; told: what the message names.

    change: of an ingredient; or of the command, as the words that replace others
    """

    verb: str
    command: str
    made: str
    change: Callable[[Path], None] | dict[str, str]
    told: tuple[str, ...]
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        what = "-".join(self.change.values()) if isinstance(self.change, dict) else self.change.__name__
        return f"{self.verb}-{what}"


EXTRACT = "extract slides --out features --encoder own.py:Tiny --tile-um 64 --tile-px 64 --no-qc --workers 0 -q"
HEATMAP = "heatmap run --slide slide-0003 --out maps --features cohort/features --tiles 0 --workers 0 -q"
FAITHFUL = "faithfulness run --kind attention --slides 1 --resamples 5 --workers 0 -q --out faithful"
SWEEP = "sweep sweep.yaml --out sweep -q"
PAPER = (
    "paper components --cohort cohort/cohort.csv --dataset bracs --row drop --quick --epochs 1 --seeds 1 "
    "--set model.inner=8 --set model.tokens=2 --out paper -q"
)
TRAIN = f"train cohort/cohort.csv {' '.join(TRAINED)} -o run -q"
CLASSIC = "classic bags.csv --method mi_svm --folds 2 --seeds 1 --out classic --workers 1 -q"
AUTO = "auto cohort/cohort.csv --out best --minutes 0.1 --method abmil --set training.epochs=1 -q"
CASES = (
    Case("auto", AUTO, "best", swap_labels, ("manifest rows",), ("cohort",)),
    Case("auto", AUTO, "best", {"training.epochs=1": "training.epochs=2"}, ("training.epochs",), ("cohort",)),
    Case("heatmap", HEATMAP, "maps", train_again, ("slide-0003", "weights"), ("run",)),
    Case("heatmap", HEATMAP, "maps", other_features, ("slide-0003", "features"), ("run",)),
    Case("heatmap", HEATMAP, "maps", {"--tiles 0": "--tiles 0 --opacity 0.3"}, ("opacity",), ("run",)),
    Case("faithfulness", FAITHFUL, "faithful", train_again, ("weights",), ("run",)),
    Case("faithfulness", FAITHFUL, "faithful", other_features, ("features",), ("run",)),
    Case("faithfulness", FAITHFUL, "faithful", {"--kind attention": "--kind gradient"}, ("kinds",), ("run",)),
    Case("train", TRAIN, "run", swap_labels, ("manifest rows",), ("cohort",)),
    Case("train", TRAIN, "run", other_features, ("features",), ("cohort",)),
    Case("train", TRAIN, "run", {"training.epochs=1": "training.epochs=2"}, ("training.epochs",), ("cohort",)),
    Case("sweep", SWEEP, "sweep", swap_labels, ("plain", "manifest rows"), ("cohort",)),
    Case("sweep", SWEEP, "sweep", other_features, ("plain", "features"), ("cohort",)),
    Case("sweep", SWEEP, "sweep", other_manifest, ("plain", "manifest rows"), ("cohort",)),
    Case("sweep", SWEEP, "sweep", more_folds, ("plain", "folds"), ("cohort",)),
    Case("sweep", SWEEP, "sweep", other_rate, ("plain", "training.lr"), ("cohort",)),
    Case("sweep", "sweep synthetic.yaml --out sweep -q", "sweep", more_slides, ("lab", "slides: there 16, asked 40")),
    Case("paper", PAPER, "paper", swap_labels, ("drop", "manifest rows"), ("cohort",)),
    Case("extract", EXTRACT, "features", other_slide, ("slide-0", "slide image"), ("slides",)),
    Case("extract", EXTRACT, "features", other_code, ("slide-0", "weights"), ("slides",)),
    Case("extract", EXTRACT, "features", {"--tile-px 64": "--tile-px 64 --overlap 0.5"}, ("overlap",), ("slides",)),
    Case("tissue", "tissue slides --out qc --workers 1", "qc", other_slide, ("slide-0", "slide image"), ("slides",)),
    Case(
        "encode-slides",
        "encode-slides cohort/features --encoder own.py:Mean --out vectors --workers 0 -q",
        "vectors",
        other_features,
        ("slide-0003", "features"),
        ("cohort",),
    ),
    Case(
        "encode-slides",
        "encode-slides cohort/features --encoder own.py:Mean --out vectors --workers 0 -q",
        "vectors",
        other_code,
        ("slide-0003", "encoder code"),
        ("cohort",),
    ),
    Case(
        "pack",
        "pack cohort/cohort.csv --out lab.pack -q",
        "lab.pack",
        other_features,
        ("slide-0003", "features"),
        ("cohort",),
    ),
    Case("classic", CLASSIC, "classic", other_bags, ("bags", "data"), ("bags",)),
    Case("classic", CLASSIC, "classic", {"--folds 2": "--folds 3"}, ("folds",), ("bags",)),
    Case(
        "datasets",
        "datasets classic --from . --only fox --unverified --out made -q",
        "made",
        other_bags,
        ("fox", "bags"),
        ("bags",),
    ),
    Case(
        "transplants",
        "transplants made --background a/cohort.csv --witnesses-from b/cohort.csv --slides 6 --witnesses 1 "
        "--tiles-min 4 --tiles-max 9",
        "made",
        {"--slides 6": "--slides 7"},
        ("slides",),
        ("tissues",),
    ),
    Case("synthetic", "synthetic made --slides 6 --width 16", "made", {"--slides 6": "--slides 7"}, ("slides",)),
    Case(
        "synthetic-slides",
        "synthetic-slides made --slides 2 --side-mm-min 1 --side-mm-max 1.2 --workers 1",
        "made",
        {"--slides 2": "--slides 3"},
        ("slides",),
    ),
)


def run(*words: str) -> int:
    """The exit code of a command in this process."""
    before, sys.argv = sys.argv, ["asmil", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".html", ".json", ".lock", ".md", ".parquet")
    }


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands need, made once."""
    place = tmp_path_factory.mktemp("prepared")
    write_synthetic(place / "cohort", SyntheticConfig(**TINY))
    for number in range(2):
        write_slide(place / "slides" / f"slide-{number}.tif", seed=number)
    before = os.getcwd()
    os.chdir(place)
    try:
        assert run("train", "cohort/cohort.csv", *TRAINED, "-o", "run", "-q") == 0
    finally:
        os.chdir(before)
    return place


@pytest.fixture
def lab(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    monkeypatch.chdir(tmp_path)
    needs = set(request.param.needs)
    for name in needs | ({"cohort"} if "run" in needs else set()):
        if (prepared / name).is_dir():
            shutil.copytree(prepared / name, tmp_path / name)
    if "bags" in needs:
        write_bags(tmp_path)
    if "tissues" in needs:
        write_tissue(tmp_path / "a", "breast", 0.0)
        write_tissue(tmp_path / "b", "lung", 5.0)
    (tmp_path / "own.py").write_text(ENCODER.replace("SCALE", "2.0"))
    settings = {"training.epochs": 1, "model.inner": 8, "model.attention": 4}
    variants = {"plain": {"method": "abmil", "settings": settings}}
    cohort = {"manifest": "cohort/cohort.csv"}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"cohorts": {"lab": cohort}, "variants": variants}))
    made = {"synthetic": dict(TINY)}
    (tmp_path / "synthetic.yaml").write_text(yaml.safe_dump({"cohorts": {"lab": made}, "variants": variants}))
    if "run" in needs:  # whose manifest is the one of this folder
        edit_yaml(
            tmp_path / "run" / "config.yaml",
            lambda values: values["cohort"].update(manifest=str(tmp_path / "cohort" / "cohort.csv")),
        )
    return tmp_path


@pytest.mark.heavy
@pytest.mark.usefixtures("undrawn_figures")
@pytest.mark.parametrize(
    ("lab", "case"), [(case, case) for case in CASES], ids=[case.name for case in CASES], indirect=["lab"]
)
def test_old_results_never_pass_for_new_ones(lab, case, capfd):
    command = case.command
    assert run(*command.split()) == 0, capfd.readouterr().err
    made = files(lab / case.made)
    assert made
    assert run(*command.split()) == 0
    assert files(lab / case.made) == made, "done before"

    if isinstance(case.change, dict):
        for old, new in case.change.items():
            assert old in command
            command = command.replace(old, new)
    else:
        case.change(lab)
    capfd.readouterr()
    assert run(*command.split()) == 1
    error = capfd.readouterr().err
    assert all(word in " ".join(error.split()) for word in (*case.told, "--again")), error
    assert "Traceback" not in error
    assert files(lab / case.made) == made, "nothing was touched"

    assert run(*command.split(), "--again") == 0, capfd.readouterr().err
    remade = files(lab / case.made)
    assert remade != made
    assert run(*command.split()) == 0, capfd.readouterr().err
    assert files(lab / case.made) == remade
    assert run(*command.split(), "--again") == 0, "which makes nothing again that is as it should be"
    assert files(lab / case.made) == remade


def test_every_verb_with_this_option_is_tested():
    import typer.main

    from asmil.cli.main import app

    commands = typer.main.get_command(app).commands
    with_option = {name for name, verb in commands.items() if any("--again" in one.opts for one in verb.params)}
    assert with_option - {"predict"} == {case.verb for case in CASES}, "predict extracts as `extract` does"


@dataclass(frozen=True)
class Needs:
    """What a test of this file needs in its folder."""

    needs: tuple[str, ...]


@pytest.mark.parametrize("lab", [Needs(("run",))], indirect=True)
def test_maps_of_earlier_versions_are_refused_since_their_origin_is_unknown(lab, capfd):
    assert run(*HEATMAP.split()) == 0
    (lab / "maps" / RECORDS_FILE).unlink()
    assert run(*HEATMAP.split()) == 1
    assert "slide-0003" in capfd.readouterr().err
    assert run(*HEATMAP.split(), "--again") == 0
    assert run(*HEATMAP.split()) == 0


@pytest.mark.parametrize("lab", [Needs(("slides",))], indirect=True)
def test_features_of_earlier_versions_are_kept_and_other_spellings_are_one_encoder(lab, capfd):
    assert run(*EXTRACT.split()) == 0
    for path in (lab / "features").glob("*.h5"):
        with h5py.File(path, "r+") as file:
            about = json.loads(file.attrs["extraction"])
            del about["asmil"], about["code"], about["slide"]["content"]
            file.attrs["extraction"] = json.dumps(about)
    made = files(lab / "features")
    shutil.copy(lab / "slides" / "slide-0.tif", lab / "slides" / "slide-2.tif")
    assert run(*EXTRACT.replace("own.py", "./own.py").split()) == 0, capfd.readouterr().err
    remade = files(lab / "features")
    assert {name: remade[name] for name in made} == made
    names = [inspect_features(FeatureSource(path)).encoder for path in sorted((lab / "features").glob("*.h5"))]
    assert names == ["own.py:Tiny"] * 3
    write_slide(lab / "slides" / "slide-1.tif", side_px=900, seed=5)
    capfd.readouterr()
    assert run(*EXTRACT.split()) == 1
    assert "slide-1: slide image" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize("lab", [Needs(("cohort",))], indirect=True)
def test_a_sweep_that_is_stopped_while_it_trains_again_shows_no_old_result(lab):
    assert run(*SWEEP.split()) == 0
    swap_labels(lab)
    assert run(*SWEEP.split(), "--again", "--seconds", "0") == 0
    assert "done" not in (lab / "sweep" / "results.csv").read_text()
    assert run(*SWEEP.split(), "--again") == 0
    assert pd.read_csv(lab / "sweep" / "results.csv")["status"].tolist() == ["done"]


@pytest.mark.parametrize("lab", [Needs(("cohort",))], indirect=True)
def test_what_cannot_be_trained_does_not_cost_the_run_that_is_there(lab, capfd):
    assert run(*TRAIN.split()) == 0
    made = files(lab / "run")
    table = pd.read_csv(lab / "cohort" / "cohort.csv")
    table["split"] = "test"
    table.to_csv(lab / "cohort" / "cohort.csv", index=False)
    assert run(*TRAIN.split(), "--again") == 1
    assert files(lab / "run") == made


@pytest.mark.parametrize("lab", [Needs(("cohort",))], indirect=True)
def test_packed_features_may_be_moved(lab, capfd):
    pack = ("pack", "cohort/cohort.csv", "--out", "lab.pack", "-q")
    assert run(*pack) == 0
    before = (lab / "lab.pack" / "features.f16").stat().st_size
    shutil.copytree(lab / "cohort" / "features", lab / "copied")
    for _ in range(2):
        assert run(*pack, "--features", "copied") == 0, capfd.readouterr().err
    assert (lab / "lab.pack" / "features.f16").stat().st_size == before
