"""Record attention during training: which slides, when, and what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output
from asmil.models.inference import infer
from asmil.runs.attention_file import AttentionWriter, RecordedSlides, Recording
from asmil.runs.config import RecordConfig
from asmil.training.labeled_bags import BagSource, LabeledBags


class AttentionRecorder:
    """Records the attention of chosen slides in one training, in eval mode.

    The slides are the first of each class in the order of the cohort, the same for every seed. They come from the
    training or validation set, never from the test set.

    effective_share: effective share of tiles, mean over the slides of the last recording; None before the first
    """

    def __init__(
        self,
        settings: RecordConfig,
        folder: Path,
        train: LabeledBags,
        val: LabeledBags | None,
        device: torch.device,
    ) -> None:
        self.settings = settings
        self.device = device
        self._chosen = [
            _Chosen(role, labeled, index)
            for role, labeled in (("train", train), ("val", val))
            if labeled is not None and settings.role in (role, "both")
            for index in choose_slides(labeled.groups, settings.attention)
        ]
        targets = [slide.target for slide in self._chosen]
        names, sizes, coords = [], [], {}
        for i, bag in enumerate(self._bags()):
            names.append(bag.id)
            sizes.append(len(bag))
            if bag.places is not None:
                coords[i] = bag.places.numpy()
        slides = RecordedSlides(
            every="epoch" if settings.every == "epoch" else f"{settings.every} steps",
            classes=train.group_names,
            slides=tuple(names),
            targets=np.array(targets, dtype=np.int64),
            roles=tuple(slide.role for slide in self._chosen),
            n_tiles=np.array(sizes, dtype=np.int64),
        )
        self.writer = AttentionWriter(folder, slides, coords)
        self._scored = [targets.index(target) for target in sorted(set(targets))]
        self._validated = {name: i for i, name in enumerate(names) if self._chosen[i].role == "val"}
        self._noted: dict[int, Said] = {}
        self.effective_share: float | None = None

    def __bool__(self) -> bool:
        return bool(self._chosen)

    @property
    def bags(self) -> list[tuple[BagSource, int]]:
        """The recorded bags, each as a source and an index."""
        return [(recorded.labeled.bags, recorded.index) for recorded in self._chosen]

    def is_due(self, step: int, epoch_ended: bool) -> bool:
        """Whether to record now: at the start, at the end of an epoch, or every given number of steps."""
        every = self.settings.every
        due = epoch_ended if every == "epoch" else step % int(every) == 0
        return (due or step == 0) and not self.writer.has(step)

    def note(self, model: MILModel, bag: Bag, output: Output) -> None:
        """Keep the output of a validation pass for the next recording, which uses the same weights."""
        slide = self._validated.get(bag.id)
        if slide is not None:
            self._noted[slide] = Said.of(model, output)

    def record(self, model: MILModel, epoch: float, step: int, describer: Describes | None = None) -> None:
        """Record the current outputs of the model (by `describer`, if given); leaves the model in eval mode."""
        said, self._noted = self._noted, {}
        missing = [slide for slide in range(len(self._chosen)) if slide not in said]
        if describer is not None:
            outputs = describer.said([self.bags[slide] for slide in missing])
            said |= zip(missing, outputs, strict=True)
        else:
            for slide, bag in zip(missing, self._bags(missing), strict=True):
                said[slide] = Said.of(model, infer(model, bag, self.device))
        ordered = [said[slide] for slide in range(len(self._chosen))]
        logits, embedding = (
            np.stack([getattr(output, name) for output in ordered]) for name in ("logits", "embedding")
        )
        self.effective_share = float(np.mean([effective_share(output.attention) for output in ordered]))
        self.writer.add(Recording(epoch, step, [output.attention for output in ordered], logits, embedding))

    def finish(self, model: MILModel) -> None:
        """Complete the record with the scores of the selected checkpoint, for the first slide of each class."""
        scores: dict[int, npt.NDArray[np.float32]] = {}
        for slide, bag in zip(self._scored, self._bags(self._scored), strict=True):
            of_slide = infer(model, bag, self.device).scores
            assert of_slide is not None, "only methods with scores are recorded"
            scores[slide] = of_slide.float().numpy()
        self.writer.finish(scores)

    def _bags(self, slides: Iterable[int] | None = None) -> Iterator[Bag]:
        """The bags of some of the chosen slides, or of all, in the given order."""
        chosen = self._chosen if slides is None else [self._chosen[slide] for slide in slides]
        for _, group in groupby(chosen, key=lambda recorded: recorded.role):
            together = list(group)
            yield from together[0].labeled.bags.stream([recorded.index for recorded in together])


@dataclass(frozen=True)
class _Chosen:
    """A slide to record: its labeled bags, and its index there."""

    role: str
    labeled: LabeledBags
    index: int

    @property
    def target(self) -> int:
        """Its class, or its group of outcomes."""
        return int(self.labeled.groups[self.index])


@dataclass(frozen=True)
class Said:
    """The recorded outputs for one bag: attention N, logits C, embedding E."""

    attention: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float32]
    embedding: npt.NDArray[np.float32]

    @staticmethod
    def of(model: MILModel, output: Output) -> Said:
        """From an output on the CPU."""
        tensors = (model.tile_map(output), output.logits, output.embedding)
        return Said(*(tensor.float().numpy() for tensor in tensors))


class Describes(Protocol):
    """Computes the outputs of a model for many bags at once."""

    def said(self, chosen: Sequence[tuple[BagSource, int]]) -> list[Said]:
        """Outputs for single bags, each given as a source and an index."""
        ...


def effective_share(attention: npt.NDArray[np.float32]) -> float:
    """The share of N tiles that attention effectively uses, `exp(H) / N` with the entropy H of its shares.

    >>> [round(effective_share(np.array(shares, np.float32)), 6) for shares in ([1, 1, 1, 1], [1, 0, 0, 0])]
    [1.0, 0.25]
    """
    total = float(attention.sum(dtype=np.float64))
    if not total > 0:
        return 1.0
    shares = attention[attention > 0].astype(np.float64) / total
    return float(np.exp(-(shares * np.log(shares)).sum()) / len(attention))


def choose_slides(targets: npt.NDArray[np.int64], wanted: str | int) -> list[int]:
    """The indices of the slides to record: all, none, or the first few of each class."""
    if wanted == "none":
        return []
    if wanted == "all":
        return list(range(len(targets)))
    chosen = [index for target in np.unique(targets) for index in np.flatnonzero(targets == target)[: int(wanted)]]
    return sorted(int(index) for index in chosen)
