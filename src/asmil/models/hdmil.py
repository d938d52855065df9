"""HDMIL: hierarchical distillation MIL (Dong et al., 2025): DMIN learns which tiles to keep, LIPN does so from pixels.

DMIN, on tile features (C classes, everything one row per class):

    h_i  = dropout(ReLU(W_e x_i + b_e))                                     512 wide
    z_i  = W (tanh(V h_i + b_V) * sigmoid(U h_i + b_U)) + b                 C scores per tile
    m_i  = 1 if sigmoid((z_i + g) / 0.7) > 0.5 else 0                       training: straight-through, g Gumbel noise
    m_i  = 1 if sigmoid(z_i) > 0.5 else 0                                   inference
    full branch      M_c = sum_i softmax(z_c)_i h_i                         all tiles
    kept branch      M'_c = sum_i w_c,i h_i                                 the tiles with m = 1
        training     w = exp(z) m / (sum of it over all tiles AND all classes)
        inference    w_c = exp(z_c) m_c / (sum of it over the tiles of class c + 1e-16)
    logit_c = KAN_c(M_c) and KAN_c(M'_c), a Chebyshev-KAN unit per class    the prediction is that of the kept branch
    L = 0.7 L_task(full) + 0.3 L_cluster + 0.5 KL(full || kept) + 0.5 MSE(M', M) + 2 (rate - r)^2

L_cluster is CLAM's (`blocks/instance_loss.py`) by the full attention, with KAN heads; rate is the share of tiles kept
for class 0 or class 1, with straight-through gradient.

LIPN (`lipn: true`), a small CNN on the same tiles at low magnification (`lowres/tiles` of the feature file), learns the
mask in a second stage, so that features need to be extracted for kept tiles only:

    L = mean |mask_LIPN - mask_DMIN| + (rate_LIPN - rate_DMIN)^2

with DMIN frozen, but in training mode (dropout enabled, mask without noise). Afterwards LIPN's mask replaces DMIN's.
Details that follow the official code, and edge cases: docs/methods/hdmil.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.attention_pool import RunningPool
from asmil.models.base import Loss, MILModel, Output, Stage, masked_scores, predicted_row
from asmil.models.blocks.embedding import EmbeddingConfig, TileEmbedding
from asmil.models.blocks.instance_loss import InstanceLossConfig, cluster_logits, clustering_loss
from asmil.models.blocks.layers import start_linear
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.clam import OFFICIAL_TRAINING as CLAM_TRAINING
from asmil.models.clam import SAME_WORDS, UNUSED_LOSS, clam_layouts
from asmil.models.hdmil_lipn import GumbelMask, TinyMobileNet, harden, lipn_state, lowres_tiles
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.tasks.base import Task


class ChebyshevKAN(nn.Module):
    """A layer in which every input has its own learned function, a sum of Chebyshev polynomials up to `degree`.

        u_i = tanh(x_i)
        y_o = sum_i sum_k c[i, o, k] T_k(u_i)          T_0 = 1, T_1 = u, T_k = 2 u T_(k-1) - T_(k-2)

    Input ... x I, output ... x O, computed in float32, without bias or base activation. Inputs far from 0 saturate tanh
    and carry little gradient.
    """

    def __init__(self, in_features: int, out_features: int, degree: int) -> None:
        super().__init__()
        coefficients = torch.empty(in_features, out_features, degree + 1)
        self.coefficients = nn.Parameter(nn.init.xavier_normal_(coefficients))

    def forward(self, x: Tensor) -> Tensor:
        return kan(x.unsqueeze(-2), self.coefficients).squeeze(-2)


def kan(x: Tensor, coefficients: Tensor) -> Tensor:
    """The layer for rows ... x n x I and coefficients ... x I x O x (degree + 1): ... x n x O."""
    # bf16 has too few digits for the sum over polynomials, whose terms cancel
    with torch.autocast(x.device.type, enabled=False):
        basis = chebyshev(torch.tanh(x.to(coefficients.dtype)), coefficients.shape[-1] - 1)
        return basis.flatten(-2) @ coefficients.transpose(-1, -2).flatten(-3, -2)


def chebyshev(u: Tensor, degree: int) -> Tensor:
    """T_0(u) to T_degree(u), along a new last axis."""
    polynomials = [torch.ones_like(u), u]
    for _ in range(2, degree + 1):
        polynomials.append(2 * u * polynomials[-1] - polynomials[-2])
    return torch.stack(polynomials[: degree + 1], dim=-1)


TEMPERATURE = 0.7
KL_WEIGHT = 0.5
FEATURE_WEIGHT = 0.5
RATE_WEIGHT = 2.0
NOTHING = -36.841361  # log(1e-16): the score of a tile of zeros, which decides where no other tile is kept


class HDMILConfig(EmbeddingConfig, InstanceLossConfig):
    """Architecture of HDMIL."""

    inner: int | None = Field(512, ge=1, description="the embedding width; null: from the feature width")
    attention: int = Field(256, ge=1, description="width of the attention network")
    gated: bool = Field(True, description="gated attention, or plain")
    dropout: float = Field(0.25, ge=0, lt=1, description="on the embedding and in the attention network")
    degree: int = Field(12, ge=0, description="of the Chebyshev polynomials (the authors: 12, NSCLC 16)")
    mask_ratio: float = Field(0.6, ge=0, le=1, description="r, the share of tiles to keep (NSCLC, BRCA: 0.7)")
    k_sample: int = Field(32, ge=1, description="k, the tiles of most and of least attention that are clustered")
    instance_loss: Literal["ce", "svm"] = Field("svm", description="cross-entropy, or the smooth top-1 SVM")
    lipn: bool = Field(False, description="train the pre-screening network too; needs lowres/tiles in feature files")
    lipn_lr: float | None = Field(None, gt=0, description="learning rate of its stage; by default the run's")


@register(
    "hdmil",
    summary="learns which tiles to keep for each class; a small network can learn it from low magnification",
    paper="Dong et al., Fast and Accurate Gigapixel Pathological Image Classification with Hierarchical Distillation "
    "Multi-Instance Learning",
    year=2025,
    presets={"official": {"model": {"lipn_lr": 1e-4}, "training": {**CLAM_TRAINING, "lr": 3e-4}}},
)
class HDMIL(MILModel):
    """HDMIL; see the module's text for the formulas."""

    config_type = HDMILConfig
    score_axes = ("class",)
    smooths = ("late",)
    logits_in_extras = ("logits_full",)
    map_kinds = ("attention", "kept")
    records_steps = False  # not tried on a GPU
    label_routes_gradients = True
    maps_predicted_class = True
    config: HDMILConfig

    def __init__(self, in_features: int, n_outputs: int, config: HDMILConfig) -> None:
        super().__init__(in_features, n_outputs, config)
        if n_outputs < 2:
            raise AsmilError("HDMIL keeps tiles for class 0 or 1 and needs an output for every class, at least two")
        self.embedding = TileEmbedding(in_features, config, dropout=config.dropout)
        width = self.embedding.width
        self.attention = ScoreNetwork(width, config.attention, n_outputs, config.gated, dropout=config.dropout)
        self.mask = GumbelMask(TEMPERATURE)
        self.heads = nn.ModuleList(ChebyshevKAN(width, 1, config.degree) for _ in range(n_outputs))
        self.cluster_heads = nn.ModuleList(ChebyshevKAN(width, 2, config.degree) for _ in range(n_outputs))
        start_linear(self)
        self.lipn: TinyMobileNet | None = None
        if config.lipn:
            # its own stage trains this model, with a DMIN that is trained already
            self.requires_grad_(False)
            self.lipn = TinyMobileNet(n_outputs)

    def prepare(self, bag: Bag) -> Bag:
        """Checks before DMIN is trained that the bag has what LIPN needs."""
        if self.lipn is not None:
            lowres_tiles(bag)
        return super().prepare(bag)

    @property
    def tile_tables(self) -> tuple[str, ...] | None:
        return () if self.lipn is None else None

    @property
    def padding_from(self) -> int | None:
        return None if self.lipn is not None or self.smoothed or self.embedding.mil_dropout.top else 1

    def embed(self, features: Tensor) -> Tensor:
        """N x D -> N x 512, tile by tile."""
        return self.embedding(features)

    def attend(self, bag: Bag) -> Tensor:
        return self._score(self.embed(bag.features), bag)

    def _score(self, embedded: Tensor, bag: Bag) -> Tensor:
        return masked_scores(self.smooth_scores(self.attention(embedded), bag), bag)

    def forward(self, bag: Bag) -> Output:
        if self.lipn is not None:
            return self._screened(bag, harden(torch.sigmoid(self.lipn(lowres_tiles(bag)).t())))
        embedded = self.embed(bag.features)
        scores = self._score(embedded, bag)
        return self.distill(embedded, scores, self.mask(scores), jointly=self.training, tiles=bag.mask)

    def distill(
        self, embedded: Tensor, scores: Tensor, mask: Tensor, *, jointly: bool, tiles: Tensor | None = None
    ) -> Output:
        """Both branches, the kept one with its weights as in training (`jointly`) or as in inference.

        tiles: N, true for tiles, of a padded bag
        """
        pooled_full = self.normalizer(scores).to(embedded.dtype) @ embedded
        weights = self._joint_weights(scores, mask) if jointly else self.kept_weights(scores, mask)
        pooled = weights.to(embedded.dtype) @ embedded
        logits, logits_full = self.read(torch.stack([pooled, pooled_full]))
        extras = {
            "mask": mask,
            "mask_rate": mask_rate(mask, tiles),
            "logits_full": logits_full,
            "pooled_full": pooled_full,
            "pooled": pooled,
        }
        extras |= cluster_logits(embedded, scores, self.cluster_heads, self.config, tiles)
        return Output(logits, scores, pooled.flatten(), extras=extras)

    def kept_weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Attention of each class over the tiles it keeps, C x N; all 0 for a class that keeps none."""
        kept = scores.masked_fill(mask == 0, -torch.inf)
        weights: Tensor = self.normalizer(functional.pad(kept, (0, 1), value=NOTHING))
        return weights[:, :-1]

    def _joint_weights(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Attention over all kept tiles of all classes together, C x N; all 0 if nothing is kept."""
        weights: Tensor = self.normalizer(scores.reshape(1, -1)).view_as(scores) * mask
        total = weights.sum()
        return weights / torch.where(total > 0, total, 1.0)

    @property
    def can_stream(self) -> bool:
        return self.lipn is None and self.normalizer.streams and not self.smoothed

    @torch.no_grad()
    def stream(self, chunks: Iterable[Tensor]) -> Output:
        """The prediction alone, tile weights as in `kept_weights`; what only the loss reads is left out."""
        pool = RunningPool()
        seen: list[Tensor] = []
        for features in chunks:
            embedded = self.embed(features)
            scores: Tensor = self.attention(embedded)
            if not seen:
                nothing = scores.new_full((self.n_outputs, 1), NOTHING)
                pool.add(self.normalizer.log_weights(nothing), embedded.new_zeros(1, embedded.shape[1]))
            seen.append(scores.cpu())
            pool.add(self.normalizer.log_weights(scores).masked_fill(self.mask(scores) == 0, -torch.inf), embedded)
        pooled, all_scores = pool.mean(), torch.cat(seen, dim=1)
        return Output(self.read(pooled), all_scores, pooled.flatten(), extras={"mask": self.mask(all_scores)})

    def read(self, pooled: Tensor) -> Tensor:
        """C x 512 -> C logits, each class by its own unit; or several such at once, n x C x 512 -> n x C."""
        coefficients = torch.stack([head.coefficients for head in self.heads if isinstance(head, ChebyshevKAN)])
        return kan(pooled.unsqueeze(-2), coefficients).squeeze((-1, -2))

    def _screened(self, bag: Bag, mask: Tensor) -> Output:
        """The prediction from the tiles that LIPN keeps, and what DMIN would have kept."""
        with torch.no_grad():
            embedded = self.embed(bag.features)
            scores = self._score(embedded, bag)
            pooled = self.kept_weights(scores, mask).to(embedded.dtype) @ embedded
            extras = {"mask": mask, "target_mask": harden(torch.sigmoid(scores))}
            return Output(self.read(pooled), scores, pooled.flatten(), extras=extras)

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        if self.lipn is not None:
            return self._screening_loss(outputs, targets, task)
        bag_loss = task.loss(torch.stack([output.extras["logits_full"] for output in outputs]), targets)
        parts = {task.loss_name: bag_loss}
        total, classes = bag_loss, task.class_index(targets)
        if classes is not None:
            parts["cluster"] = clustering_loss(outputs, classes, self.config)
            total = self.config.bag_weight * bag_loss + (1 - self.config.bag_weight) * parts["cluster"]
        terms = [distillation_terms(output, self.config.mask_ratio) for output in outputs]
        parts |= {name: torch.stack([term[name] for term in terms]).mean() for name in terms[0]}
        total = total + KL_WEIGHT * parts["kl"] + FEATURE_WEIGHT * parts["features"] + RATE_WEIGHT * parts["rate"]
        return Loss(total, parts)

    def _screening_loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        """LIPN's; the task's loss of the prediction is only recorded."""
        pairs = [(output.extras["mask"], output.extras["target_mask"]) for output in outputs]
        mask = torch.stack([(ours - target).float().abs().mean() for ours, target in pairs]).mean()
        rate = torch.stack([(mask_rate(ours) - mask_rate(target)) ** 2 for ours, target in pairs]).mean()
        noted = task.loss(torch.stack([output.logits for output in outputs]), targets)
        return Loss(mask + rate, {task.loss_name: noted, "mask": mask, "rate": rate})

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """The attention of the predicted class over all tiles, or over those kept for it (all 0 where none is)."""
        if kind == "kept":
            scores, mask = predicted_row(output), output.extras["mask"][output.logits.argmax()].unsqueeze(0)
            return self.kept_weights(scores, mask[:, : scores.shape[1]])[0]
        return super().draw_tile_map(output, kind)

    def stages(self) -> list[Stage]:
        if self.lipn is None:
            return super().stages()
        dmin = HDMIL(self.in_features, self.n_outputs, self.config.model_copy(update={"lipn": False}))
        dmin.use_attention_settings_of(self)
        dmin.load_state_dict({name: value for name, value in self.state_dict().items() if "lipn." not in name})
        return [Stage("dmin", dmin), Stage("lipn", self, self._take_over)]

    def _take_over(self, dmin: MILModel, bags: Iterable[Bag]) -> None:
        self.load_state_dict(dmin.state_dict(), strict=False)

    def parameter_groups(self) -> list[dict[str, Any]]:
        groups = super().parameter_groups()
        if self.lipn is not None and self.config.lipn_lr is not None:
            groups[0]["lr"] = self.config.lipn_lr
        return groups


def mask_rate(mask: Tensor, tiles: Tensor | None = None) -> Tensor:
    """The share of tiles kept for class 0 or class 1; mask: C x N. Its gradient is that of the sum of the two.

    tiles: N, true for tiles, of a padded bag, whose padding is never kept
    """
    kept = mask[:2].float().sum(dim=0)
    counted = (kept > 0).to(kept.dtype) + (kept - kept.detach())
    return counted.mean() if tiles is None else counted.sum() / tiles.sum()


def distillation_terms(output: Output, mask_ratio: float) -> dict[str, Tensor]:
    """KL(full || kept), the mean squared difference of the pooled features, and that of the rate; unweighted."""
    extras = output.extras
    kept, full = (torch.log_softmax(logits.float(), dim=-1) for logits in (output.logits, extras["logits_full"]))
    return {
        "kl": functional.kl_div(kept, full, reduction="sum", log_target=True),
        "features": functional.mse_loss(extras["pooled"].float(), extras["pooled_full"].float()),
        "rate": (extras["mask_rate"] - mask_ratio) ** 2,
    }


def _register_layout(layers: dict[str, str], lipn: bool) -> None:
    """DMIN's layout; with tensors of LIPN, a model with both."""

    def convert(tensors: Tensors, config: Config) -> Converted:
        state = renamed(tensors, layers)
        n_outputs = len(state["attention.weight.weight"])
        for c in range(n_outputs):
            state[f"heads.{c}.coefficients"] = tensors[f"classifiers.{c}.{_COEFFICIENTS}"]
            state[f"cluster_heads.{c}.coefficients"] = tensors[f"instance_classifiers.{c}.{_COEFFICIENTS}"]
        if lipn:
            state |= {f"lipn.{name}": value for name, value in lipn_state(tensors).items()}
        options = options_of(config, SAME_WORDS | {"mask_ratio": "mask_ratio"})
        options |= {"attention": len(state["attention.value.weight"]), "gated": "attention.gate" in layers}
        degree = state["heads.0.coefficients"].shape[2] - 1
        return converted(state, n_outputs=n_outputs, degree=degree, lipn=lipn, **options)

    identifying = [*layers.values(), *(["extractor.classifier"] if lipn else [])]
    heads = [f"{heads}.0.{_COEFFICIENTS}" for heads in ("classifiers", "instance_classifiers")]
    register_official("hdmil", identifying, convert, names=heads, unused=UNUSED_LOSS)


_COEFFICIENTS = "act_fun.0.cheby_coeffs"

for _layers in clam_layouts():
    _register_layout(_layers, lipn=False)
    _register_layout(_layers, lipn=True)
