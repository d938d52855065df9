"""ASMIL: attention-stabilized multiple instance learning (Ye et al., 2025), in its folded form.

    h_i      = ReLU(W_e x_i)                                                  M x I, no bias
    z_i(k,t) = (W_q p_t + b_q)_k . (W_k h_i + b_k)_k / sqrt(d)                head k, FEAT token p_t, d = I / H
    f_t      = LayerNorm(Dropout(W_o [sum_i softmax(z(k,t))_i (W_v h_i + b_v)_k]_k + b_o))
    bag      = the same block with a trainable [CLS] query over the kept f_t
    logits   = W_c bag + b_c

The queries do not depend on the bag, so key and value projections are folded (see `blocks/folded.py`): per bag one
product M x I by I x (T H) for the scores and one for the pooling, instead of 2 T products M x I by I x I.

In training, each FEAT token is dropped with probability `drop` (if all are dropped, one is kept). The anchor and its
loss are in `attention/anchor.py`. Differences between the paper and the released code: docs/methods/asmil.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asmil.errors import AsmilError
from asmil.models.attention_pool import FoldedPoolModel
from asmil.models.base import Output, refuse_uneven
from asmil.models.blocks.embedding import STANDARDIZE_TEXT, UNUSED_NORM, EmbeddingConfig, TileEmbedding
from asmil.models.blocks.folded import FoldedProjections, folded_state
from asmil.models.blocks.randomness import RandomModule
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register


class TokenDrop(RandomModule):
    """Which of T tokens are kept in this training step, as a mask (T booleans); None when all are, as in inference.

    `rate` drops each token with that probability, independently; if none is left, one drawn uniformly is kept.
    `count` instead drops exactly that many.
    """

    def __init__(self, rate: float = 0.0, count: int | None = None) -> None:
        super().__init__()
        if not 0 <= rate <= 1:
            raise AsmilError(f"token drop = {rate}: it must lie between 0 and 1")
        self.rate = rate
        self.count = count

    def forward(self, tokens: Tensor) -> Tensor | None:
        n_tokens = tokens.shape[0]
        if not self.training or not (self.count if self.count is not None else self.rate):
            return None
        draws = self.uniform((n_tokens,), tokens)
        if self.count is not None:
            return draws.argsort().argsort() >= self.count
        kept = draws >= self.rate
        # The largest of independent uniform draws is any token with equal probability.
        return kept | ((draws == draws.max()) & ~kept.any())


class ASMILConfig(EmbeddingConfig):
    """Architecture of ASMIL."""

    tokens: int = Field(8, ge=1, description="T, the number of FEAT tokens (the paper: 8, CAMELYON-17: 16)")
    heads: int = Field(8, ge=1, description="H")
    projections: Literal["per_token", "shared"] = Field("per_token", description="one set per token, or one for all")
    drop: float = Field(0.5, ge=0, le=1, description="B, the probability that a token is dropped in training")
    drop_count: int | None = Field(None, ge=0, description="drop exactly this many tokens instead")
    dropout: float = Field(0.1, ge=0, lt=1, description="on the output of an attention block")
    init_std: float = Field(0.02, ge=0, description="standard deviation of FEAT tokens and [CLS] at the start")
    cls_zero: bool = Field(False, description="start [CLS] at zero, as the released code")
    standardize: bool = Field(False, description=STANDARDIZE_TEXT)
    token_heads: bool = Field(False, description="own the unused small heads of the released code")


@register(
    "asmil",
    summary="FEAT tokens attend to all tiles, held to an EMA anchor with a normalized sigmoid",
    paper="Ye et al., ASMIL: Attention-Stabilized Multiple Instance Learning for Whole Slide Imaging",
    year=2025,
    defaults={"anchor": {"normalizer": "nsf"}},
    presets={
        # The best of the settings compared on synthetic cohorts (docs/preset_study.md).
        "no_anchor": {"model": {"init_std": 1.0, "drop": 0.0}, "anchor": {"normalizer": "none"}},
        "released": {
            "model": {"drop_count": 4, "init_std": 1e-6, "cls_zero": True, "token_heads": True},
            "training": {"optimizer": "adamw", "weight_decay": 1e-5, "epochs": 100, "clip_norm": 5.0},
            "anchor": {
                "normalizer": "nsf",
                "temperature": 0.5,
                "start": "random",
                "update": "never",
                "divergence": "cross_entropy",
                "reduction": "mean",
            },
        },
    },
)
class ASMIL(FoldedPoolModel):
    """ASMIL; see the module's text for the formulas."""

    config_type = ASMILConfig
    score_axes = ("head", "token")
    config: ASMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: ASMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config, bias=False, standardize=config.standardize)
        width = self.embedding.width
        refuse_uneven(width, config.heads)
        if config.drop_count is not None and config.drop_count >= config.tokens:
            raise AsmilError(
                f"model.drop_count = {config.drop_count} would drop all of model.tokens = {config.tokens}; drop fewer"
            )
        sets = config.tokens if config.projections == "per_token" else 1
        self.tokens = nn.Parameter(config.init_std * torch.randn(config.tokens, width))
        self.token_block = FoldedProjections(sets, width, config.heads, config.dropout)
        self.token_drop = TokenDrop(config.drop, config.drop_count)
        cls_std = 0.0 if config.cls_zero else config.init_std
        self.cls = nn.Parameter(cls_std * torch.randn(1, width))
        self.bag_block = FoldedProjections(1, width, config.heads, config.dropout)
        self.head = nn.Linear(width, n_outputs)
        self.token_heads = (
            nn.ModuleList(nn.Linear(width, n_outputs) for _ in range(config.tokens)) if config.token_heads else None
        )

    @property
    def queries(self) -> tuple[FoldedProjections, Tensor]:
        return self.token_block, self.tokens

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        token_features = self.token_block.project_pooled(pooled)
        kept = self.token_drop(token_features)
        bag_scores = self.bag_block.score(self.cls, token_features)
        read = bag_scores if kept is None else bag_scores.masked_fill(~kept, -torch.inf)
        bag_attention = torch.softmax(read, dim=-1)
        bag_feature = self.bag_block.project_pooled(bag_attention @ token_features).squeeze(0)
        extras = {"token_features": token_features, "bag_scores": bag_scores}
        if kept is not None:
            extras["kept_rows"] = kept.repeat(self.config.heads)
        if self.token_heads is not None:
            logits = [head(row) for head, row in zip(self.token_heads, token_features, strict=True)]
            extras["token_logits"] = torch.stack(logits)
        return Output(self.head(bag_feature), scores, bag_feature, extras=extras)


def _convert_released(tensors: Tensors, config: Config) -> Converted:
    """The released layout: one module per token."""
    n_tokens = tensors["q"].shape[1]
    layers = {"embedding.layers.0": "dimreduction.fc1", "head": "Slide_classifier.fc"}
    layers |= {f"token_heads.{token}": f"classifier.{token}.fc" for token in range(n_tokens)}
    state = {"tokens": tensors["q"][0], "cls": tensors["cls"][0], **renamed(tensors, layers)}
    state |= folded_state(tensors, "token_block", [f"sub_attention.{token}" for token in range(n_tokens)])
    state |= folded_state(tensors, "bag_block", ["bag_attention"])
    return converted(state, tokens=n_tokens, token_heads=True, **options_of(config, {"n_heads": "heads"}))


register_official(
    "asmil",
    ("dimreduction.fc1", "sub_attention.0.q_proj", "Slide_classifier.fc"),
    _convert_released,
    names=("q", "cls"),
    unused=UNUSED_NORM,
)
