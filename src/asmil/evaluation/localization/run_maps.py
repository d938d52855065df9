"""Heat maps of slides by models that were not trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.cohort.bag import Bag
from asmil.cohort.features import inspect_features, read_bag
from asmil.cohort.manifest import Slide
from asmil.cohort.splits import Roles, Splits
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.localization.tile_maps import Frame, frame_of
from asmil.explain.kinds import explain_bag, kinds_of
from asmil.tasks.classification import normal_labels
from asmil.tasks.prediction_format import prediction_format
from asmil.training.prediction import RunPredictor, TrainedModel


@dataclass(frozen=True)
class SlideMap:
    """The heat map and probabilities of a slide, averaged over the models that may evaluate it.

    coords: N x 2, upper left corners of the tiles in level-0 pixels
    heat: N values of the method's heat map
    probabilities: K, of the classes
    """

    slide: Slide
    coords: npt.NDArray[np.int64]
    heat: npt.NDArray[np.float64]
    probabilities: npt.NDArray[np.float64]
    n_models: int
    frame: Frame


class RunMaps:
    """The models of a run, used only for slides that they may evaluate.

    A slide of the run is evaluated with the folds in which it has the given role. A slide is new if the run has seen
    neither it nor another slide of its patient; it is evaluated with all models and counts as a test slide.

    heatmap: the kind of map (`asmil.explain.kinds`); default: the method's own
    normal: labels of normal slides; maps of other kinds than the method's own explain the most probable other class
    """

    def __init__(
        self,
        run: Path | str,
        role: Roles = "test",
        heatmap: str | None = None,
        device: str = "auto",
        method: str | None = None,
        normal: Sequence[str] = (),
    ) -> None:
        self._predictor = RunPredictor(run, device, method)
        self.path = self._predictor.folder.path
        self.role = role
        self.description = self._predictor.description
        kind = self.description.config.task.kind
        if prediction_format(kind).part_name != "class":
            raise AsmilError(f"{run}: the task is {kind}; localization needs classes, to tell normal from tumor slides")
        splits = Splits.load(self._predictor.folder.splits).table
        self._roles_of_slide = _roles_by(splits, "slide")
        self._roles_of_patient = _roles_by(splits, "patient")
        self._normal = normal
        model = self._predictor.models[0]
        kinds = kinds_of(model)
        self.kind = heatmap or model.heatmap_kinds[0]
        if self.kind not in kinds:
            raise AsmilError(f"{run}: its method has no heat map '{self.kind}'; {did_you_mean(self.kind, kinds)}")
        if (why := kinds[self.kind]) is not None:
            raise AsmilError(f"{run}: its method has no heat map '{self.kind}': {why}")

    @property
    def unfinished(self) -> int:
        """The number of unfinished trainings; their models are not used."""
        return self._predictor.unfinished

    @property
    def seeds(self) -> list[int]:
        """The seeds over which maps are averaged."""
        return sorted({one.seed for one in self._predictor.trained})

    @property
    def joins_slides(self) -> bool:
        """Whether the models were trained on bags that join the slides of a patient."""
        return self._predictor.unit == "patient"

    def slides_of_role(self) -> set[str]:
        """The names of the run's slides that have the role in a fold."""
        return {slide for slide, roles in self._roles_of_slide.items() if self.role in roles}

    def may_evaluate(self, slide: Slide) -> bool:
        """Whether a slide has the role, or is new."""
        roles = self._roles(slide)
        return self.role in roles if roles else self.role == "test"

    def read(self, slide: Slide) -> SlideMap:
        """The map of a slide; its features must be those of the training, with coordinates."""
        info = inspect_features(slide.source)
        self.description.refuse_other_features(info)
        bag = read_bag(slide.source, slide.slide, slide.mpp or info.mpp)
        if bag.coords is None:
            raise AsmilError(f"{slide.slide}: its features have no coordinates ({slide.source}); extract them again")
        trained = self._trained(slide)
        is_own = self.kind in trained[0].model.heatmap_kinds
        found = self._predictor.predict_bag(bag, is_own, trained, self.kind if is_own else None)
        heat = self._explained(bag, trained, found.probabilities) if found.heatmap is None else found.heatmap
        heat, coords = heat.astype(np.float64), bag.coords.numpy().astype(np.int64)
        frame = frame_of(slide.slide, info, coords, slide.mpp)
        return SlideMap(slide, coords, heat, found.probabilities, len(trained), frame)

    def _explained(
        self, bag: Bag, trained: Sequence[TrainedModel], probabilities: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """The map of a kind that every method may have, for the most probable class that is not normal."""
        classes = self.description.classes
        normal = normal_labels(classes, [name for name in self._normal if name in classes])
        places = [place for place, name in enumerate(classes) if name not in normal] or list(range(len(classes)))
        name = classes[max(places, key=lambda place: float(probabilities[place]))]
        device = self._predictor.device
        maps = [explain_bag(one.model, one.task, bag, self.kind, name, device).values.numpy() for one in trained]
        return np.asarray(np.mean(maps, axis=0))

    def _roles(self, slide: Slide) -> dict[str, set[int]]:
        """The folds of every role that a slide has, or that the other slides of its patient have."""
        return self._roles_of_slide.get(slide.slide) or self._roles_of_patient.get(slide.patient, {})

    def _trained(self, slide: Slide) -> list[TrainedModel]:
        roles = self._roles(slide)
        folds = roles.get(self.role, set())
        found = [one for one in self._predictor.trained if not roles or one.fold in folds]
        if not found:
            raise AsmilError(
                f"{slide.slide}: no training of the fold in which its role is {self.role} is finished; finish the "
                "run with `asmil train`"
            )
        return found


def _roles_by(splits: pd.DataFrame, column: str) -> dict[str, dict[str, set[int]]]:
    """The folds of each role of every slide or patient."""
    found: dict[str, dict[str, set[int]]] = {}
    for name, role, fold in zip(splits[column], splits["role"], splits["fold"], strict=True):
        found.setdefault(str(name), {}).setdefault(str(role), set()).add(int(fold))
    return found
