"""PSMIL: probability-space MIL (Du et al., 2025). Tiles are scored by their class probabilities, not their features.

    p_i = softmax_c(h_i . P[:, c])                          P: M x C prototypes, no gradient through p
    a   = softmax_i(w . p_i + b_w)                          soft branch
    a'  = softmax_i(w . onehot(argmax p_i) + b_w)           hard branch (`hard_branch`), then the mean of both
    b   = sum_i a_i h_i
    logits = b R                                            R: M x C, no bias

On slides h_i is the feature itself; on small-bag benchmarks (`--preset official`) two layers of 512 with ReLU.

The prototypes are not parameters. The first training call sets every column to the mean of that bag; after every step
the column of the bag's class y moves:

    P[:, y] <- normalize(m P[:, y] + (1 - m) q)

    update = top1                 q = the tile with the largest p_i[y], the first of equals (slides, m 0.99)
    update = mean_of_predicted    q = mean of the tiles whose likeliest class is y, or b if there is none
                                      (images and small bags, m 0.999)

q comes from the forward pass of the step, before the optimizer changed the embedding, as in the official code. Before
the first training call P is zero, so p and the attention are uniform. A single output has two prototypes, one for each
class. Differences from the released code and edge cases: docs/methods/psmil.md.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Output, masked_scores
from asmil.models.blocks.embedding import LAYERS_TEXT, EmbeddingConfig, Layers, TileEmbedding
from asmil.models.official import Config, Converted, Tensors, converted, register_official, renamed
from asmil.models.registry import register

WIDTH = 512
CANDIDATES = "prototype_candidates"


class PSMILConfig(EmbeddingConfig):
    """Architecture of PSMIL."""

    embedding_layers: Layers = Field(0, description=LAYERS_TEXT)
    momentum: float = Field(0.99, ge=0, le=1, description="m, what stays of a prototype in an update")
    update: Literal["top1", "mean_of_predicted"] = Field("top1", description="which tiles a prototype moves to")
    hard_branch: bool = Field(False, description="average with the attention of the likeliest classes")
    train_classifier: bool = Field(True, description="train R; the published benchmark runs left it at its start")


@register(
    "psmil",
    summary="tiles are scored by their probabilities under slowly moving class prototypes",
    paper="Du et al., Rethinking Multiple-Instance Learning From Feature Space to Probability Space",
    year=2025,
    presets={
        "official": {
            "model": {
                "embedding_layers": 2,
                "momentum": 0.999,
                "update": "mean_of_predicted",
                "train_classifier": False,
            },
            "training": {"lr": 5e-5, "weight_decay": 0.0, "epochs": 40, "schedule": "constant"},
        }
    },
)
class PSMIL(AttentionPoolModel):
    """PSMIL; see the module's text for the formulas."""

    config_type = PSMILConfig
    score_axes = ("branch",)
    config: PSMILConfig
    prototypes: Tensor
    initialized: Tensor

    def __init__(self, in_features: int, n_outputs: int, config: PSMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        self.embedding = TileEmbedding(in_features, config, default_width=WIDTH)
        width, classes = self.embedding.width, max(2, n_outputs)
        self.register_buffer("prototypes", torch.zeros(width, classes))
        self.register_buffer("initialized", torch.tensor(False))
        self.attention = nn.Linear(classes, 1)
        self.head = nn.Linear(width, n_outputs, bias=False)
        # drawn for the transposed matrix, as the official code stores it: the fan-in is then C
        nn.init.kaiming_uniform_(self.head.weight, mode="fan_out")
        self.head.requires_grad_(config.train_classifier)
        # Whether `initialized` is known to be true: reading the tensor in every step would wait for the GPU.
        self._started = False
        self.register_load_state_dict_post_hook(_forget_start)  # type: ignore[no-untyped-call]

    @property
    def padding_from(self) -> int | None:
        return self.padding_for(1)

    @property
    def batch_from(self) -> int | None:
        return None  # the first bag starts the prototypes

    @torch.no_grad()
    def class_probabilities(self, embedded: Tensor) -> Tensor:
        """p, N x C."""
        return torch.softmax(embedded @ self.prototypes.to(embedded.dtype), dim=1)

    def score(self, embedded: Tensor) -> Tensor:
        return self._score(self.class_probabilities(embedded))

    def forward(self, bag: Bag) -> Output:
        embedded = self.embed_bag(bag)
        probabilities = self.class_probabilities(embedded)
        scores = masked_scores(self.smooth_scores(self._score(probabilities), bag), bag)
        output = self.readout(self.normalizer(scores).to(embedded.dtype) @ embedded, scores)
        output.extras["prototype_probs"] = probabilities
        if self.training:
            self._start_prototypes(embedded.detach())
            pooled = output.embedding.detach()
            output.extras[CANDIDATES] = self._candidates(embedded.detach(), probabilities, pooled, bag.mask)
        else:
            output.instance_logits = self.head(embedded)
        return output

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        embedding = pooled.mean(dim=0) if self.config.hard_branch else pooled[0]
        return Output(self.head(embedding), scores, embedding)

    @torch.no_grad()
    def after_step(self, bag: Bag, output: Output, target: Tensor) -> None:
        """Move the prototype of the bag's class; other targets, or outputs of inference, move none."""
        candidates = output.extras.get(CANDIDATES)
        if candidates is None or target.shape != (1,) or target.is_floating_point():
            return
        momentum = self.config.momentum
        moved = momentum * self.prototypes[:, target] + (1 - momentum) * candidates[target].t()
        self.prototypes.index_copy_(1, target, functional.normalize(moved, dim=0).to(self.prototypes.dtype))

    def _score(self, probabilities: Tensor) -> Tensor:
        """N x C -> branches x N."""
        branches = [probabilities]
        if self.config.hard_branch:
            branches.append(_likeliest(probabilities))
        scores: Tensor = self.attention(torch.stack(branches))
        return scores.squeeze(2)

    @torch.no_grad()
    def _start_prototypes(self, embedded: Tensor) -> None:
        if self._started:
            return
        if not bool(self.initialized):
            self.prototypes.copy_(embedded.mean(dim=0).unsqueeze(1).expand_as(self.prototypes))
            self.initialized.fill_(True)
        self._started = True

    @torch.no_grad()
    def _candidates(self, embedded: Tensor, probabilities: Tensor, pooled: Tensor, mask: Tensor | None) -> Tensor:
        """What each prototype would move to if the bag were of its class (q), C x M; mask: N, true for tiles."""
        padding = torch.zeros_like(probabilities, dtype=torch.bool) if mask is None else ~mask.unsqueeze(1)
        if self.config.update == "top1":
            return embedded[probabilities.masked_fill(padding, -1.0).argmax(dim=0)]
        likeliest = _likeliest(probabilities).masked_fill(padding, 0.0)
        counts = likeliest.sum(dim=0).unsqueeze(1)
        means = likeliest.t().to(embedded.dtype) @ embedded / counts.clamp(min=1)
        return torch.where(counts > 0, means, pooled)


def _likeliest(probabilities: Tensor) -> Tensor:
    """N x C -> 1 for the likeliest class of a row (the first of equals), 0 elsewhere."""
    classes = probabilities.argmax(dim=1)
    return functional.one_hot(classes, probabilities.shape[1]).to(probabilities.dtype)


def _forget_start(model: nn.Module, incompatible: Any) -> None:
    assert isinstance(model, PSMIL)
    model._started = False


POOLINGS = (
    "attention",
    "attention_based",
    "attention_weights",
    "att_layer_U",
    "att_layer_V",
    "linear_U",
    "linear_V",
    "fbank",
    "ps_attention",
    "q",
    "dta",
    "dtac",
)
"""All poolings that the released classes hold side by side; a model calls one of them."""


def _convert(tensors: Tensors, config: Config) -> Converted:
    """The released layouts, with a stem (small bags) or without (slides).

    A state from before the first call has the same tensors: `prototypes: "bag mean (first call)"` identifies it.
    """
    stem = {"embedding.layers.0": "stem.0", "embedding.layers.1": "stem.2"} if "stem.0.weight" in tensors else {}
    state = renamed(tensors, {**stem, "attention": "ps_attention.0"})
    started = "first" not in str(config.get("prototypes", ""))
    bank = tensors["fbank"]
    state |= {
        "prototypes": functional.normalize(bank, dim=0) if started else torch.zeros_like(bank),
        "initialized": torch.tensor(started),
        "head.weight": tensors["linear"].t().contiguous(),
    }
    width, n_outputs = tensors["linear"].shape
    return converted(
        state,
        state["embedding.layers.0.weight"].shape[1] if stem else width,
        n_outputs,
        embedding_layers=2 if stem else 0,
        inner=width,
        momentum=config.get("momentum", 0.999 if stem else 0.99),
        update=config.get("update", "mean_of_predicted" if stem else "top1"),
        hard_branch=bool(config.get("hard_branch", False)),
    )


register_official(
    "psmil",
    ("ps_attention.0",),
    _convert,
    names=("fbank", "linear"),
    # the released classes contain several poolings side by side; `mha` is DEMIL's
    applies=lambda tensors, config: config.get("pooling") != "mha",
    unused=POOLINGS,
)
