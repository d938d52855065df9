"""Maps of slides by the models of a run: each slide by models that were not trained on it, averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from asmil.cohort.bag import Bag
from asmil.cohort.features import inspect_features, read_bag_and_info
from asmil.cohort.manifest import Slide
from asmil.cohort.source import FeatureInfo
from asmil.cohort.splits import Splits
from asmil.cohort.units import Unit
from asmil.errors import AsmilError, did_you_mean
from asmil.explain.kinds import explain_bag, kinds_of, tile_logits
from asmil.models.base import Output
from asmil.models.inference import infer
from asmil.models.own_method import is_own
from asmil.runs.bundle import is_bundle
from asmil.runs.layout import RunLayout
from asmil.runs.prediction import RunPredictor, TrainedModel
from asmil.tables.arrays import Floats

Outputs = Mapping[tuple[int, int], Output]


@dataclass(frozen=True)
class SlideExplanation:
    """The map of a slide, averaged over models.

    values: N; name: the class, label or number that is explained
    shown: its probability (or the risk, or the value), the mean over the models
    """

    values: Floats
    kind: str
    name: str
    shown: float
    n_models: int
    notes: tuple[str, ...] = ()


class RunExplainer:
    """The trained models of a run, used only for slides that they were not trained on.

    A slide of which all models have seen the training set is explained by all of them, and `saw` says so.
    """

    def __init__(self, run: Path | str | RunPredictor, device: str = "auto", method: str | None = None) -> None:
        self.predictor = run if isinstance(run, RunPredictor) else _predictor(run, device, method)
        self.path = self.predictor.folder.path
        self.names = self.predictor.trained[0].task.explained_names

    @property
    def method(self) -> str:
        """Name of the trained method."""
        return self.predictor.description.config.method

    @property
    def kinds(self) -> list[str]:
        """The kinds of maps that the method has, its own first."""
        return [kind for kind, missing in kinds_of(self.predictor.models[0]).items() if missing is None]

    @cached_property
    def splits(self) -> pd.DataFrame:
        """Slide, patient, fold and role of the run's slides; empty for a bundle, which does not say."""
        if is_bundle(self.path):
            return pd.DataFrame({"slide": [], "patient": [], "fold": [], "role": []})
        return Splits.load(self.predictor.folder.splits).table

    def trained_for(self, name: str) -> list[TrainedModel]:
        """The models that were not trained on a slide (or patient); all if all were."""
        table = self.splits
        known = (table[self.predictor.unit] == name) & (table["role"] == "train")
        seen = set(table.loc[known, "fold"].astype(int))
        return [one for one in self.predictor.trained if one.fold not in seen] or self.predictor.trained

    def saw(self, name: str) -> bool:
        """Whether the models that explain a slide were trained on it."""
        table = self.splits
        known = (table[self.predictor.unit] == name) & (table["role"] == "train")
        seen = set(table.loc[known, "fold"].astype(int))
        return all(one.fold in seen for one in self.predictor.trained)

    def read(self, slide: Slide) -> tuple[Bag, FeatureInfo]:
        """The bag of a slide; features made otherwise than those of the training are refused."""
        info = inspect_features(slide.source)
        self.predictor.description.refuse_other_features(info)
        return read_bag_and_info(slide.source, slide.slide, slide.mpp or info.mpp)

    def read_unit(self, unit: Unit) -> Bag:
        """The bag of a slide, or of a patient whose slides are joined."""
        return self.predictor.read_bag(unit)

    def explain(
        self,
        bag: Bag,
        kind: str | None = None,
        name: str | None = None,
        trained: Sequence[TrainedModel] | None = None,
        outputs: Outputs | None = None,
    ) -> SlideExplanation:
        """One value per tile: the mean over the models.

        kind: default: the method's own map; name: the class to explain; default: the predicted one
        trained: some of the models; default: those that were not trained on the slide
        outputs: the models' outputs for the bag, if known
        """
        models = list(self.trained_for(bag.id) if trained is None else trained)
        if not models:
            raise AsmilError(f"{bag.id}: there is no model to explain it with")
        if name is not None and name not in self.names:
            raise AsmilError(f"{self.path}: there is no class {name!r} to explain; {did_you_mean(name, self.names)}")
        if outputs is None:
            outputs = self.outputs(bag, models)
        if name is None:
            said = self.said(models, outputs)
            name = max(said, key=lambda one: said[one])
        device = self.predictor.device
        found = [
            explain_bag(one.model, one.task, bag, kind, name, device, outputs[one.fold, one.seed]) for one in models
        ]
        values = torch.stack([one.values for one in found]).mean(dim=0).numpy()
        shown = float(np.mean([one.shown for one in found]))
        notes = tuple(dict.fromkeys(note for one in found for note in one.notes))
        return SlideExplanation(values, found[0].kind, name, shown, len(found), notes)

    def outputs(self, bag: Bag, trained: Sequence[TrainedModel]) -> Outputs:
        """What each model says of a bag, by fold and seed."""
        return {
            (one.fold, one.seed): infer(one.model, one.model.prepare(bag), self.predictor.device) for one in trained
        }

    def said(self, trained: Sequence[TrainedModel], outputs: Outputs) -> dict[str, float]:
        """What the models predict together: the mean probability of every class, or the one number there is."""
        shown = []
        for one in trained:
            logits = outputs[one.fold, one.seed].logits[None]
            shown.append([float(one.task.shown(logits, place)) for place in range(len(self.names))])
        return dict(zip(self.names, np.mean(shown, axis=0).tolist(), strict=True))

    def predicted(self, bag: Bag, trained: Sequence[TrainedModel]) -> str:
        """The class of the highest mean probability, or the one number there is."""
        if len(self.names) == 1:
            return self.names[0]
        said = self.said(trained, self.outputs(bag, trained))
        return max(said, key=lambda name: said[name])

    def tile_probabilities(self, bag: Bag, trained: Sequence[TrainedModel] | None = None) -> dict[str, Floats]:
        """What the models say of single tiles, by class, the mean over models; empty if they do not classify tiles.

        trained: some of the models; default: those that were not trained on the slide
        """
        if len(self.names) == 1:
            return {}
        found = []
        for one in self.trained_for(bag.id) if trained is None else trained:
            output = infer(one.model, one.model.prepare(bag), self.predictor.device)
            logits = tile_logits(one.model, bag, output, self.predictor.device)
            if logits is None or one.model.weighted_instance_logits:
                return {}
            found.append([one.task.shown(logits, place).numpy() for place in range(len(self.names))])
        means = np.mean(found, axis=0)
        return {f"probability {name}": means[place] for place, name in enumerate(self.names)}


def of_slide(values: Floats, bag: Bag, number: int) -> tuple[Floats, Bag]:
    """The values and the bag of one slide of several that were joined."""
    if bag.slide_index is None:
        return values, bag
    tiles = torch.nonzero(bag.slide_index == number).flatten()
    return values[tiles.numpy()], replace(bag.subset(tiles), slide_index=None)


def _predictor(run: Path | str, device: str, method: str | None) -> RunPredictor:
    # several runs are drawn side by side, and not all of them need be of the user's own method
    names_code = is_own(str(RunLayout(run).read_values().get("method", "")))
    return RunPredictor(run, device, method if names_code else None)
