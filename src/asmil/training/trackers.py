"""Experiment trackers: send the metrics of every epoch to TensorBoard, Weights & Biases or MLflow.

A tracker runs in a separate thread, so that a slow server never delays a step. If it fails, it is dropped with a
warning and the training continues. `metrics.jsonl` always contains all metrics.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from asmil.errors import AsmilError, AsmilWarning
from asmil.files import write_json
from asmil.settings.documents import read_json

PROJECT = "asmil"
ID_FILE = "tracking.json"
CLOSING_SECONDS = 30.0
"""How long a training waits for its trackers at the end, in seconds."""


class Tracker(Protocol):
    """A destination for the metrics of a training."""

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log the metrics of an epoch, by names such as `train/loss` and `val/macro_auc`."""
        ...

    def close(self) -> None:
        """The training has ended or was interrupted."""
        ...


class TensorBoard:
    """Event files in the folder `tensorboard` of the training."""

    def __init__(self, folder: Path, epochs_done: int, settings: Mapping[str, Any]) -> None:
        del settings
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=epochs_done + 1)

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """One scalar per metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)

    def close(self) -> None:
        """Write pending metrics."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; stored in the folder `wandb` without an API key or with WANDB_MODE=offline."""

    def __init__(self, folder: Path, epochs_done: int, settings: Mapping[str, Any]) -> None:
        del epochs_done
        import wandb

        unknown = "WANDB_MODE" not in os.environ and wandb.api.api_key is None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=_name(folder),
            id=_identity(folder),
            resume="allow",
            reinit="create_new",
            dir=str(folder),
            config=dict(settings),
            mode="offline" if unknown else None,  # without a key, wandb would ask for one and wait
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """One row, with the epoch as its step."""
        self._run.log(dict(values), step=epoch)

    def close(self) -> None:
        """Upload or write pending metrics."""
        self._run.finish()


class MLflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or in the folder `mlruns` of the training."""

    def __init__(self, folder: Path, epochs_done: int, settings: Mapping[str, Any]) -> None:
        del epochs_done
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            # MLflow rejects folders unless they are explicitly allowed
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            address = (folder / "mlruns").absolute().as_uri()
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(address)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        where = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        identity = _identity(folder)
        runs = self._client.search_runs([where], f"tags.asmil_training = '{identity}'", max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, "RUNNING")
            return
        run = self._client.create_run(where, tags={"asmil_training": identity}, run_name=_name(folder))
        self._run = run.info.run_id
        params = [Param(key, str(value)[:500]) for key, value in settings.items()]
        for first in range(0, len(params), 100):
            self._client.log_batch(self._run, params=params[first : first + 100])

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log each metric, with the epoch as its step."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=epoch)

    def close(self) -> None:
        """Mark the run as finished; a resumed training reopens it."""
        self._client.set_terminated(self._run)


_Open = Callable[[Path, int, Mapping[str, Any]], Tracker]
TRACKERS: dict[str, tuple[_Open, str, str]] = {
    "tensorboard": (TensorBoard, "tensorboard", "tracking"),
    "wandb": (WeightsAndBiases, "wandb", "wandb"),
    "mlflow": (MLflow, "mlflow", "mlflow"),
}
"""By the name in the setting `training.track`: the tracker, the package it needs, and the extra with this package."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise if the package of a tracker is not installed."""
    for name in names:
        _, package, extra = TRACKERS[name]
        if importlib.util.find_spec(package) is None:
            raise AsmilError(
                f"training.track = {name}: the package {package} is not installed; pip install 'asmil[{extra}]', or "
                "leave this tracker out"
            )


class TrackerThread:
    """A tracker that is opened, fed and closed in a thread; a failure causes one warning."""

    def __init__(self, name: str, folder: Path, epochs_done: int, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._failure: Exception | None = None
        self._warned = False
        self._work: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue()
        make = TRACKERS[name][0]
        self._thread = threading.Thread(
            target=self._feed, args=(lambda: make(folder, epochs_done, settings),), name=f"track-{name}", daemon=True
        )
        self._thread.start()

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Queue the metrics of an epoch; returns immediately."""
        self._warn()
        self._work.put((epoch, values))

    def close(self) -> None:
        """Wait a limited time for the tracker to finish."""
        self._work.put(None)
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            self._failure = self._failure or TimeoutError(f"no answer for {CLOSING_SECONDS:g} s")
        self._warn()

    def _feed(self, make: Callable[[], Tracker]) -> None:
        try:
            tracker = make()
            try:
                while (item := self._work.get()) is not None:
                    tracker.log(*item)
            finally:
                tracker.close()
        except Exception as error:  # noqa: BLE001 - the training continues whatever a tracker client raises
            self._failure = error

    def _warn(self) -> None:
        if self._failure is not None and not self._warned:
            self._warned = True
            reason = " ".join(str(self._failure).split())[:300] or type(self._failure).__name__
            warnings.warn(
                f"{self._name} no longer receives the metrics of this training ({reason}); the training continues, "
                "and all metrics are in metrics.jsonl",
                AsmilWarning,
                stacklevel=2,
            )


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an epoch's record by name, without undefined values.

    >>> metrics_of({"epoch": 3, "lr": 0.1, "train": {"loss": 0.5}, "val": {"loss": 0.6, "macro_auc": None}})
    {'train/loss': 0.5, 'val/loss': 0.6, 'lr': 0.1}
    """
    parts = {f"{part}/{name}": value for part in ("train", "val") for name, value in (record.get(part) or {}).items()}
    values = {**parts, "lr": record.get("lr"), "zeta": record.get("zeta")}
    return {name: float(value) for name, value in values.items() if value is not None}


def _identity(folder: Path) -> str:
    """A unique name of the training, which stays the same when it resumes."""
    file = folder / ID_FILE
    with _IDENTITY:
        if file.exists():
            return str(read_json(file, dict[str, str], "remove it")["id"])
        identity = uuid.uuid4().hex
        write_json(file, {"id": identity})
        return identity


_IDENTITY = threading.Lock()


def _name(folder: Path) -> str:
    """`run/fold-0/seed-0`."""
    return "/".join(folder.absolute().parts[-3:])
