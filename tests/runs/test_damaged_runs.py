"""Files of a run with missing or altered bytes: one sentence that names the file, or the same numbers; never more."""

import json
import shutil

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from asmil import AsmilError
from asmil.evaluation.stability import read_stability
from asmil.runs import checkpoint
from asmil.runs.attention_file import read_attention
from asmil.runs.config import resolve
from asmil.runs.epochs import read_epochs, read_training
from asmil.runs.layout import RunLayout
from asmil.runs.operating_point import OperatingPoint, read_operating_point
from asmil.runs.prediction import open_models
from asmil.runs.run import Run, read_run
from asmil.runs.stored_labels import label_changes
from asmil.runs.task import read_task
from asmil.runs.verification import verify_run
from asmil.training.run import train_run

ALIASES_OF_ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
FILES = (
    "config.yaml",
    "splits.csv",
    "labels.csv",
    "training_slides.safetensors",
    "predictions.parquet",
    "operating_point.json",
    "fold-0/seed-0/metrics.jsonl",
    "fold-0/seed-0/task.json",
    "fold-0/seed-0/predictions.parquet",
    "fold-0/seed-0/checkpoints/best.json",
    "fold-0/seed-0/checkpoints/best.safetensors",
    "fold-0/seed-0/checkpoints/last.safetensors",
    "fold-0/seed-0/attention.h5",
)
CONFIG = resolve("abmil", changes={"training": {"epochs": 2}, "record": {"attention": 1}})


@pytest.fixture(scope="module")
def run(small_cohort, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # the last checkpoint keeps its tensors, to be damaged
        patch.setattr("asmil.training.run_parts.drop_training_state", lambda training: None)
        folder = train_run(small_cohort, tmp_path_factory.mktemp("damaged") / "run", CONFIG)
    OperatingPoint("youden", "tumor", {(0, 0): 0.4}).save(folder.path)
    return folder.path


@pytest.fixture
def copied(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def refusal(read, path):
    """What is said against a file; nothing where it is read."""
    try:
        read(path)
    except AsmilError as error:
        return str(error)
    return ""


def use(run):
    """Everything that reads a run; each may refuse it."""
    for read in (
        read_run,
        lambda path: read_training(path / "fold-0" / "seed-0", 0, 0),
        read_stability,
        open_models,
        lambda path: label_changes(Run(path)),
    ):
        assert "\n" not in refusal(read, run)
    return [path for path, error in verify_run(run) if error is not None]


def test_a_whole_run_is_found_whole(run, asmil_here):
    found = list(verify_run(run))
    assert {str(path.relative_to(run)) for path, _ in found} == set(FILES)
    assert use(run) == []
    done = asmil_here("check", run)
    assert done.returncode == 0, done.stderr
    assert str(len(FILES)) in done.stdout


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_never_end_in_another_error(copied, name):
    """Bytes are cut off, set to zero, replaced and inserted, where a draw says that is the same every time."""
    path, draw = copied / name, np.random.default_rng(7)
    content = path.read_bytes()
    for kind in ("cut", "zero", "flip", "insert"):
        damaged = bytearray(content)
        place = int(draw.integers(len(content)))
        if kind == "cut":
            damaged = damaged[:place]
        elif kind == "zero":
            damaged[place : place + 64] = bytes(len(damaged[place : place + 64]))
        elif kind == "flip":
            damaged[place] ^= 1 << int(draw.integers(8))
        else:
            damaged[place:place] = draw.bytes(5)
        path.write_bytes(damaged)
        use(copied)


@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors"])
def test_a_flipped_bit_of_a_checkpoint_is_noticed(copied, name, asmil_here):
    path, draw = copied / "fold-0" / "seed-0" / "checkpoints" / name, np.random.default_rng(0)
    content = path.read_bytes()
    for place in draw.integers(8, len(content), size=40):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        assert str(path) in refusal(checkpoint.load_checkpoint, path)
    damaged = bytearray(content)
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    done = asmil_here("check", copied)
    assert done.returncode == 1
    assert str(path) in done.stderr


def test_a_flipped_bit_of_recorded_attention_is_noticed(copied):
    path, draw = copied / "fold-0" / "seed-0" / "attention.h5", np.random.default_rng(0)
    content = path.read_bytes()
    with h5py.File(path) as file:
        places = []
        file.visititems(lambda _, node: places.append(node) if isinstance(node, h5py.Dataset) else None)
        chunks = [node.id.get_chunk_info(0) for node in places]
    for chunk in chunks:
        damaged = bytearray(content)
        damaged[chunk.byte_offset + int(draw.integers(chunk.size))] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        assert use(copied) == [path]


@pytest.mark.parametrize("change", ["fewer recordings", "another file"])
def test_recorded_attention_that_is_not_all_in_its_file_is_refused(copied, change):
    file = copied / "fold-0/seed-0/attention.h5"
    with h5py.File(file, "r+") as content:
        values = content["attention/0"][:]
        del content["attention/0"]
        if change == "fewer recordings":
            content["attention/0"] = values[:-1]
        else:
            (copied / "elsewhere").write_bytes(values.tobytes())
            content.create_dataset(
                "attention/0", values.shape, values.dtype, external=[(str(copied / "elsewhere"), 0, values.nbytes)]
            )
    with pytest.raises(AsmilError, match=r"attention\.h5"):
        read_attention(file.parent).attention(0)


def test_probabilities_beyond_one_name_the_slide(copied):
    file = copied / "predictions.parquet"
    table = pd.read_parquet(file)
    table.loc[0, "prob_tumor"] = 7.0
    table.to_parquet(file)
    with pytest.raises(AsmilError, match=rf"predictions\.parquet.*{table['slide'][0]}"):
        read_run(copied)


def test_attention_beyond_its_stored_type_is_refused(copied):
    file = copied / "fold-0" / "seed-0" / "attention.h5"
    with h5py.File(file, "r+") as content:
        values = content["attention/0"][()].astype(np.float64)
        del content["attention/0"]
        values[0, 0] = 1e200
        content["attention/0"] = values
    with pytest.raises(AsmilError, match=r"attention\.h5"):
        read_attention(file.parent).attention(0)


def test_dropping_the_state_of_a_training_is_completed_after_a_kill(copied):
    training = copied / "fold-0" / "seed-0"
    state = training / "checkpoints" / "last.json"
    before = state.read_text()
    checkpoint.drop_training_state(training)
    finished = state.read_text()
    assert finished != before
    state.write_text(before)  # as a process leaves it that is killed between the two files
    checkpoint.drop_training_state(training)
    assert state.read_text() == finished


def test_files_of_earlier_versions_are_read(copied):
    """Checkpoints without a digest, attention of format 1 without checksums."""
    training = copied / "fold-0" / "seed-0"
    path = training / "checkpoints" / "best.safetensors"
    tensors, state = checkpoint.load_checkpoint(path)
    from safetensors.torch import save_file

    save_file(tensors, path, metadata={"state": json.dumps({"method": state["method"], "epoch": 1, "score": None})})
    before = read_attention(training)
    with h5py.File(training / "attention.h5") as new, h5py.File(training / "old.h5", "w") as old:
        about = json.loads(new["about"][()].tobytes())
        old.attrs["about"] = json.dumps({**about, "format": 1})
        for name in ("epochs", "steps", "logits", "embedding", "attention", "coords", "scores"):
            new.copy(name, old)
    (training / "old.h5").replace(training / "attention.h5")
    assert use(copied) == []
    after = read_attention(training)
    assert after.slides == before.slides
    np.testing.assert_array_equal(after.attention(0), before.attention(0))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.yaml", lambda text: text.replace("width: 24", "width: wide")),
        ("config.yaml", lambda text: text.replace("width: 24", "width: .nan")),
        ("config.yaml", lambda text: ALIASES_OF_ALIASES + text),
        ("config.yaml", lambda text: "date: 2001-99-99\n" + text),
        ("operating_point.json", lambda text: text.replace('"tumor"', '"other"')),
        ("operating_point.json", lambda text: text.replace("0.4", "NaN")),
        ("operating_point.json", lambda text: json.dumps({**json.loads(text), "trainings": []})),
        ("fold-0/seed-0/task.json", lambda text: text.replace('"tumor"', '"other"')),
        ("fold-0/seed-0/task.json", lambda text: "[" * 100_000),
    ],
)
def test_content_that_does_not_fit_is_refused(copied, name, change):
    path = copied / name
    path.write_text(change(path.read_text()))
    with pytest.raises(AsmilError) as raised:
        open_models(copied)
    assert path.name in str(raised.value)


@pytest.mark.parametrize(
    "task",
    [
        {"kind": "regression", "mean": 0.0, "sd": float("nan"), "loss": "squared"},
        {"kind": "regression", "mean": "a", "sd": 1.0, "loss": "squared"},
        {"kind": "survival", "loss": "hazard", "alpha": 0.4, "risk": "survival_sum", "edges": [0, float("inf")]},
        {
            "kind": "survival",
            "loss": "cox",
            "alpha": 0.4,
            "risk": "log_risk",
            "edges": None,
            "baseline": {"times": [1]},
        },
        {"kind": ["classification"]},
        {},
    ],
)
def test_tasks_that_no_training_wrote_are_refused(tmp_path, task):
    path = tmp_path / "task.json"
    path.write_text(json.dumps(task))
    with pytest.raises(AsmilError, match=r"task\.json"):
        read_task(path)


def test_a_damaged_line_of_the_epochs_is_named_and_an_unfinished_last_one_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"epoch": 1, "train": {"loss": 1.0}}\n{"epoch": 2, "tra')
    assert [record["epoch"] for record in read_epochs(path)] == [1]
    for line in ('{"epoch": 2, "tra', "[]", '{"epoch": "two"}', '{"epoch": 1}', '{"epoch": 2, "val": 3}', "\x00"):
        path.write_text('{"epoch": 1}\n' + line + "\n")
        with pytest.raises(AsmilError, match=r"metrics\.jsonl, line 2"):
            read_epochs(path)


def test_folders_with_other_names_are_no_trainings(tmp_path):
    for name in ("fold-0/seed-0", "fold-a/seed-0", "fold-0/seed-", "fold-1/seed-1 (copy)"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "fold-0" / "seed-3").touch()
    assert [(fold, seed) for fold, seed, _ in RunLayout(tmp_path).trainings()] == [(0, 0)]


@pytest.mark.parametrize("change", ["position", "generator", "optimizer", "best"])
def test_a_state_that_is_not_that_of_the_training_is_refused(copied, small_cohort, change):
    training = copied / "fold-0" / "seed-0"
    path = training / "checkpoints" / "last.safetensors"
    tensors, state = checkpoint.load_checkpoint(path)
    if change == "position":
        state["position"] = 10_000
    elif change == "generator":
        tensors["generator"] = tensors["generator"][:3]
    elif change == "optimizer":
        tensors["optimizer.99.exp_avg"] = torch.zeros(1)
    else:
        state["best"] = "none"
    checkpoint.save_checkpoint(path, tensors, state)
    (training / "predictions.parquet").unlink()
    with pytest.raises(AsmilError, match=r"last\.safetensors"):
        train_run(small_cohort, copied, CONFIG)


def test_the_operating_point_of_a_run_without_one_is_none(tmp_path):
    assert read_operating_point(tmp_path) is None


def test_embeddings_that_are_not_finite_are_refused(copied):
    path = copied / "fold-0" / "seed-0" / "attention.h5"
    with h5py.File(path, "r+") as file:
        values = file["embedding"][()]
        values[-1, 0, 0] = np.inf
        file["embedding"][...] = values
    with path.open("r+b") as file:  # without the checksum, as files of older versions
        file.truncate(path.stat().st_size - 16)
    assert "attention.h5" in refusal(read_attention, copied / "fold-0" / "seed-0")


def test_a_number_beyond_all_bounds_names_its_setting():
    with pytest.raises(AsmilError, match="attention"):
        resolve("abmil", changes={"model": {"attention": 10**20}})
