"""Verify the files of a run: read every file, and check its checksums and content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from asmil.cohort.splits import Splits
from asmil.errors import AsmilError
from asmil.runs import checkpoint, operating_point, stored_labels, training_slides
from asmil.runs.attention_file import read_attention
from asmil.runs.covariates import COVARIATES_FILE, TERMS_FILE, read_term
from asmil.runs.description import read_description
from asmil.runs.epochs import LOG, read_epochs
from asmil.runs.layout import CHOICE_FILE, TASK_FILE, RunLayout
from asmil.runs.notes import read_choice, read_kept_epoch
from asmil.runs.predictions import read_predictions
from asmil.runs.task import read_task


def verify_run(run: Path | str) -> Iterator[tuple[Path, AsmilError | None]]:
    """Every file of a run, with its error or None; reports are not read."""
    for path, read in _readers(RunLayout(run)):
        if not path.exists():
            continue
        try:
            read(path)
        except AsmilError as error:
            yield path, error
        else:
            yield path, None


def _readers(layout: RunLayout) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    yield layout.config, lambda path: read_description(layout)
    yield layout.splits, Splits.load
    yield layout.predictions, read_predictions
    yield layout.path / TERMS_FILE, read_predictions
    yield layout.path / stored_labels.FILE, stored_labels.read_labels
    yield layout.path / training_slides.FILE, lambda path: training_slides.read_training_slides(path.parent)
    yield layout.path / operating_point.FILE, lambda path: operating_point.read_operating_point(path.parent)
    trainings = list(layout.trainings())
    for fold in sorted({fold for fold, _, _ in trainings}):
        yield layout.fold(fold) / CHOICE_FILE, lambda path: read_choice(path.parent)
    for _, _, folder in trainings:
        yield folder / LOG, read_epochs
        yield folder / TASK_FILE, read_task
        yield folder / COVARIATES_FILE, lambda path: read_term(path.parent)
        yield folder / TERMS_FILE, read_predictions
        yield folder / "predictions.parquet", read_predictions
        yield folder / "checkpoints" / "best.json", lambda path: read_kept_epoch(path.parent.parent)
        yield folder / "checkpoints" / "best.safetensors", lambda path: _verify_weights(path, "")
        yield folder / "checkpoints" / "last.safetensors", lambda path: _verify_weights(path, "model.")
        yield folder / "attention.h5", lambda path: _verify_attention(path.parent)
        yield folder / "attention.parts", lambda path: _verify_attention(path.parent)


def _verify_weights(path: Path, prefix: str) -> None:
    tensors, _ = checkpoint.load_checkpoint(path)
    checkpoint.refuse_not_finite({name: values for name, values in tensors.items() if name.startswith(prefix)}, path)


def _verify_attention(training: Path) -> None:
    record = read_attention(training)
    if record is None:
        return
    for slide in range(len(record.slides)):
        record.attention(slide)
        record.coords(slide)
        record.scores(slide)
