"""`attention.h5`: the attention of some slides during a training; reading it does not import torch.

    epochs, steps   R: when each recording was made; 0 is before the first step
    attention/<i>   R x N, float16: the weights of slide i divided by their maximum, so that small ones stay accurate
    logits          R x S x C
    embedding       R x S x E, float16: the bag features
    coords/<i>      N x 2, level-0 pixels, if known
    coords_um/<i>   N x 2, microns, if only those are known
    scores/<i>      A x N, float16: the scores of the selected checkpoint, for the first slide of each class

    about           JSON text as bytes: the slides, their targets, roles and sizes, and the classes

All values have checksums, which are verified when they are read. (Files of format 1 have none, and their `about` is an
attribute.) During training the recordings are in `attention.parts/`, in files of the same layout, so that a killed
process loses no recording that belongs to a checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import h5py
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, PositiveInt

from asmil.cohort.hdf5 import DAMAGED_HDF5, dataset, new_hdf5, refuse_altered
from asmil.errors import AsmilError
from asmil.settings.documents import one_line, parse_json

FORMAT = 2
REMEDY = "restore the file or train again"

ATTENTION_FILE = "attention.h5"


@dataclass(frozen=True)
class RecordedSlides:
    """Which slides are recorded, in order, and how often.

    every: "epoch" or "<k> steps"
    targets: class indices
    roles: "train" or "val"
    """

    every: str
    classes: tuple[str, ...]
    slides: tuple[str, ...]
    targets: npt.NDArray[np.int64]
    roles: tuple[str, ...]
    n_tiles: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recording:
    """The outputs of the model for the recorded slides at one point of a training.

    attention: one vector per slide that sums to 1
    logits, embedding: S x C and S x E
    """

    epoch: float
    step: int
    attention: Sequence[npt.NDArray[np.float32]]
    logits: npt.NDArray[np.float32]
    embedding: npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Moments:
    """The recordings without attention.

    epochs, steps: R times of recording; epoch 0.0 is before the first step, 1.0 after the first epoch
    logits: R x S x C
    embedding: R x S x E, the bag features
    """

    epochs: npt.NDArray[np.float64]
    steps: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    embedding: npt.NDArray[np.float32]


@dataclass(frozen=True)
class AttentionRecord(_Moments, RecordedSlides):
    """The recordings of a training; attention is read from disk on access."""

    path: Path
    files: tuple[Path, ...]

    def attention(self, slide: int, recordings: Sequence[int] | None = None) -> npt.NDArray[np.float64]:
        """The weights of a slide's tiles, R x N (or of some recordings only); every row sums to 1."""
        wanted = np.arange(len(self.epochs)) if recordings is None else np.asarray(recordings)
        weights = np.empty((len(wanted), int(self.n_tiles[slide])))
        start = 0
        for file in self.files:
            with _opened(file) as content:
                stored = dataset(content, f"attention/{slide}")
                if len(stored) != len(content["steps"]):
                    what = f"the attention of {self.slides[slide]} has {len(stored)} recordings"
                    raise AsmilError(f"{file}: {what} instead of {len(content['steps'])}; {REMEDY}")
                here = np.flatnonzero((wanted >= start) & (wanted < start + len(stored)))
                if recordings is None:
                    weights[here] = stored[:]
                else:
                    for row in here:
                        weights[row] = stored[int(wanted[row]) - start]
                start += len(stored)
        total = weights.sum(axis=1, keepdims=True)
        fits = (weights >= 0) & (weights <= np.finfo(np.float16).max)  # they are stored as float16
        if not (np.isfinite(total).all() and (total > 0).all() and fits.all()):
            raise AsmilError(f"{self.path}: the attention of {self.slides[slide]} has invalid values; {REMEDY}")
        weights /= total
        return weights

    def coords(self, slide: int) -> npt.NDArray[np.int64] | None:
        """The coordinates of a slide's tiles, N x 2 in level-0 pixels, or None."""
        coords = self._first(f"coords/{slide}")
        return None if coords is None else coords.astype(np.int64)

    def scores(self, slide: int) -> npt.NDArray[np.float32] | None:
        """The scores of the selected checkpoint, A x N; None during training and for all but one slide per class."""
        scores = self._first(f"scores/{slide}")
        return None if scores is None else scores.astype(np.float32)

    def _first(self, name: str) -> npt.NDArray[Any] | None:
        for file in self.files:
            with _opened(file) as content:
                if name in content:
                    return np.asarray(dataset(content, name))
        return None


class AttentionWriter:
    """Writes the recordings of one training in parts, and joins the parts at the end."""

    def __init__(self, training: Path, slides: RecordedSlides, coords: Mapping[int, npt.NDArray[Any]]) -> None:
        self.training = training
        self.slides = slides
        self.coords = coords
        self._waiting: list[Recording] = []
        self._written = {int(step) for file in _files(training) for step in _read_times(file)[1]}

    def has(self, step: int) -> bool:
        """Whether this step was recorded, possibly before an interruption."""
        return step in self._written

    def add(self, recording: Recording) -> None:
        """Add a recording; the next `flush` writes it to disk."""
        self._waiting.append(recording)
        self._written.add(recording.step)

    def flush(self) -> None:
        """Write pending recordings; call this before every checkpoint."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        first = not _part_files(self.training)
        _write(
            _parts_folder(self.training) / f"part-{waiting[0].step:09d}.h5",
            self.slides,
            _Moments(
                np.array([recording.epoch for recording in waiting]),
                np.array([recording.step for recording in waiting]),
                np.stack([recording.logits for recording in waiting]),
                np.stack([recording.embedding for recording in waiting]),
            ),
            lambda slide: np.stack([recording.attention[slide] for recording in waiting]),
            self.coords if first else {},
        )

    def finish(self, scores: Mapping[int, npt.NDArray[np.float32]]) -> None:
        """Join the parts into `attention.h5`, with the scores of the selected checkpoint for some slides."""
        self.flush()
        record = read_attention(self.training)
        if record is None or not _part_files(self.training):
            return
        _write(self.training / ATTENTION_FILE, self.slides, record, record.attention, self.coords, scores)
        shutil.rmtree(_parts_folder(self.training))


def read_attention(training: Path) -> AttentionRecord | None:
    """The recordings of a training (`RUN/fold-0/seed-0`), even while it runs; None if there are none."""
    files = tuple(_files(training))
    if not files:
        return None
    about = _read_about(files[0])
    parts = [vars(_read_moments(file, len(about.slides))) for file in files]
    return AttentionRecord(
        every=about.every,
        classes=about.classes,
        slides=about.slides,
        targets=np.array(about.targets, dtype=np.int64),
        roles=about.roles,
        n_tiles=np.array(about.n_tiles, dtype=np.int64),
        path=files[0] if len(files) == 1 else _parts_folder(training),
        files=files,
        **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
    )


def _parts_folder(training: Path) -> Path:
    return training / "attention.parts"


def _part_files(training: Path) -> list[Path]:
    return sorted(_parts_folder(training).glob("part-*.h5"))


def _files(training: Path) -> list[Path]:
    """All files with recordings, in order of time; parts that are already in the joined file are left out."""
    whole = training / ATTENTION_FILE
    if not whole.is_file():
        return _part_files(training)
    last = _read_times(whole)[1].max()
    return [whole, *(part for part in _part_files(training) if _read_times(part)[1].min() > last)]


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open the file for reading; damage raises an error that names the file."""
    try:
        refuse_altered(path)
        with h5py.File(path, "r") as file:
            yield file
    except AsmilError:
        raise
    except DAMAGED_HDF5 as error:
        raise AsmilError(f"{path}: the recorded attention cannot be read ({one_line(error)}); {REMEDY}") from None


def _read_times(path: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    with _opened(path) as file:
        epochs = np.asarray(dataset(file, "epochs"), dtype=np.float64)
        steps = np.asarray(dataset(file, "steps"), dtype=np.int64)
    in_order = epochs.ndim == 1 and len(epochs) > 0 and np.isfinite(epochs).all() and (np.diff(epochs) >= 0).all()
    if not in_order or steps.shape != epochs.shape or (np.diff(steps) <= 0).any():
        raise AsmilError(f"{path}: the recordings are not in order of time; {REMEDY}")
    return epochs, steps


def _read_moments(path: Path, n_slides: int) -> _Moments:
    epochs, steps = _read_times(path)
    with _opened(path) as file:
        logits, embedding = (np.asarray(dataset(file, name), dtype=np.float32) for name in ("logits", "embedding"))
    for name, values in (("logits", logits), ("embedding", embedding)):
        if values.ndim != 3 or values.shape[:2] != (len(epochs), n_slides):
            raise AsmilError(f"{path}: {name} do not match {len(epochs)} recordings of {n_slides} slides; {REMEDY}")
        if not np.isfinite(values).all():
            raise AsmilError(f"{path}: some values of {name} are not finite; {REMEDY}")
    return _Moments(epochs, steps, logits, embedding)


class _About(BaseModel):
    """The content of `about`."""

    format: Annotated[int, Field(ge=1, le=FORMAT)]
    every: str
    classes: tuple[str, ...]
    slides: tuple[str, ...]
    targets: tuple[Annotated[int, Field(ge=0)], ...]
    roles: tuple[Literal["train", "val"], ...]
    n_tiles: tuple[PositiveInt, ...]


def _read_about(path: Path) -> _About:
    with _opened(path) as file:
        text = dataset(file, "about")[()].tobytes() if "about" in file else file.attrs["about"]
        n_tiles = tuple(dataset(file, f"attention/{slide}").shape[-1] for slide in range(len(file["attention"])))
    about = parse_json(text, _About, str(path), REMEDY)
    alike = len(about.slides) == len(about.targets) == len(about.roles)
    if not alike or about.n_tiles != n_tiles or max(about.targets, default=0) >= max(1, len(about.classes)):
        raise AsmilError(f"{path}: slides, targets, roles and sizes are inconsistent; {REMEDY}")
    return about


def _write(
    path: Path,
    slides: RecordedSlides,
    moments: _Moments,
    attention: Callable[[int], npt.NDArray[np.floating]],
    coords: Mapping[int, npt.NDArray[Any]],
    scores: Mapping[int, npt.NDArray[np.float32]] | None = None,
) -> None:
    about = {"format": FORMAT, **{item.name: getattr(slides, item.name) for item in fields(RecordedSlides)}}
    about |= {"targets": slides.targets.tolist(), "n_tiles": slides.n_tiles.tolist()}
    with new_hdf5(path) as file:
        _add(file, "about", np.frombuffer(json.dumps(about).encode(), dtype=np.uint8))
        _add(file, "epochs", moments.epochs)
        _add(file, "steps", moments.steps)
        _add(file, "logits", moments.logits)
        _add_halves(file, "embedding", moments.embedding)
        for slide in range(len(slides.slides)):
            weights = attention(slide)
            _add_halves(file, f"attention/{slide}", weights / weights.max(axis=1, keepdims=True))
        for slide, corners in coords.items():
            _add(file, f"{'coords' if corners.dtype.kind == 'i' else 'coords_um'}/{slide}", corners)
        for slide, rows in (scores or {}).items():
            _add_halves(file, f"scores/{slide}", rows)


def _add_halves(file: h5py.File, name: str, values: npt.NDArray[np.floating]) -> None:
    # a chunk contains several recordings of the same tiles, which are similar and compress well
    chunks = tuple(min(size, most) for size, most in zip(values.shape, (32, 4096, 4096), strict=False))
    largest = np.finfo(np.float16).max
    _add(file, name, values.clip(-largest, largest).astype(np.float16), chunks)


def _add(file: h5py.File, name: str, values: npt.NDArray[Any], chunks: tuple[int, ...] | bool = True) -> None:
    """Store values compressed, with one checksum per chunk."""
    file.create_dataset(
        name, data=values, chunks=chunks, compression="gzip", compression_opts=1, shuffle=True, fletcher32=True
    )
