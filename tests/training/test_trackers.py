"""Trackers get what `metrics.jsonl` holds, and never stop a training."""

import json
import sys
import time

import pytest

from asmil.errors import AsmilError, AsmilWarning
from asmil.training import trackers
from asmil.training.epoch_log import EpochLog
from asmil.training.trackers import metrics_of, require_trackers
from patience import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("error::asmil.errors.AsmilWarning")

RECORDS = [
    {"epoch": n, "lr": 0.1, "train": {"loss": 1 / n}, "val": {"loss": 2 / n, "macro_auc": None}, "seconds": 0.1}
    for n in (1, 2, 3)
]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    for name in ("WANDB_PROJECT", "WANDB_API_KEY", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(trackers, "CLOSING_SECONDS", PATIENCE_S)


def log(folder, name, records, epochs_done=0):
    training = EpochLog(folder, epochs_done, [name], {"training.lr": 0.1})
    for record in records:
        training.add(record)
    training.close()
    assert [json.loads(line)["epoch"] for line in training.path.read_text().splitlines()] == [
        record["epoch"] for record in RECORDS[: records[-1]["epoch"]]
    ]


def test_undefined_metrics_are_left_out():
    assert metrics_of(RECORDS[1]) == {"train/loss": 0.5, "val/loss": 1.0, "lr": 0.1}


def test_tensorboard_shows_every_epoch(tmp_path):
    pytest.importorskip("tensorboard", reason="an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log(tmp_path, "tensorboard", RECORDS[:2])
    log(tmp_path, "tensorboard", RECORDS[2:], epochs_done=2)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("train/loss")] == [
        (1, 1.0),
        (2, 0.5),
        (3, pytest.approx(1 / 3)),
    ]


def test_mlflow_keeps_one_run_for_a_resumed_training(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="an extra")
    log(tmp_path, "mlflow", RECORDS[:2])
    log(tmp_path, "mlflow", RECORDS[2:], epochs_done=2)
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("asmil")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "val/loss")
    assert sorted((one.step, one.value) for one in history) == [(1, 2.0), (2, 1.0), (3, 2 / 3)]
    assert run.data.params["training.lr"] == "0.1"
    assert run.info.status == "FINISHED"


def test_wandb_writes_offline(tmp_path):
    pytest.importorskip("wandb", reason="an extra")
    log(tmp_path, "wandb", RECORDS)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    # wandb's own process may write after it said that it is done
    content, deadline = file.read_bytes(), time.monotonic() + PATIENCE_S
    while b"train/loss" not in content and time.monotonic() < deadline:
        time.sleep(0.1)
        content = file.read_bytes()
    identity = json.loads((tmp_path / "tracking.json").read_text())["id"]
    assert identity in file.name
    assert b"train/loss" in content
    assert b"macro_auc" not in content


def test_a_server_that_cannot_be_reached_stops_nothing(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="an extra")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.warns(AsmilWarning, match="mlflow"):
        log(tmp_path, "mlflow", RECORDS)


def test_a_server_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    import threading

    answered = threading.Event()

    class Silent:
        def __init__(self, *_):
            answered.wait()

    monkeypatch.setitem(trackers.TRACKERS, "mlflow", (Silent, "mlflow", "mlflow"))
    monkeypatch.setattr(trackers, "CLOSING_SECONDS", 0.05)
    with pytest.warns(AsmilWarning, match="mlflow"):
        log(tmp_path, "mlflow", RECORDS)
    answered.set()


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AsmilError, match=r"asmil\[wandb\]"):
        require_trackers(["wandb"])
    require_trackers([])
