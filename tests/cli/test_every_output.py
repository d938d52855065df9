"""What every verb prints, piped, in three widths and three poor encodings: it fits, and nothing is lost or coloured.

One small laboratory is walked through from slides to maps. Verbs are found in the command itself, so that a new one
needs a line here.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

import pytest
import typer.main

from asmil.cli.main import app, main
from small_tissues import write_tissue

VERBS = sorted(typer.main.get_command(app).commands)
SETTINGS = "training.epochs=2"
SWEEP = """\
cohorts: {lab: {manifest: lab/cohort.csv, features: lab/features}}
variants: {plain: {method: abmil, settings: {training.epochs: 1, model.inner: 16}}}
seeds: 1
"""
ENCODER = """\
def mean():
    return lambda features, coords, tile_px_level0, mpp: features.mean(0)
"""
CLAM_TABLE = "case_id,slide_id,label\np1,s1,a\np2,s2,b\n"
SESSION = (
    "doctor",
    "methods",
    "encoders",
    "completion bash",
    "synthetic-slides lab --slides 10 --seed 3 --workers 1 --side-mm-min 1.5 --side-mm-max 2",
    "tissue lab/slides --out qc --workers 1",
    "extract lab/slides --out lab/features --tile-um 256 --tile-px 64 --no-qc --workers 1",
    "encode-slides lab/features --encoder slide_mean:mean --out vectors --workers 1",
    "check lab/cohort.csv",
    "plan lab/cohort.csv --out run.yaml --force",
    "init settings.yaml --force",
    "import-manifest clam.csv --columns patient=case_id --out imported.csv --force",
    "pack lab/cohort.csv --out lab.pack",
    f"train lab/cohort.csv -m abmil -o runs/abmil --set {SETTINGS} --set model.inner=16 --seeds 2",
    f"train lab/cohort.csv -m asmil -o runs/asmil --set {SETTINGS} --set model.inner=16",
    "evaluate runs/abmil --resamples 50",
    "compare runs/abmil runs/asmil --out comparison --resamples 50",
    "stability runs/abmil",
    "localize runs/abmil --annotations lab/annotations",
    "affine lab/cohort.csv",
    "predict runs/abmil lab/features --out predicted.csv",
    "heatmap runs/abmil --out maps --workers 1 --slide slide-0000",
    "faithfulness runs/abmil --slides 2",
    "validate runs/abmil lab/cohort.csv --allow-overlap --resamples 50 --out validated",
    "export runs/abmil --out bundle",
    "checklist runs/abmil",
    "index runs",
    "manuscript runs --out paper --only text",
    "datasets",
    "datasets classic",
    "synthetic cohort --slides 16 --width 16",
    "transplants bags --background a/cohort.csv --witnesses-from b/cohort.csv --tiles-min 4 --witnesses 1",
    "auto cohort/cohort.csv --out best --minutes 0.1 --method abmil --set training.epochs=1",
    "classic bags.csv --method abmil --out classic --folds 2 --workers 1 --set training.epochs=1",
    "sweep sweep.yaml --out sweep",
    "paper",
    "claims",
)
NOT_RUN = {
    "view": "serves until it is stopped; tests/viewer and tests/browser run it",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


def printed(line: str, encoding: str, width: int, monkeypatch: pytest.MonkeyPatch) -> tuple[object, str, str]:
    """The exit code and what goes into two pipes of this encoding."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "argv", ["asmil", *line.split()])
    pipes = {name: io.TextIOWrapper(io.BytesIO(), encoding=encoding) for name in ("stdout", "stderr")}
    for name, pipe in pipes.items():
        monkeypatch.setattr(sys, name, pipe)
    with pytest.raises(SystemExit) as ended:
        main()
    texts = []
    for pipe in pipes.values():
        pipe.flush()
        texts.append(pipe.buffer.getvalue().decode(encoding))
    return ended.value.code, *texts


@pytest.mark.heavy
@pytest.mark.parametrize(("encoding", "width"), [("ascii", 60), ("cp1252", 80), ("latin-1", 200)])
def test_what_a_session_prints(encoding, width, lab, monkeypatch, undrawn_figures):
    monkeypatch.chdir(lab)
    shutil.rmtree("bundle", ignore_errors=True)  # a bundle is written once
    Path("sweep.yaml").write_text(SWEEP)
    Path("clam.csv").write_text(CLAM_TABLE)
    Path("slide_mean.py").write_text(ENCODER)
    rows = [f"b{bag},{bag % 2},{bag + tile},{tile}" for bag in range(20) for tile in range(3)]
    Path("bags.csv").write_text("bag,label,x,y\n" + "\n".join(rows) + "\n")
    for folder in ("a", "b"):
        shutil.rmtree(folder, ignore_errors=True)
        write_tissue(Path(folder), f"tissue-{folder}", 0.0)
    wrong = []
    for line in SESSION:
        code, out, err = printed(line, encoding, width, monkeypatch)
        if os.environ.get("ASMIL_SHOW_OUTPUT"):
            print(f"\n$ asmil {line}\n{out}{err}", file=sys.__stderr__)
        # a pipe gets sentences in one piece, but tables, which have wide gaps, must fit and cut no word
        drawn = [one for one in out.splitlines() if "  " in one.strip() and line != "completion bash"]
        faulty = [one for one in drawn if len(one) > width or "..." in one]
        faulty += [mark for mark in ("\x1b", "Traceback", "\\x") if mark in out + err]
        if code or faulty or not (out + err).strip():
            wrong.append((line, code, faulty, err))
    assert not wrong


def test_every_verb_is_in_the_session():
    assert {line.split()[0] for line in SESSION} | NOT_RUN.keys() == set(VERBS)
