"""Maps of the slides that have a role in a run, by the models of the folds in which they have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asmil.cohort.manifest import Slide
from asmil.cohort.splits import Roles
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.localization.tile_maps import MaskFrame, frame_of
from asmil.explain.color_scale import SIGNED_KINDS
from asmil.explain.kinds import kinds_of
from asmil.explain.run_explainer import RunExplainer
from asmil.explain.tile_map import pixel_coords
from asmil.runs.prediction import predict_bag
from asmil.runs.run import FoldsOfRoles, Run
from asmil.runs.trained_models import TrainedModel
from asmil.tables.arrays import Floats
from asmil.tasks.classification import normal_labels


@dataclass(frozen=True)
class SlideMap:
    """The map and probabilities of a slide, averaged over the models that may evaluate it.

    heat: N; probabilities: K, of the classes
    frame: where the tiles are, and the grid in which they are compared with annotations
    """

    slide: Slide
    heat: Floats
    probabilities: Floats
    n_models: int
    frame: MaskFrame


class EvaluatedMaps:
    """The models of a run of classes, used only for slides that they may evaluate.

    A slide of the run is evaluated with the folds in which it has the given role. A slide is new if the run has seen
    neither it nor another slide of its patient; it is evaluated with all models and counts as a test slide.

    heatmap: the kind of map (`asmil.explain.kinds`); default: the method's own
    normal: labels of normal slides; maps of other kinds than the method's own explain the most probable other class
    """

    def __init__(
        self,
        path: Path | str,
        role: Roles = "test",
        heatmap: str | None = None,
        device: str = "auto",
        method: str | None = None,
        normal: Sequence[str] = (),
    ) -> None:
        self.run = run = Run(path, device, method)
        self._explainer = RunExplainer(run)
        self.role, self._normal = role, normal
        if run.format.part_name != "class":
            raise AsmilError(
                f"{path}: the task is {run.kind}; localization needs classes, to tell normal from tumor slides"
            )
        kinds = kinds_of(run.models[0])
        self.kind = heatmap or run.models[0].map_kinds[0]
        if self.kind not in kinds:
            raise AsmilError(f"{path}: its method has no heat map '{self.kind}'; {did_you_mean(self.kind, kinds)}")
        if (why := kinds[self.kind]) is not None:
            raise AsmilError(f"{path}: its method has no heat map '{self.kind}': {why}")

    @property
    def seeds(self) -> list[int]:
        """The seeds over which maps are averaged."""
        return sorted({trained.seed for trained in self.run.trained})

    def may_evaluate(self, slide: Slide) -> bool:
        """Whether a slide has the role, or is new."""
        roles = self._roles(slide)
        return self.role in roles if roles else self.role == "test"

    def map_of(self, slide: Slide) -> SlideMap:
        """The map of a slide; its features must be those of the training, with coordinates."""
        bag, (info,) = self.run.bag(slide)
        coords = pixel_coords(bag, info)
        if coords is None:
            raise AsmilError(f"{slide.slide}: its features have no coordinates ({slide.source}); extract them again")
        trained = self._trained(slide)
        is_own = self.kind in trained[0].model.map_kinds and self.kind not in SIGNED_KINDS
        prediction = predict_bag(self.run, bag, is_own, trained, self.kind if is_own else None)
        if prediction.tile_map is None:
            tumor_class = self._tumor_class(prediction.probabilities)
            heat = self._explainer.explain(bag, self.kind, tumor_class, trained).values
        else:
            heat = prediction.tile_map.astype(np.float64)
        frame = frame_of(slide.slide, info, coords, slide.mpp)
        return SlideMap(slide, heat, prediction.probabilities, len(trained), frame)

    def _tumor_class(self, probabilities: Floats) -> str:
        """The most probable class that is not normal."""
        classes = self.run.classes
        normal = normal_labels(classes, [name for name in self._normal if name in classes])
        others = [index for index, name in enumerate(classes) if name not in normal] or list(range(len(classes)))
        return classes[max(others, key=lambda index: float(probabilities[index]))]

    def _roles(self, slide: Slide) -> FoldsOfRoles:
        """The folds of every role that a slide has, or that the other slides of its patient have."""
        return self.run.roles_of(slide.slide) or self.run.roles_of(slide.patient, "patient")

    def _trained(self, slide: Slide) -> list[TrainedModel]:
        roles = self._roles(slide)
        folds = roles.get(self.role, set())
        trained = [model for model in self.run.trained if not roles or model.fold in folds]
        if not trained:
            raise AsmilError(
                f"{slide.slide}: no training of the fold in which its role is {self.role} is finished; finish the "
                "run with `asmil train`"
            )
        return trained
