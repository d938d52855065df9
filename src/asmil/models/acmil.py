"""ACMIL: attention-challenging MIL (Zhang et al., 2024): several attention branches, and their top tiles masked.

GA (`arch: ga`, the default): one gated attention network with T outputs.

    h_i   = ReLU(W_e x_i)                                                     no bias
    z_ti  = w_t . (tanh(V h_i + b_V) * sigmoid(U h_i + b_U)) + b_t            branch t
    a_t   = softmax(z'_t),  z' = z with top tiles masked in training          f_t = sum_i a_ti h_i
    o_t   = W_t f_t + b_t                                                     branch logits
    logits = W_s F + b_s,  F = sum_i (mean_t a_ti) h_i = mean_t f_t

MHA (`arch: mha`): branch t is a trainable query with its own H-head attention, z = q . k / sqrt(I / H); its pooled
values, heads joined, go through a linear layer, dropout and LayerNorm (no residual) to give f_t. The slide feature
pools, head by head, with the mean over branches of the weights, and has its own value, output and norm layers. Key and
value projections are folded (see `blocks/folded.py`).

Top-K masking (STKIM), in training only: of the K' = min(K, N) highest scores of each row (a branch, or a head and
branch) floor(p K') are chosen at random and masked. Pooling and the diversity loss use the masked scores; `scores` are
those before masking, so that an anchor or a heat map never sees a masked tile.

    loss = CE(logits) + mean_t CE(o_t) + mean over pairs of branches (and heads) of cos(a_t, a_u)

With one branch the last two terms are omitted. Differences from the official code: docs/methods/acmil.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Loss, Output, refuse_uneven
from asmil.models.blocks.embedding import UNUSED_NORM, EmbeddingConfig, TileEmbedding
from asmil.models.blocks.folded import FoldedProjections, folded_state
from asmil.models.blocks.randomness import Dropout, RandomModule
from asmil.models.blocks.scoring import GATED_ATTENTION, ScoreNetwork
from asmil.models.blocks.top_tiles import top_tiles
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.tasks.base import Task

Number = TypeVar("Number", float, Tensor)


class ACMILConfig(EmbeddingConfig):
    """Architecture of ACMIL."""

    arch: Literal["ga", "mha"] = Field(
        "ga", description="gated attention, or multi-head attention of trainable queries"
    )
    branches: int = Field(5, ge=1, description="T, the number of attention branches")
    mask_top: int = Field(10, ge=0, description="K, how many of a branch's highest tiles may be masked in training")
    mask_drop: float = Field(0.6, ge=0, le=1, description="p, the share of them that is masked")
    attention: int = Field(128, ge=1, description="width of the attention network (ga)")
    heads: int = Field(8, ge=1, description="H, attention heads of a branch (mha)")
    dropout: float = Field(0.0, ge=0, lt=1, description="before the classifiers")
    block_dropout: float = Field(0.1, ge=0, lt=1, description="on the output of an attention block (mha)")
    init_std: float = Field(1e-6, ge=0, description="standard deviation of the queries at the start (mha)")


@register(
    "acmil",
    summary="several attention branches, kept different, whose top tiles are masked at random in training",
    paper="Zhang et al., Attention-Challenging Multiple Instance Learning for Whole Slide Image Classification",
    year=2024,
    presets={"official": {"training": {"optimizer": "adamw", "lr": 1e-4, "weight_decay": 1e-5, "epochs": 50}}},
)
class ACMIL(AttentionPoolModel):
    """ACMIL; see the module's text for the formulas."""

    config_type = ACMILConfig
    score_axes = ("head", "branch")
    logits_in_extras = ("branch_logits",)
    """GA has one head."""
    config: ACMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: ACMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config, bias=False)
        width = self.embedding.width
        self.branches = GatedBranches(width, config) if config.arch == "ga" else QueryBranches(width, config)
        self.masking = TopMask(config.mask_top, config.mask_drop)
        self.dropout = Dropout(config.dropout)
        self.branch_heads = nn.ModuleList(nn.Linear(width, n_outputs) for _ in range(config.branches))
        self.head = nn.Linear(width, n_outputs)

    @property
    def padding_from(self) -> int | None:
        return self.padding_for(1)

    def score(self, embedded: Tensor) -> Tensor:
        return self.branches.score(embedded)

    def forward(self, bag: Bag) -> Output:
        embedded = self.embed_bag(bag)
        scores = self.score_bag(embedded, bag)
        attention: Tensor = self.normalizer(self.masking(scores, bag.mask))
        output = self.readout(attention.to(embedded.dtype) @ embedded, scores)
        if self.masking.training:
            # what pooled; otherwise it is the normalized scores, which would be N more numbers per row to keep
            output.extras["branch_attention"] = attention
        return output

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        branch_features, slide_feature = self.branches.read(pooled)
        dropped = self.dropout(branch_features)
        branch_logits = [head(feature) for head, feature in zip(self.branch_heads, dropped, strict=True)]
        logits = self.head(self.dropout(slide_feature))
        return Output(logits, scores, slide_feature, extras={"branch_logits": torch.stack(branch_logits)})

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        """The losses of the slide and of the branches, and how alike the branches attend."""
        parts = {task.loss_name: task.loss(torch.stack([output.logits for output in outputs]), targets)}
        n_branches = self.config.branches
        if n_branches > 1:
            by_branch = torch.cat([output.extras["branch_logits"] for output in outputs])
            parts["branch"] = task.loss(by_branch, targets.repeat_interleave(n_branches, dim=0))
            alike = []
            for output in outputs:
                pooled_by = output.extras.get("branch_attention")  # only in training
                attention = self.normalizer(output.scores) if pooled_by is None else pooled_by
                alike.append(branch_similarity(attention, n_branches))
            parts["diversity"] = torch.stack(alike).mean()
        return Loss(torch.stack(list(parts.values())).sum(), parts)


class GatedBranches(nn.Module):
    """GA: T scores per tile from one gated network; the feature of a branch is its pooled vector."""

    def __init__(self, width: int, config: ACMILConfig) -> None:
        super().__init__()
        self.attention = ScoreNetwork(width, config.attention, config.branches)

    def score(self, embedded: Tensor) -> Tensor:
        """N x I -> T x N."""
        return self.attention(embedded)

    def read(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """T x I -> the features of the branches (T x I) and of the slide (I)."""
        return pooled, pooled.mean(dim=0)


class QueryBranches(nn.Module):
    """MHA: T trainable queries, each with its own multi-head attention, and a block for the slide."""

    def __init__(self, width: int, config: ACMILConfig) -> None:
        super().__init__()
        refuse_uneven(width, config.heads)
        self.queries = nn.Parameter(config.init_std * torch.randn(config.branches, width))
        self.block = FoldedProjections(config.branches, width, config.heads, config.block_dropout)
        self.slide_block = FoldedProjections(1, width, config.heads, config.block_dropout, queries=False)

    def score(self, embedded: Tensor) -> Tensor:
        """N x I -> (H T) x N, the branches of the first head first."""
        return self.block.score(self.queries, embedded)

    def read(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """(H T) x I -> the features of the branches (T x I) and of the slide (I)."""
        by_head = pooled.view(self.block.heads, -1, pooled.shape[1]).mean(dim=1)
        return self.block.project_pooled(pooled), self.slide_block.project_pooled(by_head).squeeze(0)


class TopMask(RandomModule):
    """Masks a random part of the highest scores of each row (minus infinity, in a copy) while training."""

    def __init__(self, top: int, share: float) -> None:
        super().__init__()
        self.top = top
        self.share = share

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.training or math.floor(self._part(self.top)) == 0:
            return scores
        top = top_tiles(scores, self.top)
        drawn = self.uniform(top.shape, scores)
        if mask is None:
            tiles = scores.shape[1]
            count = min(math.floor(self._part(min(self.top, tiles))), tiles - 1)
            return scores.scatter(1, top.gather(1, drawn.argsort(dim=1)[:, :count]), -torch.inf)
        n_tiles, place = mask.sum(), torch.arange(top.shape[1], device=scores.device)
        counts = self._part(n_tiles.double().clamp_max(self.top)).floor().clamp_max(n_tiles - 1)
        order = drawn.masked_fill(place >= n_tiles, torch.inf).argsort(dim=1)  # padding is chosen last
        chosen = top.gather(1, order)
        return scores.scatter(1, chosen, scores.gather(1, chosen).masked_fill(place < counts, -torch.inf))

    def _part(self, top: Number) -> Number:
        """The share of the highest tiles; the small term undoes the rounding of products such as 100 * 0.29."""
        return top * self.share + 1e-9


def branch_similarity(attention: Tensor, branches: int) -> Tensor:
    """Mean cosine similarity of two branches' attention, over pairs and heads; (H T) x N, T > 1.

    By |sum_t u_t|^2 = T + 2 sum over pairs of u_t . u_s, for the directions u: no product that autocast would round.
    """
    directions = functional.normalize(attention.view(-1, branches, attention.shape[1]), dim=-1)
    length = directions.sum(dim=1).square().sum(dim=-1)
    return ((length - branches) / (branches * (branches - 1))).mean()


_WORDS = {"n_masked_patch": "mask_top", "num_masked": "mask_top", "mask_drop": "mask_drop"}
_MHA_WORDS = _WORDS | dict.fromkeys(("num_heads", "n_heads", "heads"), "heads")


def _convert_ga(tensors: Tensors, config: Config) -> Converted:
    n_branches, hidden = tensors["attention.attention_weights.weight"].shape
    state = renamed(tensors, {f"branches.{ours}": theirs for ours, theirs in GATED_ATTENTION.items()})
    state |= _shared_state(tensors, n_branches)
    return converted(state, arch="ga", branches=n_branches, attention=hidden, **options_of(config, _WORDS))


def _convert_mha(tensors: Tensors, config: Config) -> Converted:
    n_branches = tensors["q"].shape[1]
    state = {"branches.queries": tensors["q"][0], **_shared_state(tensors, n_branches)}
    state |= folded_state(tensors, "branches.block", [f"sub_attention.{branch}" for branch in range(n_branches)])
    state |= folded_state(tensors, "branches.slide_block", ["bag_attention"], queries=False)
    return converted(state, arch="mha", branches=n_branches, **options_of(config, _MHA_WORDS))


def _shared_state(tensors: Tensors, n_branches: int) -> dict[str, Tensor]:
    """The embedding and the classifiers."""
    layers = {"embedding.layers.0": "dimreduction.fc1", "head": "Slide_classifier.fc"}
    return renamed(tensors, layers | {f"branch_heads.{i}": f"classifier.{i}.fc" for i in range(n_branches)})


_SHARED = ("dimreduction.fc1", "classifier.0.fc", "Slide_classifier.fc")
register_official("acmil", (*_SHARED, *GATED_ATTENTION.values()), _convert_ga, unused=UNUSED_NORM)
register_official(
    "acmil",
    (*_SHARED, "sub_attention.0.q_proj", "bag_attention.v_proj"),
    _convert_mha,
    # ASMIL's layout has all these names too, and its own queries in the last block.
    applies=lambda tensors, config: "bag_attention.q_proj.weight" not in tensors,
    names=("q",),
    unused=UNUSED_NORM,
)
