"""DEMIL: disambiguated attention embedding (Tang, Zhang, Zhang, 2023), as a plain MIL method.

    h_i = ReLU(W_e x_i + b_e)                                   M wide (small-bag benchmarks: two layers of 512)
    g_i = tanh(V h_i + v) * sigmoid(U h_i + u)                  C wide: one gate unit per class
    z_i = w . g_i + b_w                                         or Linear(C, 128), ReLU, Linear(128, 1)
    a   = sigmoid(z) / sum_j sigmoid(z_j)                       the normalized sigmoid (NSF), not softmax
    b   = sum_i a_i h_i
    logits = b R                                                R: M x C, no bias

This is the form that the RGMIL and PSMIL authors compare with, taken from their code (`pooling` "mha"). The original,
DEMIPL, learns from partial labels: a bag has several candidate labels, one of them true (`--preset demipl`):

    s_i  = sigmoid(z_i)
    p    = softmax(sigmoid(W_c b + b_c))                        odds of at most e : 1 between two classes
    loss = - sum_c t_c log p_c + mu sum_i (- s_i log s_i)       the entropy term pushes each s_i to 0 or 1
    t   <- lambda t + (1 - lambda) q                            q: p among the candidates, renormalized; after each bag

`loss` accepts rows of candidate weights t instead of class indices, and `candidate_update` returns the next t. With one
candidate q = t and nothing changes: that is plain MIL with DEMIPL's loss. Edge cases: docs/methods/demil.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.attention.normalizers import NSF
from asmil.errors import AsmilError
from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Loss, Output
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.psmil import POOLINGS
from asmil.models.registry import register
from asmil.tasks.base import Task

WIDTH = 512
CLAMP = 1e-5


class DEMILConfig(EmbeddingConfig):
    """Architecture of DEMIL."""

    score_hidden: int | None = Field(None, ge=1, description="hidden width from gates to score (DEMIPL: 128); or none")
    tie_gates: bool = Field(False, description="one projection for both gates, as DEMIPL's released code")
    head: Literal["linear", "sigmoid_softmax"] = Field("linear", description="sigmoid_softmax: DEMIPL's head")
    entropy_weight: float = Field(0.0, ge=0, description="mu, of the entropy of the unnormalized attention")
    detach_denominator: bool = Field(False, description="no gradient through the sum that normalizes the attention")
    train_classifier: bool = Field(True, description="train R; the published benchmark runs left it at its start")
    dropout: float = Field(0.0, ge=0, lt=1, description="on the embedding (DEMIPL: 0.5)")


class DetachedNSF(NSF):
    """The normalized sigmoid with a denominator that gets no gradient."""

    def forward(self, scores: Tensor) -> Tensor:
        log_weights = self.log_weights(scores)
        return (log_weights - log_weights.logsumexp(dim=-1, keepdim=True).detach()).exp()


@register(
    "demil",
    summary="tiles are averaged by normalized sigmoids of scores from one gate unit per class",
    paper="Tang et al., Disambiguated Attention Embedding for Multi-Instance Partial-Label Learning",
    year=2023,
    presets={
        "official": {
            "model": {"embedding_layers": 2, "train_classifier": False},
            "training": {"lr": 5e-5, "weight_decay": 0.0, "epochs": 40, "schedule": "constant"},
        },
        # DEMIPL trains with SGD and Nesterov momentum, lr 5e-4 to 0.05 by data set; its learning rate is not Adam's.
        "demipl": {
            "model": {
                "inner": 500,
                "score_hidden": 128,
                "head": "sigmoid_softmax",
                "entropy_weight": 5e-4,
                "dropout": 0.5,
            },
            "training": {"weight_decay": 1e-4, "epochs": 100, "select": "last"},
        },
    },
)
class DEMIL(AttentionPoolModel):
    """DEMIL; see the module's text for the formulas."""

    config_type = DEMILConfig
    score_axes = ("bag",)
    config: DEMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: DEMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        if n_outputs == 1 and config.head == "sigmoid_softmax":
            raise AsmilError("model.head = 'sigmoid_softmax' needs at least two outputs; set model.head=linear")
        self.normalizer = DetachedNSF() if config.detach_denominator else NSF()
        self.embedding = TileEmbedding(in_features, config, default_width=WIDTH, dropout=config.dropout)
        width, gates = self.embedding.width, max(2, n_outputs)
        self.value = nn.Linear(width, gates)
        self.gate = None if config.tie_gates else nn.Linear(width, gates)
        self.scorer = (
            nn.Sequential(nn.Linear(gates, 1))
            if config.score_hidden is None
            else nn.Sequential(nn.Linear(gates, config.score_hidden), nn.ReLU(), nn.Linear(config.score_hidden, 1))
        )
        self.head = nn.Linear(width, n_outputs, bias=config.head == "sigmoid_softmax")
        if config.head == "linear":
            # drawn for the transposed matrix, as the official code stores it: the fan-in is then C
            nn.init.kaiming_uniform_(self.head.weight, mode="fan_out")
        self.head.requires_grad_(config.train_classifier)

    @property
    def padding_from(self) -> int | None:
        return self.padding_for(1)

    def score(self, embedded: Tensor) -> Tensor:
        values: Tensor = self.value(embedded)
        gates: Tensor = values if self.gate is None else self.gate(embedded)
        scores: Tensor = self.scorer(torch.tanh(values) * torch.sigmoid(gates))
        return scores.t()

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        logits: Tensor = self.head(pooled[0])
        if self.config.head == "sigmoid_softmax":
            logits = torch.sigmoid(logits)
            logits = logits.clamp(CLAMP, 1 - CLAMP) if self.training else logits
        assert scores is not None
        return Output(logits, scores, pooled[0], extras={"attention_unnormalized": torch.sigmoid(scores)})

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        """The task's loss, plus the weighted entropy of the unnormalized attention, if it has a weight.

        For classification, targets may also be weights over candidate labels, B x C.
        """
        plain = super().loss(outputs, targets, task)
        if not self.config.entropy_weight:
            return plain
        entropy = torch.stack([_entropy(output) for output in outputs]).mean()
        return Loss(plain.total + self.config.entropy_weight * entropy, {**plain.parts, "entropy": entropy})


def _entropy(output: Output) -> Tensor:
    """`sum_i - s_i log s_i` of one bag; 0 for padding, whose score is minus infinity."""
    assert output.scores is not None
    logs = functional.logsigmoid(output.scores).masked_fill(output.scores == -torch.inf, 0)
    return -(output.scores.sigmoid() * logs).sum()


def candidate_probabilities(targets: Tensor, probabilities: Tensor) -> Tensor:
    """q: the probabilities among the candidates (target above 0), renormalized; both ... x C."""
    among = probabilities * (targets > 0)
    return among / among.sum(dim=-1, keepdim=True)


def candidate_update(targets: Tensor, probabilities: Tensor, keep: float) -> Tensor:
    """The next weights of the candidate labels, `keep t + (1 - keep) q`.

    DEMIPL's keep in epoch e of T is (T - e) / T, e = 0 .. T - 1.
    """
    return torch.lerp(candidate_probabilities(targets, probabilities), targets, keep)


def _options(state: dict[str, Tensor], layers: int, config: Config) -> Converted:
    """Options from the shapes of a converted state, and those that all layouts read from `config`."""
    inner = state["head.weight"].shape[1]
    return converted(
        state,
        state["embedding.layers.0.weight"].shape[1] if layers else inner,
        embedding_layers=layers,
        inner=inner,
        score_hidden=len(state["scorer.0.weight"]) if "scorer.2.weight" in state else None,
        tie_gates="gate.weight" not in state,
        head="sigmoid_softmax" if "head.bias" in state else "linear",
        detach_denominator=bool(config.get("detach_denominator", False)),
        **options_of(config, dict.fromkeys(("entropy_weight", "w_entropy"), "entropy_weight")),
    )


def _convert_demipl(tensors: Tensors, config: Config) -> Converted:
    layers = {
        "embedding.layers.0": "feature_extractor_part2.0",
        "value": "linear_V",
        "scorer.0": "attention_weights.0",
        "scorer.2": "attention_weights.2",
        "head": "classifier.0",
    }
    if not config.get("tie_gates", True):
        layers["gate"] = "linear_U"
    return _options(renamed(tensors, layers) | {"head.bias": tensors["classifier.0.bias"]}, 1, config)


def _convert_pooling(tensors: Tensors, config: Config) -> Converted:
    """The pooling in the PSMIL authors' classes: small bags (a stem, one linear scorer), images and slides."""
    stem = {"embedding.layers.0": "stem.0", "embedding.layers.1": "stem.2"} if "stem.0.weight" in tensors else {}
    deep = "attention_weights.0.weight" in tensors
    scorer = {"scorer.0": "attention_weights.0", "scorer.2": "attention_weights.2"}
    layers = {"value": "linear_V", "gate": "linear_U", **(scorer if deep else {"scorer.0": "ps_attention.0"})}
    state = renamed(tensors, {**stem, **layers}) | {"head.weight": tensors["linear"].t().contiguous()}
    return _options(state, len(stem), config)


_GATES = ("linear_V", "linear_U")
register_official(
    "demil",
    ("feature_extractor_part2.0", "attention_weights.0", "classifier.0", *_GATES),
    _convert_demipl,
    # the code calls V in both gates, and neither of the att_layers
    unused=("linear_U", "att_layer_U", "att_layer_V"),
)
register_official(
    "demil",
    _GATES,
    _convert_pooling,
    names=("linear",),
    # these classes contain several poolings side by side, including PSMIL's with its bank of prototypes
    applies=lambda tensors, config: config.get("pooling") == "mha" or "fbank" not in tensors,
    unused=POOLINGS,
)
