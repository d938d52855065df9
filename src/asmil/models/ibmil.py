"""IBMIL: interventional bag multiple instance learning (Lin et al., 2023).

The context of a bag (staining, scanner) is a confounder. Three steps:
    1. train an ordinary model: attention z, bag vector m = sum_i softmax(z)_i h_i, head on m        stage "base"
    2. m of every training bag; k-means of m / |m|; prototypes p_j = the clusters' means of m
    3. train a new model from scratch whose head reads [m; c] (or m + c, m - c)                stage "intervention"
           u_j = softmax_j((W_k p_j + b_k) . (W_q m + b_q) / sqrt(J)),   c = sum_j u_j p_j
The second model gets only the prototypes of the first one. They are part of its state dict, and are made from the
training bags of the split alone.

Bases:
    gated     h = ReLU(W_e x) without bias, gated attention: the port that the ASMIL study compares (default)
    plain     h = x, z_i = w . tanh(V x_i), V as wide as the features: the official ABMIL
    dsmil     DSMIL with one linear query; the bag vector of each class attends to the dictionary, a slide contributes
              one vector per class to the clustering, and the prototypes have a dropout of 0.1 before W_k in training
    transmil  TransMIL; m is the normalized class token

Differences from the official code: docs/methods/ibmil.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.abmil import ABMIL, ABMILConfig
from asmil.models.base import Loss, MILModel, ModelOnBase, Output, Stage
from asmil.models.blocks.dual_stream import (
    LINEAR_QUERY,
    NONLINEAR_QUERY,
    STREAM_LOGITS,
    LossKind,
    Query,
    from_official,
    logits_loss,
    official_layers,
)
from asmil.models.blocks.embedding import UNUSED_NORM, EmbeddingConfig
from asmil.models.blocks.kmeans import cluster
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.scoring import GATED_ATTENTION
from asmil.models.dsmil import DSMIL, DSMILConfig
from asmil.models.inference import infer
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.models.transmil import LAYERS, TransMIL, TransMILConfig
from asmil.tasks.base import Task

GATED_WIDTH = 128
DSMIL_KEY_DROPOUT = 0.1
TRANSMIL_WIDTH = 512
Merge = Literal["cat", "add", "sub"]
SEED = 66
"""The seed of the official clustering."""


class IBMILConfig(EmbeddingConfig):
    """Architecture and loss of IBMIL."""

    base: Literal["gated", "plain", "dsmil", "transmil"] = Field("gated", description="what gives the bag vector")
    prototypes: int = Field(8, ge=0, description="K, the size of the dictionary; 0 trains the base alone")
    joint: int = Field(128, ge=1, description="J, the width in which bag and prototypes are compared")
    merge: Merge = Field("cat", description="how the mixture of prototypes meets the bag vector")
    learn_prototypes: bool = Field(False, description="train the prototypes too, from where the clustering put them")
    key_dropout: float | None = Field(
        None, ge=0, lt=1, description="on the prototypes before W_k, in training; by default 0.1 with dsmil, else 0"
    )
    attention: int | None = Field(
        None, ge=1, description="width of the attention network; by default 128 if gated, D if plain"
    )
    query: Query = Field("linear", description="of base dsmil")
    query_width: int = Field(128, ge=1, description="Q, the width of a query of base dsmil")
    loss: LossKind = Field("task", description="the task's loss, or bce against the one-hot class (no class weights)")


@register(
    "ibmil",
    summary="the head also reads a mixture of bag prototypes, which a first training of the base gave",
    paper="Lin et al., Interventional Bag Multi-Instance Learning On Whole-Slide Pathological Images",
    year=2023,
    presets={
        "official": {
            "model": {"base": "plain", "loss": "bce"},
            "training": {"lr": 1e-4, "betas": [0.5, 0.9], "weight_decay": 1e-4, "lr_min": 5e-6, "epochs": 50},
        }
    },
)
class IBMIL(ModelOnBase):
    """IBMIL; see the module's text for the formulas. The rows of the scores are the base's."""

    config_type = IBMILConfig
    score_axes = ("row",)
    logits_in_extras = STREAM_LOGITS
    config: IBMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: IBMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.base, self.width = _headless_base(in_features, n_outputs, config)
        self.dictionary: ConfounderDictionary | None = None
        merged_width = self.width
        if config.prototypes:
            key_dropout = DSMIL_KEY_DROPOUT if config.base == "dsmil" else 0.0
            self.dictionary = ConfounderDictionary(
                config.prototypes,
                self.width,
                config.joint,
                config.merge,
                dropout=key_dropout if config.key_dropout is None else config.key_dropout,
                learned=config.learn_prototypes,
            )
            merged_width = self.dictionary.merged_width
        vectors = n_outputs if config.base == "dsmil" else 1
        self.head = nn.Linear(merged_width * vectors, n_outputs)

    def forward(self, bag: Bag) -> Output:
        return self._intervene(self.current_base()(bag))

    @torch.no_grad()
    def stream(self, chunks: Iterable[Tensor]) -> Output:
        return self._intervene(self.current_base().stream(chunks))

    def _intervene(self, output: Output) -> Output:
        """The base's output with logits that also depend on the dictionary."""
        rows, extras = output.embedding.view(-1, self.width), dict(output.extras)
        if self.dictionary is not None:
            rows, extras["confounder_attention"] = self.dictionary(rows)
            extras["merged_feature"] = rows
        logits: Tensor = self.head(rows.flatten())
        if "bag_logits" in extras:
            extras["bag_logits"] = logits
        return replace(output, logits=logits, extras=extras)

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        if isinstance(self.base, DSMIL):
            return self.base.loss(outputs, targets, task)
        kind = self.config.loss
        value = logits_loss(kind, torch.stack([output.logits for output in outputs]), targets, task)
        return Loss(value, {task.loss_name if kind == "task" else kind: value})

    def stages(self) -> list[Stage]:
        if self.dictionary is None:
            return [Stage("", self)]
        base = IBMIL(self.in_features, self.n_outputs, self.config.model_copy(update={"prototypes": 0}))
        base.use_attention_settings_of(self)
        return [Stage("base", base), Stage("intervention", self, self.build_dictionary)]

    def build_dictionary(self, base: MILModel, bags: Iterable[Bag]) -> None:
        """Fill the dictionary with prototypes of the bag vectors that a model of stage 1 gives the training bags."""
        assert self.dictionary is not None
        rows = [infer(base, bag, bag.features.device).embedding.view(-1, self.width) for bag in bags]
        self.dictionary.fill(find_prototypes(torch.cat(rows), self.config.prototypes))


def _headless_base(in_features: int, n_outputs: int, config: IBMILConfig) -> tuple[MILModel, int]:
    """The base without its head, which is the method's own, and the width of a bag vector."""
    base: ABMIL | DSMIL | TransMIL
    embedding = {name: getattr(config, name) for name in EmbeddingConfig.model_fields}
    if config.base in ("plain", "dsmil"):
        if config.inner or config.embedding_layers != 1 or config.mil_dropout:
            raise AsmilError(
                f"model.base = {config.base} reads the features as they are; "
                "leave model.inner, model.embedding_layers and model.mil_dropout out, or take model.base=gated"
            )
        embedding["embedding_layers"] = 0
    if config.base == "dsmil":
        streams = DSMILConfig(query=config.query, query_width=config.query_width, loss=config.loss)
        base, width = DSMIL(in_features, n_outputs, streams), in_features
    elif config.base == "transmil":
        embedding["inner"] = config.inner or TRANSMIL_WIDTH
        base = TransMIL(in_features, n_outputs, TransMILConfig(**embedding))
        width = base.embedding.width
    else:
        gated = config.base == "gated"
        hidden = config.attention or (GATED_WIDTH if gated else in_features)
        base = ABMIL(in_features, n_outputs, ABMILConfig(**embedding, attention=hidden, gated=gated))
        width = base.embedding.width
    base.head = nn.Identity()  # type: ignore[assignment]
    return base, width


def find_prototypes(rows: Tensor, k: int, seed: int = SEED) -> Tensor:
    """Prototypes of bag vectors: S x d -> at most k x d.

    The rows are clustered by direction (each divided by its norm); a prototype is the mean of the rows of a cluster as
    they are. A cluster without rows, as there may be with fewer distinct rows than k, gives none.
    """
    directions = rows / (rows.norm(dim=1, keepdim=True) + 1e-10)
    labels = cluster(directions, k, seed).to(rows.device)
    return torch.stack([rows[labels == label].mean(dim=0) for label in labels.unique()])


class ConfounderDictionary(nn.Module):
    """K prototypes of bags, kept in the state dict, and the attention of bag vectors over them.

        u_j = softmax_j((W_k p_j + b_k) . (W_q m + b_q) / sqrt(J))        prototypes p_j, bag vector m
        c   = sum_j u_j p_j
        merged = [m; c], m + c or m - c

    Until `fill` is called the prototypes are random. If training bags gave fewer than K, `used` marks the
    rows that hold one; the others are ignored.

    dropout: on the prototypes before their keys, in training
    learned: the prototypes are trained
    """

    prototypes: Tensor
    used: Tensor

    def __init__(
        self, size: int, width: int, joint: int, merge: Merge, *, dropout: float = 0.0, learned: bool = False
    ) -> None:
        super().__init__()
        start = torch.randn(size, width) / math.sqrt(width)
        if learned:
            self.prototypes = nn.Parameter(start)
        else:
            self.register_buffer("prototypes", start)
        self.register_buffer("used", torch.ones(size, dtype=torch.bool))
        self.query = nn.Linear(width, joint)
        self.key = nn.Linear(width, joint)
        self.merge = merge
        self.merged_width = 2 * width if merge == "cat" else width
        self.dropout = Dropout(dropout)

    @torch.no_grad()
    def fill(self, prototypes: Tensor) -> None:
        """Set k <= K prototypes, k x d."""
        count = len(prototypes)
        self.prototypes.zero_()[:count] = prototypes.to(self.prototypes)
        self.used.fill_(False)[:count] = True

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Bag vectors R x d -> merged R x (2 d or d), and u, R x K."""
        keys = self.key(self.dropout(self.prototypes))
        scores = functional.linear(self.query(rows), keys) / math.sqrt(keys.shape[1])
        attention = torch.softmax(scores.masked_fill(~self.used, -torch.inf), dim=-1)
        mixture = attention.to(rows.dtype) @ self.prototypes.to(rows.dtype)
        if self.merge == "cat":
            return torch.cat([rows, mixture], dim=-1), attention
        return (rows + mixture if self.merge == "add" else rows - mixture), attention


_GATED = {"embedding.layers.0": "dimreduction.fc1", **GATED_ATTENTION}
_PLAIN = {"attention.value": "attention.0", "attention.weight": "attention.2"}


def _converted(
    base: str,
    state: dict[str, Tensor],
    tensors: Tensors,
    config: Config,
    in_features: int,
    prefix: str = "",
    feat: str = "",
    **options: Any,
) -> Converted:
    """Convert the base's state (with its head) and the dictionary's tensors.

    prefix: of W_q and W_k; feat: before confounder_feat
    """
    ours = {name if name.startswith("head.") else f"base.{name}": tensor for name, tensor in state.items()}
    if f"{prefix}W_q.weight" in tensors:
        prototypes = tensors[f"{feat}confounder_feat"]
        ours |= renamed(tensors, {"dictionary.query": f"{prefix}W_q", "dictionary.key": f"{prefix}W_k"})
        ours["dictionary.prototypes"] = prototypes
        ours["dictionary.used"] = torch.ones(len(prototypes), dtype=torch.bool)
        options |= {
            "joint": len(ours["dictionary.query.weight"]),
            "learn_prototypes": bool(config.get("confounder_learn")),
        }
        options |= options_of(config, {"c_merge": "merge", "merge": "merge"})
    size = len(ours.get("dictionary.prototypes", ()))
    return converted(ours, in_features, len(ours["head.bias"]), base=base, prototypes=size, **options)


def _convert_gated(tensors: Tensors, config: Config) -> Converted:
    head = "classifier" if "classifier.weight" in tensors else "classifier.fc"
    state = renamed(tensors, {**_GATED, "head": head})
    inner, in_features = state["embedding.layers.0.weight"].shape
    attention = len(state["attention.value.weight"])
    return _converted("gated", state, tensors, config, in_features, inner=inner, attention=attention)


def _convert_plain(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, {**_PLAIN, "head": "classifier"})
    attention, in_features = state["attention.value.weight"].shape
    return _converted("plain", state, tensors, config, in_features, attention=attention)


def _convert_dsmil(tensors: Tensors, config: Config) -> Converted:
    nonlinear = f"{NONLINEAR_QUERY[0]}.weight" in tensors
    streams, state = from_official(tensors, NONLINEAR_QUERY if nonlinear else LINEAR_QUERY)
    if streams["values"]:
        raise AsmilError("these tensors are of IBMIL's DSMIL with learned values, which ibmil does not have")
    options = {name: streams[name] for name in ("query", "query_width")}
    in_features, names = state["streams.instance.weight"].shape[1], ("b_classifier.confounder_", "b_classifier.")
    return _converted("dsmil", state, tensors, config, in_features, *names, **options)


def _convert_transmil(tensors: Tensors, config: Config) -> Converted:
    state = renamed(tensors, LAYERS) | {"class_token": tensors["cls_token"].flatten(0, 1)}
    inner, in_features = state["embedding.layers.0.weight"].shape
    return _converted("transmil", state, tensors, config, in_features, "confounder_", inner=inner)


def _says_ibmil(tensors: Tensors, config: Config) -> bool:
    """Whether tensors of a base, without a dictionary, are those of IBMIL's first training."""
    return "stage" in config or "num_confounders" in config


def _is_plain_alone(tensors: Tensors, config: Config) -> bool:
    layers = {name.rpartition(".")[0] for name in tensors}
    return _says_ibmil(tensors, config) or layers == {*_PLAIN.values(), "classifier"}


_FEAT = "confounder_feat"
_DICTIONARY = ("W_q", "W_k", "classifier")
register_official("ibmil", (*_GATED.values(), *_DICTIONARY), _convert_gated, names=[_FEAT], unused=UNUSED_NORM)
register_official("ibmil", (*_GATED.values(), "classifier.fc"), _convert_gated, _says_ibmil, unused=UNUSED_NORM)
register_official("ibmil", (*_PLAIN.values(), *_DICTIONARY), _convert_plain, names=[_FEAT])
register_official("ibmil", (*_PLAIN.values(), "classifier"), _convert_plain, _is_plain_alone)
register_official("ibmil", LAYERS.values(), _convert_transmil, names=["cls_token", _FEAT])
register_official("ibmil", LAYERS.values(), _convert_transmil, _says_ibmil, names=["cls_token"])
for _query in (LINEAR_QUERY, NONLINEAR_QUERY):
    register_official("ibmil", official_layers(_query), _convert_dsmil, names=[f"b_classifier.{_FEAT}"])
    register_official("ibmil", official_layers(_query), _convert_dsmil, _says_ibmil)
