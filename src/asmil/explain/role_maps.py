"""Maps of the slides that have a role in a run, by the models of the folds in which they have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from asmil.cohort.manifest import Slide
from asmil.cohort.source import FeatureInfo
from asmil.cohort.splits import Roles
from asmil.errors import AsmilError, did_you_mean
from asmil.explain.kinds import kinds_of
from asmil.explain.run_explainer import RunExplainer
from asmil.runs.prediction import RunPredictor, TrainedModel
from asmil.tables.arrays import Floats
from asmil.tasks.classification import normal_labels
from asmil.tasks.prediction_format import prediction_format

FoldsOfRoles = dict[str, dict[str, set[int]]]
"""By slide or patient: the folds of each of its roles."""


@dataclass(frozen=True)
class RoleMap:
    """The map and probabilities of a slide, averaged over the models that may evaluate it.

    coords: N x 2, upper left corners of the tiles in level-0 pixels
    heat: N; probabilities: K, of the classes
    """

    coords: npt.NDArray[np.int64]
    heat: Floats
    probabilities: Floats
    n_models: int
    info: FeatureInfo


class RoleMaps(RunExplainer):
    """The models of a run of classes, used only for slides that they may evaluate.

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
        super().__init__(RunPredictor(run, device, method))
        self.role, self.description, self._normal = role, self.predictor.description, normal
        task = self.description.config.task.kind
        if prediction_format(task).part_name != "class":
            raise AsmilError(f"{run}: the task is {task}; localization needs classes, to tell normal from tumor slides")
        kinds = kinds_of(self.predictor.models[0])
        self.kind = heatmap or self.predictor.models[0].map_kinds[0]
        if self.kind not in kinds:
            raise AsmilError(f"{run}: its method has no heat map '{self.kind}'; {did_you_mean(self.kind, kinds)}")
        if (why := kinds[self.kind]) is not None:
            raise AsmilError(f"{run}: its method has no heat map '{self.kind}': {why}")

    @property
    def seeds(self) -> list[int]:
        """The seeds over which maps are averaged."""
        return sorted({one.seed for one in self.predictor.trained})

    def slides_of_role(self) -> set[str]:
        """The names of the run's slides that have the role in a fold."""
        return {slide for slide, roles in self._roles_of_slide.items() if self.role in roles}

    def may_evaluate(self, slide: Slide) -> bool:
        """Whether a slide has the role, or is new."""
        roles = self._roles(slide)
        return self.role in roles if roles else self.role == "test"

    def map_of(self, slide: Slide) -> RoleMap:
        """The map of a slide; its features must be those of the training, with coordinates."""
        bag, info = self.read(slide)
        if bag.coords is None:
            raise AsmilError(f"{slide.slide}: its features have no coordinates ({slide.source}); extract them again")
        trained = self._trained(slide)
        is_own = self.kind in trained[0].model.map_kinds
        found = self.predictor.predict_bag(bag, is_own, trained, self.kind if is_own else None)
        if found.tile_map is None:
            heat = self.explain(bag, self.kind, self._tumor_class(found.probabilities), trained).values
        else:
            heat = found.tile_map.astype(np.float64)
        coords = bag.coords.numpy().astype(np.int64)
        return RoleMap(coords, heat, found.probabilities, len(trained), info)

    def _tumor_class(self, probabilities: Floats) -> str:
        """The most probable class that is not normal."""
        classes = self.description.classes
        normal = normal_labels(classes, [name for name in self._normal if name in classes])
        places = [place for place, name in enumerate(classes) if name not in normal] or list(range(len(classes)))
        return classes[max(places, key=lambda place: float(probabilities[place]))]

    def _roles(self, slide: Slide) -> dict[str, set[int]]:
        """The folds of every role that a slide has, or that the other slides of its patient have."""
        return self._roles_of_slide.get(slide.slide) or self._roles_of_patient.get(slide.patient, {})

    def _trained(self, slide: Slide) -> list[TrainedModel]:
        roles = self._roles(slide)
        folds = roles.get(self.role, set())
        found = [one for one in self.predictor.trained if not roles or one.fold in folds]
        if not found:
            raise AsmilError(
                f"{slide.slide}: no training of the fold in which its role is {self.role} is finished; finish the "
                "run with `asmil train`"
            )
        return found

    @cached_property
    def _roles_of_slide(self) -> FoldsOfRoles:
        return self._roles_by("slide")

    @cached_property
    def _roles_of_patient(self) -> FoldsOfRoles:
        return self._roles_by("patient")

    def _roles_by(self, column: str) -> FoldsOfRoles:
        found: FoldsOfRoles = {}
        table = self.splits
        for name, role, fold in zip(table[column], table["role"], table["fold"], strict=True):
            found.setdefault(str(name), {}).setdefault(str(role), set()).add(int(fold))
        return found
