"""What a run keeps of its training slides: hashes of their tiles, and the structure of their features.

With them `predict` and `--init` recognize slides that the models were trained on, also under another name, and
features of another encoder. In a run the hashes are kept by slide. A bundle has a few of them in one sorted list,
without names, patients or order: features and images cannot be computed from hashes, and only someone with the
features of a slide can check whether it is among them. It also has hashes of the names; see `seen_names`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asmil.cohort.feature_structure import FeatureStructure, fit_structure, sampled_tiles
from asmil.cohort.manifest import Slide
from asmil.cohort.splits import Splits
from asmil.cohort.tile_hashes import FEWEST_SHARED, Hashes, TileSketch, are_one_slide, tile_sketch, without_background
from asmil.errors import AsmilError
from asmil.runs.checkpoint import load_checkpoint, save_checkpoint
from asmil.runs.seen_names import hashed_names

FILE = "training_slides.safetensors"
"""In the run folder and in a bundle."""
BUNDLED = 16
"""Hashes per slide in a bundle."""
ROLES_SEEN = ("train", "val")
"""Validation slides choose the epoch, so a model has seen them, too."""


@dataclass(frozen=True)
class TrainingSlides:
    """The training and validation slides of a run.

    sketches: by slide; empty in a bundle
    hashes: of some tiles of all slides together, ascending; only in a bundle
    structure: None if there were too few slides to fit one
    names: hashes of the names of slides and patients, ascending; only in a bundle
    """

    sketches: Mapping[str, TileSketch] = field(default_factory=dict)
    hashes: Hashes | None = None
    structure: FeatureStructure | None = None
    names: Hashes | None = None

    def recognize(self, sketch: TileSketch, among: Iterable[str] | None = None) -> str | None:
        """The name of the training slide with these tiles ("" in a bundle); None if there is no such slide.

        among: names of the training slides that count; None: all
        """
        if self.hashes is not None:
            shared = int(np.isin(sketch.hashes, self.hashes, assume_unique=True).sum())
            return "" if shared and shared >= min(FEWEST_SHARED, len(sketch.hashes)) else None
        counted = None if among is None else set(among)
        candidates = {name for value in sketch.hashes.tolist() for name in self._holders.get(value, ())}
        for name in sorted(candidates if counted is None else candidates & counted):
            if are_one_slide(sketch, self.sketches[name]):
                return name
        return None

    @cached_property
    def _holders(self) -> dict[int, list[str]]:
        holders: dict[int, list[str]] = {}
        for name, sketch in self.sketches.items():
            for value in sketch.hashes.tolist():
                holders.setdefault(value, []).append(name)
        return holders

    def for_bundle(self, patients: Mapping[str, str]) -> TrainingSlides:
        """The same with hashes instead of names; patients: of the training and validation slides."""
        parts = [sketch.hashes[:BUNDLED] for sketch in self.sketches.values()]
        hashes = np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)
        return TrainingSlides(hashes=hashes, structure=self.structure, names=hashed_names(patients, hashes))

    def save(self, folder: Path) -> None:
        """Write the file into a run folder or bundle."""
        tensors, state = {}, dict[str, Any]()
        if self.structure is not None:
            tensors["directions"] = torch.from_numpy(self.structure.directions).to(torch.float16)
            state |= {"rms": self.structure.rms, "reference": self.structure.reference}
        if self.hashes is not None:
            tensors["hashes"] = _signed(self.hashes)
            if self.names is not None:
                tensors["names"] = _signed(self.names)
        else:
            sketches = list(self.sketches.values())
            empty = [np.zeros(0, np.uint64)]
            tensors["hashes"] = _signed(np.concatenate([*empty, *(sketch.hashes for sketch in sketches)]))
            tensors["counts"] = torch.tensor([len(sketch.hashes) for sketch in sketches], dtype=torch.int64)
            tensors["complete"] = torch.tensor([sketch.complete for sketch in sketches], dtype=torch.bool)
            state["slides"] = list(self.sketches)
        save_checkpoint(folder / FILE, tensors, state)


def describe_training_slides(slides: Sequence[Slide], splits: Splits) -> TrainingSlides:
    """What a run keeps of the slides that have the role train or val in one of its folds."""
    patients = patients_seen(splits)
    seen = [slide for slide in slides if slide.slide in patients]
    sketches = without_background([tile_sketch(slide.source) for slide in seen], [slide.patient for slide in seen])
    structure = fit_structure(sampled_tiles(seen))
    return TrainingSlides(dict(zip((slide.slide for slide in seen), sketches, strict=True)), None, structure)


def patients_seen(splits: Splits) -> dict[str, str]:
    """The patient of each training and validation slide of all folds, by slide."""
    seen = splits.table[splits.table["role"].isin(ROLES_SEEN)]
    return dict(zip(seen["slide"].astype(str), seen["patient"].astype(str), strict=True))


def read_training_slides(folder: Path) -> TrainingSlides | None:
    """What a run or bundle keeps of its training slides; None for those of earlier versions."""
    path = folder / FILE
    if not path.exists():
        return None
    tensors, state = load_checkpoint(path)
    try:
        structure = None
        if "directions" in tensors:
            directions = tensors["directions"].float().numpy()
            structure = FeatureStructure(directions, float(state["rms"]), float(state["reference"]))
        hashes = tensors["hashes"].numpy().view(np.uint64)
        if "slides" not in state:
            names = tensors["names"].numpy().view(np.uint64) if "names" in tensors else None
            return TrainingSlides({}, hashes, structure, names)
        ends = np.cumsum(tensors["counts"].numpy())[:-1]
        parts = np.split(hashes, ends) if len(tensors["counts"]) else []
        sketches = [
            TileSketch(part, bool(whole)) for part, whole in zip(parts, tensors["complete"].tolist(), strict=True)
        ]
        return TrainingSlides(dict(zip(state["slides"], sketches, strict=True)), None, structure)
    except (KeyError, ValueError, TypeError) as error:
        raise AsmilError(f"{path}: it does not describe training slides ({error}); restore it or train again") from None


def _signed(hashes: Hashes) -> torch.Tensor:
    return torch.from_numpy(hashes.view(np.int64).copy())
