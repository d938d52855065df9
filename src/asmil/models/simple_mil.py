"""simple_mil (nnMIL): gated attention that sees a subset S of the feature channels (Luo et al., 2025).

    z_i(S) = w . (tanh(V[:, S] x_i[S] + b_V) * sigmoid(U[:, S] x_i[S] + b_U)) + b_w     |S| = min(H, D); V, U: H x D
    f(S)   = sum_i softmax(z(S))_i x_i                                                  all D channels
    logits(S) = W_c f(S) + b_c

H is both the width of the attention and the number of channels that it sees. There is no embedding layer.

In training, S is drawn anew for every step, one for all its bags. In eval mode, K overlapping windows of a fixed order
P of the channels act as an ensemble: window k is P[start : start + |S|], with starts 0, t, 2t, ... up to D - |S|, and
D - |S| itself; t = |S| // overlap. The scores have one row per window.

    logits = mean_k logits(S_k), or log mean_k exp(logits(S_k)) for risks (`combine: logmeanexp`)

How far the windows disagree is an uncertainty of the slide (`uncertainty`, `tasks/uncertainty.py`).

P is drawn on the CPU from a fixed seed and stored with the weights. Neighboring windows share channels, so products of
V and U are formed once for each segment between the ends of windows, and added up. See docs/methods/simple_mil.md.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import ModelConfig, Output
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.layers import linear_over_tiles, tile_by_tile
from asmil.models.blocks.randomness import RandomModule
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.tasks.base import Task
from asmil.tasks.classification import Classification
from asmil.tasks.survival import Survival
from asmil.tasks.uncertainty import disagreement, member_variance

ORDER_SEED = 42
SMALLEST_WIDTH = 256
WINDOW_TILES = {"cpu": 2048, "cuda": 65_536}
"""Tiles whose windows are scored at once in eval mode; on a CPU, a chunk of products then stays in the cache."""
_LAYERS = {"attention.value": "V", "attention.gate": "U", "attention.weight": "w", "head": "cls"}


class SimpleMILConfig(ModelConfig):
    """Architecture of simple_mil."""

    attention: int | None = Field(
        None, ge=1, description="H, width of the attention and number of its channels; by default max(256, D // 4)"
    )
    overlap: int = Field(4, ge=1, description="a window begins every H // overlap channels (official: 1, 2, 4, 8, 16)")
    channel_subsets: bool = Field(True, description="false: all channels at once, and no gate")
    combine: Literal["mean", "logmeanexp"] = Field("mean", description="windows; logmeanexp for Cox risks")
    dropout: float = Field(0.25, ge=0, lt=1, description="in the attention network, after tanh and sigmoid")


class StepSubset:
    """The subset that is scored in the current training step; copies of a model (an anchor) share it.

    positions: |S| positions in the order of the channels; None outside of training
    held: whether they stay the same until the next step, for all its bags
    """

    def __init__(self) -> None:
        self.positions: Tensor | None = None
        self.held = False

    def __deepcopy__(self, memo: dict[int, Any]) -> StepSubset:
        return self


@register(
    "simple_mil",
    summary="gated attention on random subsets of the channels; windows over them give an uncertainty",
    paper="Luo et al., nnMIL: A generalizable multiple instance learning framework for computational pathology",
    year=2025,
    presets={
        "official": {
            "training": {
                "optimizer": "adamw",
                "lr": 3e-4,
                "weight_decay": 1e-4,
                "decay": "matrices",
                "warmup_epochs": 5,
                "epochs": 100,
                "early_stopping": 10,
                "accumulate": 32,
                "sampling": "balanced",
            }
        },
        "survival": {
            "model": {"attention": SMALLEST_WIDTH, "combine": "logmeanexp"},
            "training": {
                "optimizer": "adamw",
                "lr": 1e-4,
                "weight_decay": 1e-4,
                "decay": "matrices",
                "warmup_epochs": 5,
                "epochs": 100,
                "accumulate": 32,
            },
        },
    },
)
class SimpleMIL(AttentionPoolModel):
    """simple_mil; see the module's text for the formulas."""

    config_type = SimpleMILConfig
    score_axes = ("window",)
    logits_in_extras = ("window_logits",)
    map_kinds = ("attention", "attention_std")
    config: SimpleMILConfig
    attention: ScoreNetwork
    channel_order: Tensor
    seed: Tensor

    def __init__(self, in_features: int, n_outputs: int, config: SimpleMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        hidden = config.attention or max(SMALLEST_WIDTH, in_features // 4)
        self.keep = min(hidden, in_features)
        self.embedding = TileEmbedding(in_features, EmbeddingConfig(embedding_layers=0))
        self.attention = ScoreNetwork(in_features, hidden, gated=config.channel_subsets, dropout=config.dropout)
        self.head = nn.Linear(in_features, n_outputs)
        self.register_buffer("channel_order", fixed_order(in_features))
        self.draw = RandomModule()
        self._subset = StepSubset()
        self.register_buffer("seed", torch.randint(2**31, ()), persistent=False)

    @property
    def window_starts(self) -> list[int]:
        """Where the windows begin in the order of the channels."""
        if not self.config.channel_subsets:
            return [0]
        last = self.in_features - self.keep
        starts = list(range(0, last + 1, max(1, self.keep // self.config.overlap)))
        return starts if starts[-1] == last else [*starts, last]

    def before_step(self, step: int, steps: int) -> None:
        """Draw the channels of this step; the same in all processes of a training."""
        self.hold(random_order(self.in_features, self.seed, step))

    def hold(self, positions: Tensor) -> None:
        """Score the channels at the first of these positions in `channel_order`, until the next step or eval mode."""
        self._subset.positions, self._subset.held = positions[: self.keep], True

    def train(self, mode: bool = True) -> SimpleMIL:
        """Outside of training no subset is held."""
        if not mode:
            self._subset.positions, self._subset.held = None, False
        return super().train(mode)

    def score(self, embedded: Tensor) -> Tensor:
        if not self.config.channel_subsets or self.keep == self.in_features:
            return self.attention(embedded)
        subset = self._subset
        if self.training and not subset.held:  # trained without `before_step`
            subset.positions = self._drawn()
        if subset.positions is not None:
            return self._score_subset(embedded, subset.positions.to(embedded.device))
        chunk = WINDOW_TILES.get(embedded.device.type, WINDOW_TILES["cpu"])
        return tile_by_tile(self._score_windows, embedded, dim=1, chunk=chunk)

    def _drawn(self) -> Tensor:
        generator = self.draw.generator
        device = "cpu" if generator is None else generator.device
        return torch.randperm(self.in_features, generator=generator, device=device)[: self.keep]

    def _score_subset(self, tiles: Tensor, positions: Tensor) -> Tensor:
        """n x D -> 1 x n."""
        channels = self.channel_order.index_select(0, positions)
        chosen, net = tiles.index_select(1, channels), self.attention

        def product(layer: nn.Linear) -> Tensor:
            return linear_over_tiles(chosen, layer.weight.index_select(1, channels), layer.bias)

        assert net.gate is not None, "the form without a gate has no subsets"
        hidden = net.dropout(torch.tanh(product(net.value))) * net.dropout(torch.sigmoid(product(net.gate)))
        scores: Tensor = net.weight(hidden)
        return scores.t()

    def _score_windows(self, tiles: Tensor) -> Tensor:
        """n x D -> K x n."""
        net, order = self.attention, self.channel_order
        assert net.gate is not None, "the form without a gate has one window"
        weight = torch.cat([net.value.weight, net.gate.weight]).index_select(1, order)  # 2H x D
        bias = torch.cat([net.value.bias, net.gate.bias])
        ordered = tiles.index_select(1, order)
        ends = sorted({end for start in self.window_starts for end in (start, start + self.keep)})
        products: dict[int, Tensor] = {}  # of the segments of the current window
        scores = []
        for start in self.window_starts:
            inside = [(low, high) for low, high in pairwise(ends) if start <= low and high <= start + self.keep]
            products = {low: products[low] for low, _ in inside if low in products}
            for low, high in inside:
                if low not in products:
                    products[low] = ordered[:, low:high] @ weight[:, low:high].t()
            value, gate = sum(products.values(), bias).chunk(2, dim=1)
            scores.append(net.weight(torch.tanh(value) * torch.sigmoid(gate)).t())
        return torch.cat(scores)

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        windows: Tensor = self.head(pooled)
        if self.config.combine == "mean":
            logits = windows.mean(dim=0)
        else:
            logits = windows.logsumexp(dim=0) - math.log(windows.shape[0])
        return Output(logits, scores, pooled.mean(dim=0), extras={"window_logits": windows})

    def uncertainty(self, output: Output, task: Task) -> dict[str, float]:
        windows = output.extras["window_logits"].detach().double()
        if isinstance(task, Classification):
            spread = disagreement(task.probabilities(windows))
            numbers = {"mutual_information": spread.mutual_information, "entropy": spread.entropy}
            numbers |= {f"variance_{name}": spread.variance[index] for index, name in enumerate(task.classes)}
        elif isinstance(task, Survival) and task.joint:
            numbers = {"variance_risk": member_variance(windows)[0]}
        else:
            return {}
        return {name: float(value) for name, value in numbers.items()}

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """The mean of the attention over the windows, or its standard deviation."""
        if kind == "attention":
            return super().draw_tile_map(output, kind)
        assert output.scores is not None
        return member_variance(self.normalizer(output.scores)).sqrt()


def fixed_order(channels: int) -> Tensor:
    """The order of the channels in eval mode, the same on every device."""
    return torch.randperm(channels, generator=torch.Generator().manual_seed(ORDER_SEED))


def random_order(count: int, seed: Tensor, step: int | Tensor) -> Tensor:
    """The numbers below `count` in an order that depends on seed and step alone, on every device."""
    keys = _hash(_hash(_hash(seed) + step) + torch.arange(count, device=seed.device))
    return keys.argsort(stable=True)


def _hash(numbers: Tensor) -> Tensor:
    """Integers -> 32 random bits of each."""
    for _ in range(3):
        numbers = ((numbers >> 16) ^ numbers) * 0x45D9F3B & 0xFFFFFFFF
    return (numbers >> 16) ^ numbers


def _convert(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, _LAYERS)
    hidden, in_features = state["attention.value.weight"].shape
    options = options_of(config, {"stride_divisor": "overlap", "dropout": "dropout"})
    if config.get("task") == "cox":
        options["combine"] = "logmeanexp"
    if config.get("no_feature_select"):
        options["channel_subsets"] = False
        state = {name: tensor for name, tensor in state.items() if not name.startswith("attention.gate.")}
    state["channel_order"] = fixed_order(in_features)
    return in_features, len(state["head.weight"]), {"attention": hidden, **options}, state


register_official("simple_mil", _LAYERS.values(), _convert)
