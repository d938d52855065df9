"""Recording attention while training: which slides, when, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel
from asmil.models.inference import infer
from asmil.training.attention_file import AttentionWriter, RecordedSlides, Recording
from asmil.training.config import RecordConfig
from asmil.training.labeled_bags import LabeledBags


class AttentionRecorder:
    """Records the attention of chosen slides in one training, in eval mode.

    The slides are the first of each class in the order of the cohort, the same for every seed. They come from the
    parts that the training may look at, never from test slides.
    """

    def __init__(
        self,
        settings: RecordConfig,
        folder: Path,
        classes: Sequence[str],
        train: LabeledBags,
        val: LabeledBags | None,
        device: torch.device,
    ) -> None:
        self.settings = settings
        self.device = device
        self._parts = [
            (role, labeled, choose_slides(labeled.targets, settings.attention))
            for role, labeled in (("train", train), ("val", val))
            if labeled is not None and settings.role in (role, "both")
        ]
        targets = [int(labeled.targets[place]) for _, labeled, places in self._parts for place in places]
        names, sizes, coords = [], [], {}
        for i, bag in enumerate(self._bags()):
            names.append(bag.id)
            sizes.append(len(bag))
            if bag.coords is not None:
                coords[i] = bag.coords.numpy()
        slides = RecordedSlides(
            every="epoch" if settings.every == "epoch" else f"{settings.every} steps",
            classes=tuple(classes),
            slides=tuple(names),
            targets=np.array(targets, dtype=np.int64),
            roles=tuple(role for role, _, places in self._parts for _ in places),
            n_tiles=np.array(sizes, dtype=np.int64),
        )
        self.writer = AttentionWriter(folder, slides, coords)
        self._scored = [targets.index(target) for target in sorted(set(targets))]

    def __bool__(self) -> bool:
        return any(places for _, _, places in self._parts)

    def is_due(self, step: int, epoch_ended: bool) -> bool:
        """Whether this moment is to be recorded: the start, the end of an epoch, or every so many steps."""
        every = self.settings.every
        due = epoch_ended if every == "epoch" else step % int(every) == 0
        return (due or step == 0) and not self.writer.has(step)

    def record(self, model: MILModel, epoch: float, step: int) -> None:
        """Record what the model says now; it is left in eval mode."""
        attention, logits, embedding = [], [], []
        for bag in self._bags():
            output = infer(model, bag, self.device)
            attention.append(model.heatmap(output).float().numpy())
            logits.append(output.logits.float().numpy())
            embedding.append(output.embedding.float().numpy())
        self.writer.add(Recording(epoch, step, attention, np.stack(logits), np.stack(embedding)))

    def finish(self, model: MILModel) -> None:
        """Close the record with the scores of the kept model, for the first slide of each class."""
        scores: dict[int, npt.NDArray[np.float32]] = {}
        for slide, bag in enumerate(self._bags()):
            if slide in self._scored:
                found = infer(model, bag, self.device).scores
                assert found is not None, "only methods with scores are recorded"
                scores[slide] = found.float().numpy()
        self.writer.finish(scores)

    def _bags(self) -> Iterator[Bag]:
        for _, labeled, places in self._parts:
            yield from labeled.bags.stream(places)


def choose_slides(targets: npt.NDArray[np.int64], wanted: str | int) -> list[int]:
    """The places of the slides to record: all of them, none, or the first so many of each class."""
    if wanted == "none":
        return []
    if wanted == "all":
        return list(range(len(targets)))
    chosen = [place for target in np.unique(targets) for place in np.flatnonzero(targets == target)[: int(wanted)]]
    return sorted(int(place) for place in chosen)
