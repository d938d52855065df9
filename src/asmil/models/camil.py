"""CAMIL: attention guided by neighboring tiles (Fourkioti, De Vries, Bakal, 2024).

                     paper (default)                                   official
    x_i              W_p f_i + b_p (f_i itself where D = d)            f_i
    T                x + Nystrom(LayerNorm(x))                         x + Nystrom(x)
    r_i              sum_j A_ij (W_q T_i) . (W_k T_j) / sqrt(q)        the same                    q: width of W_q
    V_i              W_v T_i                                           W_v x_i + b_v
    L_i              softmax(r)_i V_i                                  the same
    M_i              s L_i + (1 - s) T_i, s = sigmoid(L_i)             2 g^2 L_i + 2 (1 - g^2) T_i, g = sigmoid(-L_i)
    z_i              w . (tanh(V T_i + b_V) * sigmoid(U T_i + b_U))    w . (tanh(V M_i) * sigmoid(U M_i))
    bag              sum_i softmax(z)_i M_i                            the same
    logits           W_c bag + b_c                                     the same
    A_ij             exp(-||f_i - f_j|| / sqrt(D)) for the 8           exp(-normalized cosine distance) for the 7
                     nearest tiles, A_ii = 1                           nearest tiles, A_ii = the largest of the row

The products q . k are needed only where A is not 0, and r_i = T_i (W_q^T W_k) (A T)_i / sqrt(q): one sparse product and
one matrix per bag instead of two projections of every tile and N x N products.

`paper` follows the paper's equations as in torchmil, `official` the released network; they are different networks.
Differences and edge cases: docs/methods/camil.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import MILModel, ModelConfig, Output
from asmil.models.blocks.graph import Adjacency, adjacency, weighted_sum
from asmil.models.blocks.layers import start_linear, tile_by_tile
from asmil.models.blocks.neighbors import given_edges, nearest_edges
from asmil.models.blocks.nystrom import NystromAttention, ValueResidual
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register

PAPER_NEIGHBORS = 8
OFFICIAL_NEIGHBORS, OFFICIAL_NORMALIZED = 7, 15
_CHUNK_CENTERS = 256


class CAMILConfig(ModelConfig):
    """Architecture of CAMIL."""

    variant: Literal["paper", "official"] = Field("paper", description="the paper's equations, or the released network")
    inner: int | None = Field(None, ge=1, description="d; by default 512 (official: the feature width)")
    heads: int | None = Field(None, ge=1, description="of the Nystrom attention; by default 4 (official: 8)")
    head_width: int = Field(64, ge=1, description="official: width of a head (paper: d / heads)")
    landmarks: int = Field(256, ge=1, description="of the Nystrom attention")
    iterations: int = Field(6, ge=1, description="of its pseudo-inverse")
    kernel: int = Field(33, ge=1, description="official: width of the value residual's convolution over heads")
    queries: int | None = Field(
        None, ge=1, description="q, width of the neighbor attention; by default d (official: 256)"
    )
    attention: int = Field(128, ge=1, description="width of the pooling attention network")
    gated: bool = Field(True, description="gated pooling attention, or plain")
    mlp: bool = Field(False, description="paper: a layer d to 4 d to d after the Nystrom attention")


@register(
    "camil",
    summary="self-attention over all tiles, weighed by how alike neighboring tiles are",
    paper="Fourkioti et al., CAMIL: Context-Aware Multiple Instance Learning for Cancer Detection and Subtyping in "
    "Whole Slide Images",
    year=2024,
    presets={
        "official": {
            "model": {"variant": "official"},
            "training": {
                "lr": 2e-4,
                "weight_decay": 0.0,
                "epochs": 30,
                "schedule": "constant",
                "select": "loss",
                "early_stopping": 20,
            },
        }
    },
)
class CAMIL(MILModel):
    """CAMIL; see the module's text for the formulas.

    A bag may have its own `extras["edges"]` (2 x E, [center, neighbor]): neighbors without self, or, with
    `extras["edge_weights"]` (E), all of A as it is. `prepare` adds `extras["adjacency"]`, A as a sparse matrix.
    """

    config_type = CAMILConfig
    score_axes = ("branch",)
    smooths = ("late",)
    map_kinds = ("attention", "neighbors")
    config: CAMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: CAMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.is_official = config.variant == "official"
        width = config.inner or (in_features if self.is_official else 512)
        self.projection = nn.Linear(in_features, width) if width != in_features else None
        self.norm = None if self.is_official else nn.LayerNorm(width)
        heads = config.heads or (8 if self.is_official else 4)
        self.nystrom = NystromAttention(
            width,
            heads,
            config.landmarks,
            config.head_width if self.is_official else None,
            config.iterations,
            residual_kernel=None,
            out_projection=self.is_official,
            dropout=0.0,
            residual=HeadConvolution(heads, config.head_width, config.kernel) if self.is_official else None,
        )
        self.mlp = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            if config.mlp and not self.is_official
            else None
        )
        queries = config.queries or (256 if self.is_official else width)
        self.query = nn.Linear(width, queries, bias=False)
        self.key = nn.Linear(width, queries, bias=False)
        self.value = nn.Linear(width, width, bias=self.is_official)
        self.attention = ScoreNetwork(
            width, config.attention, gated=config.gated, bias=not self.is_official, out_bias=False
        )
        self.head = nn.Linear(width, n_outputs)
        if self.is_official:
            start_linear(self, nn.init.xavier_uniform_)  # as in Keras

    def prepare(self, bag: Bag) -> Bag:
        bag = super().prepare(bag)
        if "adjacency" in bag.extras:
            return bag
        edges, weights = given_edges(bag), bag.extras.get("edge_weights")
        if edges is None:
            edges = nearest_edges(bag, OFFICIAL_NORMALIZED if self.is_official else PAPER_NEIGHBORS, "CAMIL")
            weights = None
        if weights is None and self.is_official:
            edges, weights = official_similarity(bag.features, edges, OFFICIAL_NEIGHBORS)
        elif weights is None:
            edges, weights = paper_similarity(bag.features, edges)
        elif len(weights) != edges.shape[1]:
            raise AsmilError(f"{bag.id}: {len(weights)} edge weights for {edges.shape[1]} edges; they must match")
        matrix = adjacency(edges[0], edges[1], len(bag), weights)
        return replace(bag, extras={**bag.extras, "adjacency": matrix})

    def tiles(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """x and T of the module's text, N x d each."""
        x = tile_by_tile(self._project, features)
        attended: Tensor = self.nystrom(x if self.norm is None else self.norm(x))
        whole = x + attended
        mlp = self.mlp
        return x, whole if mlp is None else tile_by_tile(lambda rows: rows + mlp(rows), whole)

    def _project(self, features: Tensor) -> Tensor:
        features = features.to(self.nystrom.to_qkv.weight.dtype)
        return features if self.projection is None else self.projection(features)

    def neighbor_scores(self, whole: Tensor, matrix: Adjacency) -> Tensor:
        """r of the module's text, N, from T and A."""
        folded = self.query.weight.t() @ self.key.weight * self.query.out_features**-0.5
        near = weighted_sum(matrix, whole)
        return tile_by_tile(lambda rows, around: ((rows @ folded) * around).sum(dim=1), whole, near)

    def local_tiles(self, x: Tensor, whole: Tensor, weights: Tensor) -> Tensor:
        """L of the module's text, N x d, from x, T and softmax(r) (N)."""
        values: Tensor = self.value(x if self.is_official else whole)
        return weights.unsqueeze(1).to(values.dtype) * values

    def fuse(self, local: Tensor, whole: Tensor) -> Tensor:
        """M of the module's text, N x d, from L and T."""
        local = local.to(whole.dtype)  # under autocast the values have half precision
        if self.is_official:
            gate = torch.sigmoid(-local).square()
            return 2 * local * gate + 2 * whole * (1 - gate)
        return torch.lerp(whole, local, torch.sigmoid(local))

    def _fused(self, bag: Bag) -> tuple[Tensor, Tensor, Tensor]:
        """T, M (N x d each) and r (N) of a bag."""
        x, whole = self.tiles(bag.features)
        scores = self.neighbor_scores(whole, self.prepare(bag).extras["adjacency"])
        weights = torch.softmax(scores, dim=0)
        fused = tile_by_tile(lambda *rows: self.fuse(self.local_tiles(*rows), rows[1]), x, whole, weights)
        return whole, fused, scores

    def attend(self, bag: Bag) -> Tensor:
        scored = self._fused(bag)[1] if self.is_official else self.tiles(bag.features)[1]
        return self.smooth_scores(tile_by_tile(self.attention, scored, dim=1), bag)

    def forward(self, bag: Bag) -> Output:
        whole, fused, neighbor_scores = self._fused(bag)
        scores = self.smooth_scores(tile_by_tile(self.attention, fused if self.is_official else whole, dim=1), bag)
        embedding = (self.normalizer(scores).to(fused.dtype) @ fused).squeeze(0)
        return Output(self.head(embedding), scores, embedding, extras={"neighbor_scores": neighbor_scores})

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """`attention`: of the pooling. `neighbors`: softmax(r), how much a tile agrees with its surroundings."""
        if kind == "neighbors":
            return torch.softmax(output.extras["neighbor_scores"], dim=0)
        return super().draw_tile_map(output, kind)


def paper_similarity(features: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Every tile's edge to itself (weight 1), then the edges, with weights exp(-||x_i - x_j|| / sqrt(D)).

    features: N x D, any floating type; edges: 2 x E, [center, neighbor], without self
    """
    edges, rank = _ranked(edges, len(features))
    distances = _compared(features, edges, rank, lambda x, near: (near - x.unsqueeze(1)).norm(dim=2))
    weights = torch.exp(-distances / math.sqrt(features.shape[1]))
    return _with_selves(edges, weights, weights.new_ones(len(features)))


def official_similarity(features: Tensor, edges: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Every tile's edge to itself, then those to its first `keep` neighbors, with weights exp(-d).

    d is the cosine distance (0 where a tile is all zeros), divided by the L2 norm of ALL listed distances of the
    center, kept or not. A tile's weight to itself is its largest to a listed neighbor (1 without neighbors).

    features: N x D, any floating type; edges: 2 x E, [center, neighbor], nearest first within a center, without self
    """
    n_tiles = len(features)
    edges, rank = _ranked(edges, n_tiles)
    distances = _compared(features, edges, rank, _cosine_distance)
    squares = distances.new_zeros(n_tiles).index_add_(0, edges[0], distances.square())
    norms = torch.where(squares > 0, squares.sqrt(), 1.0)
    weights = torch.exp(-distances / norms[edges[0]])
    own = weights.new_ones(n_tiles).scatter_reduce_(0, edges[0], weights, "amax", include_self=False)
    kept = rank < keep
    return _with_selves(edges[:, kept], weights[kept], own)


def _cosine_distance(x: Tensor, near: Tensor) -> Tensor:
    """n x D and n x K x D -> n x K."""
    lengths = x.norm(dim=1, keepdim=True) * near.norm(dim=2)
    return torch.where(lengths > 0, 1 - torch.bmm(near, x.unsqueeze(2)).squeeze(2) / lengths, 0.0)


def _ranked(edges: Tensor, n_tiles: int) -> tuple[Tensor, Tensor]:
    """The edges sorted by center, in their order within a center, and the rank of each within its center."""
    edges = edges[:, torch.argsort(edges[0], stable=True)]
    counts = torch.bincount(edges[0], minlength=n_tiles)
    return edges, torch.arange(edges.shape[1], device=edges.device) - (counts.cumsum(0) - counts)[edges[0]]


def _compared(features: Tensor, edges: Tensor, rank: Tensor, compare: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`compare(centers n x D, their neighbors n x K x D) -> n x K` for every edge, some centers at a time: E."""
    if edges.shape[1] == 0:
        return torch.zeros(0, device=edges.device)
    table = torch.arange(len(features), device=edges.device).unsqueeze(1).repeat(1, int(rank.max()) + 1)
    table[edges[0], rank] = edges[1]
    parts = zip(features.split(_CHUNK_CENTERS), table.split(_CHUNK_CENTERS), strict=True)
    values = torch.cat([compare(rows.float(), features[near].float()) for rows, near in parts])
    return values[edges[0], rank]


def _with_selves(edges: Tensor, weights: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    selves = torch.arange(len(own), device=edges.device).expand(2, -1)
    return torch.cat([selves, edges], dim=1), torch.cat([own, weights])


class HeadConvolution(ValueResidual):
    """The official value residual: a convolution over the HEADS of every token, in blocks of features.

        out[a, s, o] = sum_{b, c} values[b, s, block(o) p + c] weight[b - a + kernel // 2, c, o]      a, b heads

    The published layout has channels and heads exchanged, so it mixes heads and blocks of p = h / H features and leaves
    neighboring tokens alone. Only offsets below H matter: it is one (H p) x (H p) matrix per block.
    weight: kernel x p x h
    """

    reach = 0

    def __init__(self, heads: int, head_width: int, kernel: int) -> None:
        super().__init__()
        if head_width % heads:
            raise AsmilError(
                f"head_width = {head_width}: the official value residual needs a multiple of the {heads} heads"
            )
        self.heads = heads
        block = head_width // heads
        self.weight = nn.Parameter(torch.empty(kernel, block, head_width))
        bound = math.sqrt(6 / (kernel * (block + head_width)))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, values: Tensor) -> Tensor:
        heads, n_tokens, width = values.shape
        by_block = values.view(heads, n_tokens, self.heads, -1).permute(2, 1, 0, 3).reshape(self.heads, n_tokens, -1)
        mixed = by_block @ self._matrices().to(values.dtype)
        return mixed.view(self.heads, n_tokens, heads, -1).permute(2, 1, 0, 3).reshape(heads, n_tokens, width)

    def _matrices(self) -> Tensor:
        """H x (H p) x (H p), from (head, feature) to (head, feature)."""
        kernel, block, _ = self.weight.shape
        head = torch.arange(self.heads, device=self.weight.device)
        offset = head.unsqueeze(1) - head + (kernel - 1) // 2
        inside = (offset >= 0) & (offset < kernel)
        taps = self.weight[offset.clamp(0, kernel - 1)] * inside[..., None, None]
        by_block = taps.view(self.heads, self.heads, block, self.heads, block)
        return by_block.permute(3, 0, 2, 1, 4).reshape(self.heads, self.heads * block, self.heads * block)


def _convert_paper(tensors: Tensors, config: Config) -> Converted:
    block = "nystrom_transformer_layer"
    layers = {
        "norm": f"{block}.norm1",
        "nystrom.to_qkv": f"{block}.att_module.qkv_nn",
        "value": "camil_self_attention.v_nn",
        "attention.value": "camil_att_pool.fc1",
        "attention.weight": "camil_att_pool.fc2",
        "head": "classifier",
    }
    optional = {
        "projection": "fc1",
        "attention.gate": "camil_att_pool.fc_gated",
        "mlp.1": f"{block}.mlp_module.0",
        "mlp.3": f"{block}.mlp_module.3",
    }
    layers |= {ours: theirs for ours, theirs in optional.items() if f"{theirs}.weight" in tensors}
    if "mlp.1" in layers:
        layers["mlp.0"] = f"{block}.norm2"
    state = renamed(tensors, layers)
    state["query.weight"], state["key.weight"] = tensors["camil_self_attention.qk_nn.weight"].chunk(2)
    width = len(state["value.weight"])
    in_features = state["projection.weight"].shape[1] if "projection" in layers else width
    options = _common_options(state, config) | options_of(config, {"heads": "heads", "n_heads": "heads"})
    return converted(state, in_features, variant="paper", inner=width, mlp="mlp.1" in layers, **options)


def _convert_official(tensors: Tensors, config: Config) -> Converted:
    # Keras keeps kernels as (in, out).
    kernels = {
        "nystrom.to_qkv.weight": "encoder.nyst_att.to_qkv.kernel",
        "nystrom.to_out.weight": "encoder.nyst_att.to_out.0.kernel",
        "query.weight": "encoder.custom_att.wq",
        "key.weight": "encoder.custom_att.wk",
        "value.weight": "encoder.wv.kernel",
        "attention.value.weight": "attcls.v",
        "attention.weight.weight": "attcls.w",
        "head.weight": "class_fc.kernel",
    }
    if "attcls.u" in tensors:
        kernels["attention.gate.weight"] = "attcls.u"
    state = {ours: tensors[theirs].t().contiguous() for ours, theirs in kernels.items()}
    state["nystrom.to_out.bias"] = tensors["encoder.nyst_att.to_out.0.bias"]
    state["value.bias"] = tensors["encoder.wv.bias"]
    state["head.bias"] = tensors["class_fc.bias"]
    state["nystrom.residual.weight"] = tensors["encoder.nyst_att.res_conv.0.kernel"].squeeze(1)
    kernel, _, head_width = state["nystrom.residual.weight"].shape
    width = state["head.weight"].shape[1]
    heads = state["nystrom.to_out.weight"].shape[1] // head_width
    options = {"inner": width, "heads": heads, "head_width": head_width, "kernel": kernel}
    return converted(state, width, variant="official", **options, **_common_options(state, config))


_WORDS = {"n_landmarks": "landmarks", "num_landmarks": "landmarks", "pinv_iterations": "iterations"}


def _common_options(state: dict[str, Tensor], config: Config) -> dict[str, Any]:
    return {
        "queries": len(state["query.weight"]),
        "attention": len(state["attention.value.weight"]),
        "gated": "attention.gate.weight" in state,
        **options_of(config, _WORDS),
    }


register_official(
    "camil",
    ("camil_self_attention.qk_nn", "camil_self_attention.v_nn", "classifier"),
    _convert_paper,
    unused=("nystrom_transformer_layer.norm2",),  # the norm of the MLP, which most models lack
)
register_official(
    "camil",
    (),
    _convert_official,
    names=("encoder.nyst_att.to_qkv.kernel", "encoder.custom_att.wq", "attcls.v", "class_fc.kernel"),
)
