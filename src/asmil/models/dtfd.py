"""DTFD-MIL: double-tier feature distillation (Zhang et al., 2022).

The N tiles of a slide are assigned at random to G pseudo-bags; h_i and z_i do not depend on the split.

    h_i = ReLU(W_e x_i), then R times h <- h + ReLU(W_2 ReLU(W_1 h))          no biases, I wide
    z_i = w . (tanh(V h_i + b_V) * sigmoid(U h_i + b_U)) + b_w                tier-1 score
    a   = softmax of z within each pseudo-bag      F_g = sum_{i in g} a_i h_i      s_g = W F_g + b
    L_i = W (a_i h_i)                              evidence of a tile for each class, without the bias
    p_i = softmax over classes of L_i, last class
    f   = the distilled features of each pseudo-bag, in the order of the pseudo-bags:
          AFS      F_g
          MaxS     h of the k tiles with the largest p_i, k = total_instance // G
          MaxMinS  these, then h of the k tiles with the smallest p_i (in descending order)
    logits = W' sum_j softmax(z'(f))_j f_j + b'    tier 2: its own gated attention and head

The loss is CE(logits) + mean_g CE(s_g). The distilled vectors are detached, so the slide's loss trains tier 2 alone and
the pseudo-bags' loss tier 1 alone: one step makes the updates of the two official optimizers. The gradients of the four
modules are clipped separately.

In inference a slide has a fixed split, drawn from its name and size; `inference_splits` averages the probabilities of
several. Edge cases and differences from the official code: docs/methods/dtfd.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import Loss, MILModel, Output, masked_scores, refuse_padding
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.exporting import warn_of_fixed_size
from asmil.models.blocks.randomness import Dropout, RandomModule
from asmil.models.blocks.scoring import GATED_ATTENTION, ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.tasks.base import Task

PSEUDO_BAGS = "pseudo_bags"
"""The extras of a bag that hold a split: N numbers, tiles with the same number are together."""


@dataclass(frozen=True)
class Split:
    """The pseudo-bags of a bag.

    ids: N, the pseudo-bag of each tile, from 0; padding is in none, its numbers are larger
    sizes: tiles of each pseudo-bag; in a padded bag, the fewest it may have
    """

    ids: Tensor
    sizes: Sequence[int]


class PseudoBags(RandomModule):
    """Which pseudo-bag each tile of a bag is in.

    In training dealt at random; otherwise by the name and size of the bag and the number of the repeat, whatever else
    was drawn before. A split in the extras of the bag is used as it is.

    fewest: tiles of the shortest bag that may be padded
    """

    def __init__(self, groups: int, fewest: int) -> None:
        super().__init__()
        self.groups, self.fewest = groups, fewest

    def forward(self, bag: Bag, repeat: int = 0) -> Split:
        if PSEUDO_BAGS in bag.extras:
            return _given(bag)
        warn_of_fixed_size("its tiles are dealt into pseudo-bags by a permutation of their number")
        tiles = len(bag) if bag.mask is None else self.fewest
        groups = min(self.groups, tiles)
        sizes = [tiles // groups + (group < tiles % groups) for group in range(groups)]
        if self.training:
            drawn = self.uniform((len(bag),), bag.features)
            if bag.mask is None:
                return Split(deal(drawn.argsort(), groups), sizes)
            return Split(deal(drawn.masked_fill(~bag.mask, torch.inf).argsort(), groups, bag.mask.sum()), sizes)
        ids = bag.extras.get(table_name(repeat))
        ids = self.of_inference(bag, repeat) if ids is None else ids
        return Split(ids if bag.mask is None else ids.masked_fill(~bag.mask, groups), sizes)

    def of_inference(self, bag: Bag, repeat: int) -> Tensor:
        """The pseudo-bag of each tile of a bag in inference."""
        refuse_padding(bag)
        digest = hashlib.sha256(f"{bag.id}/{len(bag)}/{repeat}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
        order = torch.randperm(len(bag), generator=generator).to(bag.features.device)
        return deal(order, min(self.groups, len(bag)))


def table_name(repeat: int) -> str:
    """The extras of a prepared bag that hold one of its splits in inference."""
    return f"inference_split_{repeat}"


def deal(order: Tensor, groups: int, tiles: Tensor | None = None) -> Tensor:
    """The pseudo-bag of each tile, when the tiles in this order are cut into `groups` runs.

    The sizes differ by at most one, the larger runs first.

    tiles: the number of tiles, of a padded bag; the padding comes last in the order, and gets larger numbers. It is at
        least `groups`, but where trainings share a step, one that waits may compute a shorter bag in vain
    """
    place = torch.arange(len(order), device=order.device)
    count = len(order) if tiles is None else tiles.clamp(min=groups)
    size, larger = count // groups, count % groups
    in_larger = larger * (size + 1)
    runs = torch.where(place < in_larger, place // (size + 1), larger + (place - in_larger) // size)
    return torch.empty_like(order).scatter(0, order, runs)


def _given(bag: Bag) -> Split:
    given = torch.as_tensor(bag.extras[PSEUDO_BAGS], device=bag.features.device)
    if given.shape != (len(bag),):
        raise AsmilError(
            f"{bag.id}: its pseudo_bags have shape {tuple(given.shape)}; give one number for each of {len(bag)} tiles"
        )
    groups, ids = torch.unique(given, return_inverse=True)
    return Split(ids, torch.bincount(ids, minlength=len(groups)).tolist())


class DTFDConfig(EmbeddingConfig):
    """Architecture of DTFD-MIL."""

    groups: int = Field(4, ge=1, description="G, pseudo-bags per slide")
    distill: Literal["AFS", "MaxS", "MaxMinS"] = Field(
        "AFS", description="what tier 2 gets of a pseudo-bag: its feature, its top tiles, or its top and bottom tiles"
    )
    total_instance: int = Field(4, ge=1, description="top tiles of all pseudo-bags together (MaxS, MaxMinS)")
    attention: int = Field(128, ge=1, description="width of both attention networks")
    residual_blocks: int = Field(0, ge=0, description="R, residual blocks after the embedding")
    dropout: float = Field(0.0, ge=0, lt=1, description="before the tier-1 classifier")
    tier2_dropout: float = Field(0.0, ge=0, lt=1, description="before the tier-2 classifier")
    clip_norm: float | None = Field(5.0, gt=0, description="largest norm of the gradient of each of the four modules")
    inference_splits: int = Field(1, ge=1, description="splits whose softmax probabilities are averaged in inference")


@register(
    "dtfd",
    summary="attention over random pseudo-bags, then attention over the distilled features of each",
    paper="Zhang et al., DTFD-MIL: Double-Tier Feature Distillation Multiple Instance Learning for Histopathology "
    "Whole Slide Image Classification",
    year=2022,
    presets={
        "official": {
            "model": {"inner": 512},
            "training": {
                "lr": 1e-4,
                "weight_decay": 1e-4,
                "epochs": 200,
                "schedule": "constant",
                "lr_drops": [100],
                "lr_drop_factor": 0.2,
            },
        }
    },
)
class DTFD(MILModel):
    """DTFD-MIL; see the module's text for the formulas."""

    config_type = DTFDConfig
    score_axes = ("branch",)
    smooths = ("late",)
    logits_in_extras = ("tier1_logits",)
    map_kinds = ("attention", "probability")
    weighted_instance_logits = True
    config: DTFDConfig

    def __init__(self, in_features: int, n_outputs: int, config: DTFDConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        if n_outputs == 1:
            raise AsmilError(
                "dtfd cannot have a single output: it ranks tiles by a softmax over classes, which is 1 for every tile "
                "then; give it one output per class"
            )
        if config.distill != "AFS" and config.total_instance < config.groups:
            raise AsmilError(
                f"model.total_instance = {config.total_instance} leaves no tile for each of model.groups = "
                f"{config.groups} pseudo-bags; raise it to at least {config.groups}"
            )
        self.embedding = TileEmbedding(in_features, config, bias=False)
        width = self.embedding.width
        self.residual = nn.Sequential(*(ResidualBlock(width) for _ in range(config.residual_blocks)))
        self.attention = ScoreNetwork(width, config.attention)
        self.classifier = nn.Linear(width, n_outputs)
        self.dropout = Dropout(config.dropout)
        self.tier2 = SecondTier(width, n_outputs, config.attention, config.tier2_dropout)
        self.k = config.total_instance // config.groups
        """Tiles that are distilled from a pseudo-bag, from each end."""
        fewest = config.groups if config.distill == "AFS" else config.groups * self.k
        self.split = PseudoBags(config.groups, fewest)

    @property
    def tile_tables(self) -> tuple[str, ...]:
        return tuple(map(table_name, range(self.config.inference_splits)))

    def prepare(self, bag: Bag) -> Bag:
        """The bag with its splits in inference, unless it has a split of its own."""
        bag = super().prepare(bag)
        if PSEUDO_BAGS in bag.extras:
            return bag
        splits = {name: self.split.of_inference(bag, repeat) for repeat, name in enumerate(self.tile_tables)}
        return replace(bag, extras={**bag.extras, **splits})

    @property
    def padding_from(self) -> int | None:
        return None if self.smoothed or self.embedding.mil_dropout.top else self.split.fewest

    @property
    def classifies_tiles(self) -> bool:
        return True

    def embed(self, features: Tensor) -> Tensor:
        """N x D -> N x I, tile by tile."""
        return self.residual(self.embedding(features))

    def attend(self, bag: Bag) -> Tensor:
        return self._score(self.embed(bag.features), bag)

    def _score(self, embedded: Tensor, bag: Bag) -> Tensor:
        return masked_scores(self.smooth_scores(self.attention(embedded), bag), bag)

    def forward(self, bag: Bag) -> Output:
        embedded = self.embed(bag.features)
        scores = self._score(embedded, bag)
        with torch.no_grad():
            class_scores = functional.linear(embedded, self.classifier.weight)
        fixed = self.training or PSEUDO_BAGS in bag.extras
        splits = 1 if fixed else self.config.inference_splits
        return _averaged([self._read(embedded, scores, class_scores, self.split(bag, i)) for i in range(splits)])

    def _read(self, embedded: Tensor, scores: Tensor, class_scores: Tensor, split: Split) -> Output:
        """The output for one split."""
        ids, n_groups = split.ids, len(split.sizes)
        own = ids == torch.arange(n_groups, device=ids.device).unsqueeze(1)
        attention: Tensor = self.normalizer(scores.expand(n_groups, -1).masked_fill(~own, -torch.inf))
        features = attention.to(embedded.dtype) @ embedded
        tile_attention = attention.detach().sum(dim=0)
        evidence = tile_attention.unsqueeze(1) * class_scores
        extras = {
            PSEUDO_BAGS: ids,
            "tier1_attention": tile_attention,
            "tier1_features": features,
            "tier1_logits": self.classifier(self.dropout(features)),
        }
        if self.config.distill == "AFS":
            distilled = features.detach()
        else:
            extras["selected"] = self._select(evidence, own, split)
            distilled = embedded.detach()[extras["selected"]]
        logits, slide_feature, extras["tier2_scores"] = self.tier2(distilled)
        return Output(logits, scores, slide_feature, evidence, extras)

    def _select(self, evidence: Tensor, own: Tensor, split: Split) -> Tensor:
        """The tiles that are distilled, pseudo-bag by pseudo-bag; own: G x N, which tiles are in which pseudo-bag."""
        order = torch.argsort(_rivals(evidence), stable=True)
        order = order[torch.argsort(split.ids[order], stable=True)]
        ends = own.sum(dim=1).cumsum(0)
        starts = functional.pad(ends[:-1], (1, 0))
        places = []
        for start, end, size in zip(starts.split(1), ends.split(1), split.sizes, strict=True):
            count = torch.arange(min(self.k, size), device=order.device)
            places.append(start + count)
            if self.config.distill == "MaxMinS":
                places.append(end - len(count) + count)
        # of a bag that is computed in vain (see `deal`), they may be outside
        return order[torch.cat(places).clamp(0, len(order) - 1)]

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        """The slide's loss (it trains tier 2) and the mean loss of its pseudo-bags (it trains tier 1)."""
        slide = task.loss(torch.stack([output.logits for output in outputs]), targets)
        tier1 = []
        for output, target in zip(outputs, targets.split(1), strict=True):
            logits = output.extras["tier1_logits"]
            tier1.append(task.loss(logits, target.repeat_interleave(len(logits), dim=0)))
        pseudo_bags = torch.stack(tier1).mean()
        return Loss(slide + pseudo_bags, {task.loss_name: slide, "tier1": pseudo_bags})

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        if kind == "attention":
            return super().draw_tile_map(output, kind)
        assert output.instance_logits is not None
        return torch.softmax(output.instance_logits, dim=1)[:, -1]

    def parameter_groups(self) -> list[dict[str, Any]]:
        smoothing = [] if self.tile_smoothing is None else [self.tile_smoothing]
        scoring = [self.attention, self.normalizer, *smoothing]
        parts = ([self.embedding, self.residual], scoring, [self.classifier], [self.tier2])
        clip = {} if self.config.clip_norm is None else {"clip_norm": self.config.clip_norm}
        return [{"params": [p for module in modules for p in module.parameters()], **clip} for modules in parts]


class ResidualBlock(nn.Module):
    """h + ReLU(W_2 ReLU(W_1 h))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)

    def forward(self, embedded: Tensor) -> Tensor:
        return embedded + functional.relu_(self.second(functional.relu_(self.first(embedded))))


class SecondTier(nn.Module):
    """Gated attention over distilled vectors (M x I): logits (C), the pooled vector (I) and the scores (1 x M)."""

    def __init__(self, width: int, n_outputs: int, attention: int, dropout: float) -> None:
        super().__init__()
        self.attention = ScoreNetwork(width, attention)
        self.dropout = Dropout(dropout)
        self.classifier = nn.Linear(width, n_outputs)

    def forward(self, distilled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores: Tensor = self.attention(distilled)
        pooled = (torch.softmax(scores, dim=-1).to(distilled.dtype) @ distilled).squeeze(0)
        return self.classifier(self.dropout(pooled)), pooled, scores


def _rivals(evidence: Tensor) -> Tensor:
    """A number that falls as p_i rises: sum_c (exp(L_ic - L_iC) - 1) = 1 / p_i - C, for the last class C.

    Unlike p_i itself it keeps its digits when all evidence is close to 0, as it is when a tile's attention is 1 / n.
    """
    return torch.expm1(evidence - evidence[:, -1:]).sum(dim=1)


def _averaged(outputs: Sequence[Output]) -> Output:
    """The mean of several splits: probabilities of the slide (as their logarithm), feature and evidence."""
    if len(outputs) == 1:
        return outputs[0]
    log_p = torch.stack([torch.log_softmax(output.logits, dim=-1) for output in outputs])
    evidence = [output.instance_logits for output in outputs if output.instance_logits is not None]
    return replace(
        outputs[0],
        logits=log_p.logsumexp(dim=0) - math.log(len(outputs)),
        embedding=torch.stack([output.embedding for output in outputs]).mean(dim=0),
        instance_logits=torch.stack(evidence).mean(dim=0),
    )


_LAYERS = {
    "embedding.layers.0": "dim_reduction.fc1",
    "classifier": "classifier.fc",
    **GATED_ATTENTION,
    **{f"tier2.{ours}": f"att_classifier.{theirs}" for ours, theirs in GATED_ATTENTION.items()},
    "tier2.classifier": "att_classifier.classifier.fc",
}


def _convert_official(tensors: Tensors, config: Config) -> Converted:
    """The four official modules under one parent."""
    layers = dict(_LAYERS)
    blocks = 0
    while f"dim_reduction.resBlocks.{blocks}.block.0.weight" in tensors:
        block = f"dim_reduction.resBlocks.{blocks}.block"
        layers |= {f"residual.{blocks}.first": f"{block}.0", f"residual.{blocks}.second": f"{block}.2"}
        blocks += 1
    state = renamed(tensors, layers)
    options = {"groups": 4} | options_of(config, _WORDS)
    options.setdefault("total_instance", options["groups"] * config.get("instances_per_group", 1))
    options |= {"attention": len(state["attention.value.weight"]), "residual_blocks": blocks}
    return converted(state, n_outputs=len(state["classifier.weight"]), **options)


_WORDS = {
    **dict.fromkeys(("groups", "numGroup", "num_groups"), "groups"),
    **dict.fromkeys(("distillation", "distill_type", "distill"), "distill"),
    **dict.fromkeys(("grad_clipping", "grad_clip_norm"), "clip_norm"),
    "total_instance": "total_instance",
}
_IDENTIFYING = [layer for layer in _LAYERS.values() if not layer.endswith("attention_weights")]
register_official("dtfd", _IDENTIFYING, _convert_official, unused=("dim_reduction.bn",))
