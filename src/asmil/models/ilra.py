"""ILRA: iterative low-rank attention (Xiang et al., Exploring Low-Rank Property in Multiple Instance Learning, 2023).

    X_0    = the tiles                                                     N x D
    H      = MHA(L, X; gated)       r learned latents read the bag         r x I
    X_l    = MHA(X_l-1, H; gated)   the tiles read the latents             N x I, `blocks` times
    bag    = MHA(S, X)              one learned query pools the bag        I
    logits = W_c bag + b_c

MHA is the block of `blocks/low_rank.py`: each side is projected twice in a row (a linear layer, then the projections of
a multi-head attention), the residual is with the once-projected query, a ReLU layer follows, and the gate multiplies
by SiLU(W_g Q). N x N attention becomes two N x r ones, and neither keys nor values of tiles are formed.

Scores are those of the pooling query, one row per head: z_h,i = q_h . k_h,i / sqrt(I / H), softmax over tiles; the heat
map is the mean over heads. The official code throws these weights away. A normalizer other than softmax replaces the
pooling's, not those of the latents.

The defaults are those of the official class (rank 2, no LayerNorm); the published CAMELYON16 configuration (rank 1,
LayerNorm) is `--preset official`. With rank 1 softmax over the latents is 1: each block adds one vector to all tiles,
and the maps that only score the latents have no effect, there as here. Without LayerNorm the scale of the tiles
grows or shrinks with every block.

Where paper, official code and its copies differ: the paper discusses larger ranks than the code's 1 or 2 (its author:
tune it). A block's output has no residual with its input. The copies in VLSA and ASMIL use the rank also as the number
of pooling queries and break for ranks above 1; here there is always one. The paper's contrastive pre-training of the
tile encoder is not part of the aggregator. The official evaluation uses the last epoch.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, ModelConfig, Output, refuse_uneven
from asmil.models.ilra_low_rank import FewQueries, LowRankBlock, converted_once, xavier_vectors
from asmil.models.official import Config, Converted, OfficialForm, Tensors, register_official, renamed
from asmil.models.registry import register


class ILRAConfig(ModelConfig):
    """Architecture of ILRA."""

    inner: int = Field(256, ge=1, description="I, width of the tiles after the first block")
    blocks: int = Field(2, ge=1, description="how many times the tiles pass through latents")
    heads: int = Field(8, ge=1, description="H")
    rank: int = Field(2, ge=1, description="r, the latents of a block")
    norm: bool = Field(False, description="LayerNorm in every attention block")


@register(
    "ilra",
    summary="tiles exchange information through a few latent vectors, then one query pools them",
    paper="Xiang et al., Exploring Low-Rank Property in Multiple Instance Learning for Whole Slide Image "
    "Classification",
    year=2023,
    presets={
        "official": {
            "model": {"rank": 1, "norm": True},
            "training": {"lr": 1e-4, "weight_decay": 0.0, "epochs": 100, "schedule": "cosine", "select": "last"},
        }
    },
)
class ILRA(MILModel):
    """ILRA; see the module's text for the formulas."""

    config_type = ILRAConfig
    score_axes = ("head",)
    config: ILRAConfig

    def __init__(self, in_features: int, n_outputs: int, config: ILRAConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        refuse_uneven(config.inner, config.heads)
        widths = [in_features, *[config.inner] * (config.blocks - 1)]
        self.blocks = nn.ModuleList(
            LowRankBlock(width, config.inner, config.heads, config.rank, config.norm) for width in widths
        )
        self.seed = nn.Parameter(xavier_vectors(1, config.inner))
        self.pooling = FewQueries(config.inner, config.inner, config.inner, config.heads, config.norm, gated=False)
        self.head = nn.Linear(config.inner, n_outputs)
        nn.init.xavier_normal_(self.head.weight)

    def reembed(self, bag: Bag) -> Tensor:
        """The tiles after the last block, N x I: what the pooling reads."""
        tiles = bag.features.to(self.seed.dtype)
        for block in self.blocks:
            tiles = block(tiles)
        return converted_once(tiles)

    def attend(self, bag: Bag) -> Tensor:
        return self.pooling.score(self.seed, self.reembed(bag))

    def forward(self, bag: Bag) -> Output:
        tiles = self.reembed(bag)
        scores = self.pooling.score(self.seed, tiles)
        embedding = self.pooling.pool(self.seed, self.normalizer(scores), tiles).squeeze(0)
        return Output(self.head(embedding), scores, embedding)


_LAYERS = {"query": "fc_q", "key": "fc_k", "value": "fc_v", "feed": "fc_o"}
_NORMS = {"norm_attention": "ln0", "norm_feed": "ln1"}


def _attention(
    tensors: Tensors, theirs: str, ours: str, inner: str, *, norm: bool, gated: bool = True
) -> dict[str, Tensor]:
    """The tensors of one attention block; `inner` is what the layout calls torch's attention in it."""
    layers = {**_LAYERS, "out": f"{inner}.out_proj", **(_NORMS if norm else {})}
    if gated:
        layers["gate"] = "gate.0"
    state = renamed(tensors, {f"{ours}.{name}": f"{theirs}.{layer}" for name, layer in layers.items()})
    width = state[f"{ours}.out.weight"].shape[0]
    state[f"{ours}.in_weight"] = tensors[f"{theirs}.{inner}.in_proj_weight"].reshape(3, width, -1)
    state[f"{ours}.in_bias"] = tensors[f"{theirs}.{inner}.in_proj_bias"].reshape(3, width)
    return state


def _official(prefix: str, inner: str) -> OfficialForm:
    """A published layout: the prefix of the model in it, and its name for torch's attention."""

    def convert(tensors: Tensors, config: Config) -> Converted:
        state = {"seed": tensors[f"{prefix}pooling.S"][0], **renamed(tensors, {"head": f"{prefix}classifier"})}
        norm = any(name.endswith((".ln0.weight", ".ln1.weight")) for name in tensors)
        state |= _attention(tensors, f"{prefix}pooling.mha", "pooling", inner, norm=norm, gated=False)
        start = f"{prefix}gab_blocks."
        blocks = len({name.removeprefix(start).split(".")[0] for name in tensors if name.startswith(start)})
        for number in range(blocks):
            block, ours = f"{start}{number}", f"blocks.{number}"
            state[f"{ours}.latents"] = tensors[f"{block}.latent"][0]
            state |= _attention(tensors, f"{block}.project_forward", f"{ours}.read_tiles", inner, norm=norm)
            state |= _attention(tensors, f"{block}.project_backward", f"{ours}.read_latents", inner, norm=norm)
        n_outputs, width = state["head.weight"].shape
        options = {
            "inner": width,
            "blocks": blocks,
            "heads": next((config[word] for word in ("num_heads", "n_heads", "heads") if word in config), 8),
            "rank": state["blocks.0.latents"].shape[0],
            "norm": norm,
        }
        return state["blocks.0.read_tiles.key.weight"].shape[1], n_outputs, options, state

    names = ("gab_blocks.0.latent", "pooling.S", f"pooling.mha.{inner}.in_proj_weight", "classifier.weight")
    return OfficialForm("ilra", frozenset(prefix + name for name in names), convert)


register_official(_official("", "multihead_attn"))
# MIL-Lab's copy, bare and inside its Hugging Face wrapper.
register_official(_official("", "multihead_attention"))
register_official(_official("model.", "multihead_attention"))
