"""LIPN, the pre-screening network of HDMIL: it reads low-magnification tiles and decides which to keep.

    s_i = CNN(pixels_i / 255 - 0.5)          C scores per tile, see `blocks/mobilenet.py`
    m_i = 1 if sigmoid(s_i) > 0.5 else 0     straight-through gradient, no noise

HDMIL trains it (`hdmil.py`). Here is the model of an official checkpoint of LIPN alone, which is not a method, since it
predicts nothing of a slide. Load it together with DMIN's tensors, in one state dict, for the whole HDMIL.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asmil.cohort.bag import LOWRES, Bag
from asmil.errors import AsmilError
from asmil.models.base import MILModel, ModelConfig, Output
from asmil.models.blocks.mobilenet import TinyMobileNet
from asmil.models.blocks.straight_through import harden
from asmil.models.official import Config, Converted, OfficialForm, Tensors, register_official, renamed


class LIPN(MILModel):
    """The pre-screening network alone, as its official checkpoints hold it: which tiles to keep, from their pixels.

    It predicts nothing about the bag: its logits are the mean scores of the tiles.
    """

    score_axes = ("class",)

    def __init__(self, in_features: int, n_outputs: int, config: ModelConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.network = TinyMobileNet(n_outputs)

    def refuse_misfit(self, bag: Any) -> None:
        """Features of any width are taken, as they are not read."""
        if not isinstance(bag, Bag):
            super().refuse_misfit(bag)

    def attend(self, bag: Bag) -> Tensor:
        scores: Tensor = self.network(lowres_tiles(bag))
        return scores.t()

    def forward(self, bag: Bag) -> Output:
        scores = self.attend(bag)
        means = scores.mean(dim=1)
        return Output(means, scores, means, extras={"mask": harden(torch.sigmoid(scores))})


def lowres_tiles(bag: Bag) -> Tensor:
    """The low-magnification tiles of a bag, N x p x p x 3 bytes."""
    tiles = bag.extras.get(LOWRES, {}).get("tiles")
    if tiles is None:
        raise AsmilError(
            f"{bag.id}: the pre-screening network needs low-magnification tiles; write them to the group 'lowres' of "
            "the feature file (dataset 'tiles', N x p x p x 3 bytes), or train without model.lipn"
        )
    if tiles.ndim != 4 or len(tiles) != len(bag) or tiles.shape[3] != 3:
        raise AsmilError(
            f"{bag.id}: lowres/tiles has shape {tuple(tiles.shape)}; it must be {len(bag)} x p x p x 3, "
            "one image a tile, in the order of the features"
        )
    assert isinstance(tiles, Tensor)
    return tiles


_PARTS = {"start": "start_dw", "expand": "expand", "middle": "middle_dw", "project": "proj"}
_NORM_LEAVES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def lipn_state(tensors: Tensors) -> dict[str, Tensor]:
    """The state of a `TinyMobileNet` from the official tensors."""
    convs, norms = {"neck.conv": "extractor.conv.block.0"}, {"neck.norm": "extractor.conv.block.1"}
    for place in range(5):
        convs[f"features.{place}.conv"] = f"extractor.features.{place}.block.0"
        norms[f"features.{place}.norm"] = f"extractor.features.{place}.block.1"
    for place in (5, 6):
        for ours, theirs in _PARTS.items():
            convs[f"features.{place}.{ours}.conv"] = f"extractor.features.{place}.{theirs}_conv"
            norms[f"features.{place}.{ours}.norm"] = f"extractor.features.{place}.{theirs}_norm"
    return {
        **renamed(tensors, convs),
        **renamed(tensors, norms, _NORM_LEAVES),
        **renamed(tensors, {"head": "extractor.classifier"}),
    }


def _convert(tensors: Tensors, config: Config) -> Converted:
    state = {f"network.{name}": value for name, value in lipn_state(tensors).items()}
    pixels = int(config.get("pixels", 16))
    return 3 * pixels**2, len(state["network.head.weight"]), {}, state


def _build(in_features: int, n_outputs: int, options: dict[str, Any]) -> LIPN:
    return LIPN(in_features, n_outputs, ModelConfig(**options))


register_official(
    OfficialForm(
        "hdmil_lipn",
        frozenset({"extractor.classifier.weight", "extractor.features.0.block.0.weight"}),
        _convert,
        build=_build,
    )
)
