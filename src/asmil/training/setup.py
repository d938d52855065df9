"""Build the parts of a training from its settings: stages, anchor and other stabilizers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from asmil.attention.anchor import Anchor
from asmil.attention.stabilizer import Stabilizer
from asmil.attention.stabilizers import EntropyFloor, EntropyReward, FeatureMatching, ScorePenalty, TemporalEnsemble
from asmil.errors import AsmilError
from asmil.models.base import MILModel, Stage
from asmil.runs.config import RunConfig
from asmil.runs.model import build_model


def build_stages(model: MILModel, seed: int) -> list[Stage]:
    """The stages of the model's training; the models before the last are initialized with the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stages = model.stages()
    assert stages[-1].model is model, "the last stage trains the model itself"
    return stages


def build_stabilizers(config: RunConfig, model: MILModel, seed: int) -> dict[str, Stabilizer]:
    """The anchor and the other stabilizers of the settings, by name; invalid combinations are an error."""
    weights = {"anchor": float(config.anchor.normalizer != "none")}
    weights |= {name: getattr(config.stabilizers, name).weight for name in type(config.stabilizers).model_fields}
    asked = [name for name in STABILIZERS if weights[name]]
    if asked and not model.score_axes:
        raise AsmilError(f"{config.method} has no attention scores, which {asked[0]} needs")
    for name, setting in model.own_stabilizers.items():
        if name in asked:
            raise AsmilError(f"{config.method} has its own term {name!r}; set its weight with {setting} instead")
    return {name: STABILIZERS[name](config, model, seed) for name in asked}


def _anchor(config: RunConfig, model: MILModel, seed: int) -> Anchor:
    settings = config.anchor
    normalizer = settings.build_normalizer()
    assert normalizer is not None
    if settings.rows == "kept" and "token" not in model.score_axes:
        raise AsmilError(f"anchor.rows = kept: {config.method} does not drop tokens; leave this setting out")
    start = model
    if settings.start == "random":
        start = build_model(config, model.in_features, model.n_outputs, seed + 2**31)
    return Anchor(
        start,
        momentum=settings.momentum,
        normalizer=normalizer,
        weight=settings.weight,
        update=settings.update,
        divergence=settings.divergence,
        reduction=settings.reduction,
        both_sides=settings.both_sides,
        ramp_epochs=settings.ramp_epochs,
        ramp_momentum=settings.ramp_momentum,
    )


def _temporal(config: RunConfig, model: MILModel, seed: int) -> TemporalEnsemble:
    del seed
    if config.data.max_tiles is not None:
        raise AsmilError(
            "stabilizers.temporal compares a slide's attention with its past, but data.max_tiles draws different "
            "tiles every epoch; leave one of them out"
        )
    return TemporalEnsemble(model.normalizer, **config.stabilizers.temporal.model_dump())


STABILIZERS: dict[str, Callable[[RunConfig, MILModel, int], Stabilizer]] = {
    "anchor": _anchor,
    "temporal": _temporal,
    "features": lambda config, model, seed: FeatureMatching(model, **config.stabilizers.features.model_dump()),
    "entropy": lambda config, model, seed: EntropyReward(config.stabilizers.entropy.weight),
    "entropy_floor": lambda config, model, seed: EntropyFloor(**config.stabilizers.entropy_floor.model_dump()),
    "l2": lambda config, model, seed: ScorePenalty(config.stabilizers.l2.weight),
}
"""All stabilizers, in the order in which their loss parts are recorded."""
