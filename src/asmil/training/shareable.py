"""Check whether several processes can share the steps of a training; errors say what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.modules.batchnorm import _BatchNorm

from asmil.cohort.splits import Splits
from asmil.cohort.units import Unit
from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.training.config import RunConfig
from asmil.training.setup import build_stages


def refuse_unshareable_run(config: RunConfig, processes: int) -> None:
    """Raise if the steps of a run have too few bags to share, or compare the bags of a step."""
    training = config.training
    if training.bags_per_step < processes:
        raise AsmilError(
            f"{processes} processes share the bags of a step, but a step has {training.bags_per_step}; set "
            f"training.accumulate (or training.batch) to {processes} or more, for example training.accumulate="
            f"{4 * processes}"
        )
    if config.folds > 1 or config.seeds > 1 or config.nested.folds or config.data.leave_out == "site":
        raise _several_trainings()
    if training.executor in ("fused", "graphed"):
        raise AsmilError(
            f"training.executor = {training.executor} trains in one process; leave it out, or start asmil without "
            "torchrun"
        )
    if config.task.chosen_loss == "cox":
        raise AsmilError(
            "task.loss = cox compares all patients of a step, so its bags cannot be shared between processes; choose "
            "task.loss=incidence or hazard, or start asmil without torchrun"
        )
    if config.stabilizers.temporal.weight:
        raise AsmilError(
            "stabilizers.temporal stores the attention of every slide, but a slide is processed by a different "
            "process in every epoch; leave it out, or start asmil without torchrun"
        )


def refuse_unshareable_method(model: MILModel, method: str, processes: int) -> None:
    """Raise if a method must process its bags one after the other."""
    stages = [stage.model for stage in build_stages(model, seed=0)]
    in_order = any(type(one).after_step is not MILModel.after_step for one in stages)
    if in_order or any(isinstance(part, _BatchNorm) for one in stages for part in one.modules()):
        raise AsmilError(
            f"{method} processes the bags of a step one after the other (prototypes, a teacher or running means), so "
            f"{processes} processes cannot share them; start asmil without torchrun"
        )


def refuse_unshareable_splits(units: Sequence[Unit], splits: Splits, processes: int) -> None:
    """Raise if there is more than one fold, or fewer training bags than processes."""
    if splits.n_folds > 1:
        raise _several_trainings()
    trained = set(splits.slides(0, "train"))
    bags = sum(unit.slides[0].slide in trained for unit in units)
    if bags < processes:
        raise AsmilError(f"{processes} processes cannot share {bags} training bags; start fewer processes")


def _several_trainings() -> AsmilError:
    return AsmilError(
        "torchrun shares the steps of one training, but this run has several folds or seeds, which are independent; "
        "train them in parallel with --engine local or --engine ray, without torchrun"
    )
