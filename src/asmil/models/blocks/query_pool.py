"""Attention of one learned query with several heads, the base that the authors of ACMIL and AEM call MHA.

    h_i  = act(W_e x_i)
    z_ik = (W_q p + b_q)_k . (W_k h_i + b_k)_k / sqrt(d)                 head k, query p, d = I / H
    b    = LayerNorm(Dropout(W_o [sum_i softmax(z_:k)_i (W_v h_i + b_v)_k]_k + b_o))
    logits = W_c b + b_c

The query does not depend on the bag, so no key and no value of a tile is formed (`blocks/folded.py`).
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Output, refuse_uneven
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.folded import FoldedProjections, embed_and_attend, single_layer


class QueryPoolConfig(EmbeddingConfig):
    """Architecture of a query pool."""

    heads: int = Field(8, ge=1, description="H")
    dropout: float = Field(0.1, ge=0, lt=1, description="on the output of the attention block")
    init_std: float = Field(1e-6, ge=0, description="standard deviation of the query at the start")


class QueryPool(AttentionPoolModel):
    """The model; it is the base of other methods and not registered itself."""

    config_type = QueryPoolConfig
    score_axes = ("head",)
    config: QueryPoolConfig

    def __init__(self, in_features: int, n_outputs: int, config: QueryPoolConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config, bias=False)
        width = self.embedding.width
        refuse_uneven(width, config.heads)
        self.query = nn.Parameter(config.init_std * torch.randn(1, width))
        self.block = FoldedProjections(1, width, config.heads, config.dropout)
        self.head = nn.Linear(width, n_outputs)

    @property
    def padding_from(self) -> int | None:
        return self.padding_for(1)

    def score(self, embedded: Tensor) -> Tensor:
        vectors, constants = self.block.fold_queries(self.query)
        return torch.addmm(constants.to(embedded.dtype), vectors.to(embedded.dtype), embedded.t())

    def forward(self, bag: Bag) -> Output:
        weight = single_layer(self.embedding, self.normalizer, bag)
        if weight is None:
            return super().forward(bag)
        vectors, constants = self.block.fold_queries(self.query)
        scores, pooled = embed_and_attend(bag.features.to(weight.dtype), weight, vectors, constants)
        return self.readout(pooled, scores)

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        embedding = self.block.project_pooled(pooled).squeeze(0)
        return Output(self.head(embedding), scores, embedding)
