"""The model that the settings of a run describe."""

from __future__ import annotations

import numpy as np
import torch

from asmil.models.base import MILModel
from asmil.models.blocks.smoothing import Smoothing
from asmil.models.registry import build
from asmil.runs.config import RunConfig


def build_model(config: RunConfig, in_features: int, n_outputs: int, seed: int) -> MILModel:
    """The model, initialized with the seed; torch's global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.SeedSequence([seed, 0]).generate_state(1)[0]))
        model = build(config.method, in_features, n_outputs, config=config.model)
    normalizer = config.attention.build_normalizer()
    if normalizer is not None:
        model.use_normalizer(normalizer)
    asked = config.smoothing
    if asked.where != "none":
        smoothing = Smoothing(asked.alpha, asked.steps, exact=asked.exact, trainable=asked.train_alpha)
        model.use_smoothing(smoothing, asked.where)
    return model
