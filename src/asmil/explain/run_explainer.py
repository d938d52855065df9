"""Maps of slides by the models of a run: each slide by models that were not trained on it, averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError, did_you_mean
from asmil.explain.kinds import explain_bag, kinds_of, tile_logits
from asmil.models.base import Output
from asmil.models.inference import infer
from asmil.models.own_method import is_own
from asmil.runs.run import Run
from asmil.runs.trained_models import TrainedModel
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
    """The trained models of a run; each slide is explained by the models that were not trained on it.

    A slide that all models were trained on is explained by all of them; see `Run.saw`.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names = run.trained[0].task.explained_names

    @property
    def kinds(self) -> list[str]:
        """The kinds of maps that the method has, its own first."""
        return [kind for kind, missing in kinds_of(self.run.models[0]).items() if missing is None]

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
        models = list(self.run.trained_for(bag.id) if trained is None else trained)
        if not models:
            raise AsmilError(f"{bag.id}: there is no model to explain it with")
        self.refuse_unknown(name)
        if outputs is None:
            outputs = self.outputs(bag, models)
        if name is None:
            said = self.said(models, outputs)
            name = max(said, key=lambda name: said[name])
        maps = [
            explain_bag(each.model, each.task, bag, kind, name, self.run.device, outputs[each.fold, each.seed])
            for each in models
        ]
        values = torch.stack([tile_map.values for tile_map in maps]).mean(dim=0).numpy()
        shown = float(np.mean([tile_map.shown for tile_map in maps]))
        notes = tuple(dict.fromkeys(note for tile_map in maps for note in tile_map.notes))
        return SlideExplanation(values, maps[0].kind, name, shown, len(maps), notes)

    def refuse_unknown(self, name: str | None) -> None:
        """Raise if there is no class of this name."""
        if name is not None and name not in self.names:
            known = did_you_mean(name, self.names)
            raise AsmilError(f"{self.run.path}: there is no class {name!r} to explain; {known}")

    def outputs(self, bag: Bag, trained: Sequence[TrainedModel]) -> Outputs:
        """The output of each model for a bag, by fold and seed."""
        return {(each.fold, each.seed): infer(each.model, each.model.prepare(bag), self.run.device) for each in trained}

    def said(self, trained: Sequence[TrainedModel], outputs: Outputs) -> dict[str, float]:
        """The prediction of the models: the mean probability of every class, or the single number of the task."""
        return {name: float(np.mean(values)) for name, values in self.said_by_model(trained, outputs).items()}

    def said_by_model(self, trained: Sequence[TrainedModel], outputs: Outputs) -> dict[str, Floats]:
        """The predictions of the single models, by class or for the single number of the task."""
        shown = []
        for each in trained:
            logits = outputs[each.fold, each.seed].logits[None]
            shown.append([float(each.task.shown(logits, index)) for index in range(len(self.names))])
        return dict(zip(self.names, np.array(shown).T, strict=True))

    def predicted(self, bag: Bag, trained: Sequence[TrainedModel]) -> str:
        """The class with the highest mean probability, or the name of the single number of the task."""
        if len(self.names) == 1:
            return self.names[0]
        said = self.said(trained, self.outputs(bag, trained))
        return max(said, key=lambda name: said[name])

    def tile_probabilities(self, bag: Bag, trained: Sequence[TrainedModel] | None = None) -> dict[str, Floats]:
        """The probabilities of single tiles, by class, mean over the models; empty if they do not classify tiles.

        trained: some of the models; default: those that were not trained on the slide
        """
        if len(self.names) == 1:
            return {}
        by_model = []
        for each in self.run.trained_for(bag.id) if trained is None else trained:
            output = infer(each.model, each.model.prepare(bag), self.run.device)
            logits = tile_logits(each.model, bag, output, self.run.device)
            if logits is None or each.model.weighted_instance_logits:
                return {}
            by_model.append([each.task.shown(logits, index).numpy() for index in range(len(self.names))])
        means = np.mean(by_model, axis=0)
        return {f"probability {name}": means[index] for index, name in enumerate(self.names)}


def of_slide(values: Floats, bag: Bag, number: int) -> tuple[Floats, Bag]:
    """The values and the bag of one slide of several that were joined."""
    if bag.slide_index is None:
        return values, bag
    tiles = torch.nonzero(bag.slide_index == number).flatten()
    return values[tiles.numpy()], replace(bag.subset(tiles), slide_index=None)


def open_explainer(path: Path | str, device: str = "auto", method: str | None = None) -> RunExplainer:
    """The explainer of a run folder or bundle. method: of the run; used only if it is the user's own code."""
    return RunExplainer(Run(path, device, method if is_own(Run(path).method) else None))
