"""MHIM-MIL: masked hard instance mining, v1 (Tang et al., ICCV 2023) and v2 (Tang et al., IJCV 2025).

A teacher, the moving average of the student, ranks the tiles of the whole bag. The easiest tiles are masked, together
with random or the lowest ones. The student learns from the others, and its bag feature is pulled towards the teacher's:

    h_i   = dropout(act(W_e x_i + b_e))                          for student and teacher
    f, z  = network(h)                                           `base`: abmil, transmil or dsmil (mhim_maskable.py)
    f^T, ranking = teacher(all tiles), no gradient               with dropout
    f^S, logits  = student(kept tiles)                           mhim_masking.py has the rules
    loss = CE(logits) - alpha sum_d softmax(f^T / t_T)_d log softmax(f^S / t_S)_d
    teacher <- mm teacher + (1 - mm) student                     after every step; parameters only

Inference is the student on the whole bag. v1 ranks by attention; with several heads (transmil: the class token's row
of layer 1) by votes. v2 ranks by the class probability of what a tile contributes to the bag feature, masks only the
highest tiles, keeps floor(merge_ratio * kept) random ones of the kept tiles and merges the rest into `merge_k` tokens
(`TokenMerge`), which are appended. dsmil ranks by the largest class logit of a tile, has two streams with half the loss
each, and predicts by the mean.

Training has two stages (`pretrain`): first the network alone, without teacher and mask ("pure"); its weights initialize
the teacher and the student's embedding, the rest of the student is initialized randomly.

In training the abmil base returns the scores of all tiles, those of masked ones for an anchor. With the other bases a
score depends on the other tiles, so they return none for a masked bag, and `attend` returns those of the whole bag.
Default settings, differences from the official code and edge cases: docs/methods/mhim.md.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.attention_pool import AttentionPoolModel
from asmil.models.base import Loss, MILModel, Output, Stage, masked_scores
from asmil.models.blocks.dual_stream import STREAM_LOGITS, two_stream_loss
from asmil.models.blocks.nystrom import as_distribution
from asmil.models.blocks.randomness import RandomModule, draws_batched
from asmil.models.mhim_maskable import AttentionEncoder, MHIMConfig, Network
from asmil.models.mhim_masking import Mask, MaskRatios, choose_masked, cosine
from asmil.models.official import Config, Converted, Tensors, converted, options_of, register_official, renamed
from asmil.models.registry import register
from asmil.models.shared_presets import MHIM_AND_R2T
from asmil.models.transmil import encoder_layers
from asmil.tasks.base import Task

TRAINED_LOGITS = ("bag_logits", "max_logits")
"""What the loss of the dsmil base reads; all other outputs for a masked bag are about the kept tiles."""


class PureMHIM(AttentionPoolModel):
    """The network of MHIM by itself, without mask and teacher: the first stage of the training, and inference."""

    config_type = MHIMConfig
    smooths = ()
    why_not_smoothed = "in training it scores only the tiles that its teacher keeps, whose neighbors are missing"
    score_axes = ("row",)
    logits_in_extras = STREAM_LOGITS
    """One row with abmil, one row per head with transmil, one row per class with dsmil."""
    config: MHIMConfig

    def __init__(self, in_features: int, n_outputs: int, config: MHIMConfig, *, merges: bool = False) -> None:
        super().__init__(in_features, n_outputs, config)
        self.network = Network(in_features, n_outputs, config, merges)
        self.merges_at_test = merges and config.merge_test
        self.maps_predicted_class = config.base == "dsmil"

    @property
    def normalizer_built_in(self) -> bool:
        return self.config.base == "transmil"

    @property
    def pooled_by_mask(self) -> bool:
        """Whether tiles are left out of a bag by a mask: its tiles meet only in the attention."""
        return isinstance(self.network.encoder, AttentionEncoder) and self.network.merge is None

    @property
    def padding_from(self) -> int | None:
        return 1 if self.pooled_by_mask and not self.network.embedding.mil_dropout.top else None

    def embed(self, features: Tensor) -> Tensor:
        return self.network.embedding(features)

    def score(self, embedded: Tensor) -> Tensor:
        return self.network.encoder.attend(self._read(self.network, embedded))[:, : len(embedded)]

    def readout(self, pooled: Tensor, scores: Tensor | None) -> Output:
        assert isinstance(self.network.encoder, AttentionEncoder), "other bases are not pooled chunk by chunk"
        return self.network.encoder.readout(pooled, scores)

    def encode(self, embedded: Tensor) -> Output:
        """The output for all embedded tiles of a bag."""
        output = self.network.encoder(self._read(self.network, embedded), self.normalizer)
        if not self.merges_at_test:
            return output
        scores, classified = output.scores, output.instance_logits
        return replace(
            output,
            scores=None if scores is None else scores[:, : len(embedded)],
            instance_logits=None if classified is None else classified[: len(embedded)],
        )

    def forward(self, bag: Bag) -> Output:
        embedded = self.embed(bag.features)
        return self.encode(embedded) if bag.mask is None else self._pool(embedded, bag.mask, bag)

    def _pool(self, embedded: Tensor, kept: Tensor, bag: Bag) -> Output:
        """The output for the kept tiles (N booleans), with the scores of all."""
        assert isinstance(self.network.encoder, AttentionEncoder)
        output = self.network.encoder(embedded, self.normalizer, kept)
        assert output.scores is not None
        return replace(output, scores=masked_scores(output.scores, bag))

    @property
    def can_stream(self) -> bool:
        return super().can_stream and self.network.encoder.tilewise and not self.merges_at_test

    @property
    def classifies_tiles(self) -> bool:
        return self.config.base == "dsmil"

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        if self.config.base == "dsmil":
            return two_stream_loss(outputs, targets, task)
        return super().loss(outputs, targets, task)

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        if output.scores is None or (self.config.base == "transmil" and "class_row" not in output.extras):
            raise AsmilError(
                f"heat maps of mhim with the base {self.config.base} need eval mode; call model.eval() first"
            )
        attention = super().draw_tile_map(output, kind)
        if self.config.base != "transmil":
            return attention
        return as_distribution(output.extras["class_row"].mean(dim=0)[: len(attention)], otherwise=attention)

    def _read(self, network: Network, embedded: Tensor) -> Tensor:
        """What an encoder reads of a whole bag: its tiles, and the tokens made of all of them if they are merged."""
        if not self.merges_at_test or network.merge is None:
            return embedded
        return torch.cat([embedded, network.merge(embedded)])


@register(
    "mhim",
    summary="a moving-average teacher masks the easy tiles, and the student learns from the rest",
    paper="Tang et al., Multiple Instance Learning Framework with Masked Hard Instance Mining for Whole Slide Image "
    "Classification",
    year=2023,
    presets={
        "official": {"training": MHIM_AND_R2T},
        "port": {
            "model": {
                "mask_random": 0.0,
                "mask_low": 0.0,
                "mask_high": 0.1,
                "high_share": 0.5,
                "high_decay": False,
                "consistency_weight": 0.1,
                "momentum": 0.9999,
                "momentum_schedule": "constant",
                "pretrain": False,
            }
        },
    },
)
class MHIM(PureMHIM):
    """MHIM-MIL; see the module's text for the formulas."""

    own_stabilizers: ClassVar[Mapping[str, str]] = {"features": "model.consistency_weight"}

    def __init__(self, in_features: int, n_outputs: int, config: MHIMConfig) -> None:
        super().__init__(in_features, n_outputs, config, merges=config.merges)
        self.teacher = copy.deepcopy(self.network).requires_grad_(False)
        self.recipe = config.recipe()
        self.chance = RandomModule()
        self.step: int | Tensor = 0
        self.steps: int | Tensor = 1

    # Training: the student on a part of the bag

    def forward(self, bag: Bag) -> Output:
        return self.forward_masked(bag) if self.training else super().forward(bag)

    def forward_masked(self, bag: Bag) -> Output:
        """The student on the tiles that the teacher keeps; in eval mode without dropout, and with merged tiles, too."""
        teacher_feature, ranking = self.teach(bag)
        mask = self.mask(ranking, bag.mask)
        extras = {"teacher_feature": teacher_feature, "kept": mask.is_kept}
        if self.pooled_by_mask:
            output = self._pool(self.embed(bag.features), mask.is_kept, bag)
            return Output(output.logits, output.scores, output.embedding, extras=extras)
        embedded = self.embed(bag.features[mask.kept])
        read, merged = self._merge(embedded)
        output = self.network.encoder(read, self.normalizer)
        extras |= merged
        extras |= {name: output.extras[name] for name in TRAINED_LOGITS if name in output.extras}
        scores = None
        if self.network.encoder.tilewise:
            kept = output.scores if read is embedded else self.network.encoder.attend(embedded)
            assert kept is not None
            scores = self._scores_of_all(kept, bag, mask)
        return Output(output.logits, scores, output.embedding, extras=extras)

    @torch.no_grad()
    def teach(self, bag: Bag) -> tuple[Tensor, Tensor]:
        """The teacher's bag feature (rows x I) and its ranking of the tiles (A x N, the easiest highest)."""
        embedded = self.teacher.embedding(bag.features)
        # Rounded to half precision, scores would tie, and ties go to the first tiles of the slide.
        with torch.autocast(embedded.device.type, enabled=False):
            read = self._read(self.teacher, embedded.to(next(self.teacher.parameters()).dtype))
            encoder, class_aware = self.teacher.encoder, self.config.version == 2
            if isinstance(encoder, AttentionEncoder):
                feature, ranking = encoder.teach(read, self.normalizer, class_aware, bag.mask)
            else:
                feature, ranking = encoder.teach(read, self.normalizer, class_aware)
        return feature, ranking[:, : len(bag)]

    def mask(self, ranking: Tensor, tiles: Tensor | None = None) -> Mask:
        """The mask of a bag with this ranking (A x N) at the current step; tiles: N, false for padding."""
        recipe = self.recipe
        high = cosine(recipe.mask_high, 0.0, self.step, self.steps) if recipe.high_decay else recipe.mask_high
        ratios = MaskRatios(recipe.mask_random, recipe.mask_low, high, recipe.high_share)
        return choose_masked(ranking, ratios, self._draw, tiles)

    def _merge(self, embedded: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The input of the student: all kept tiles, or some of them and tokens made from the others."""
        merge = self.network.merge
        if merge is None:
            return embedded, {}
        stay = merged = embedded
        if self.training:
            order = self._draw(len(embedded)).to(embedded.device).argsort()
            shuffled = embedded[order]
            # At least one tile is merged, since a token needs tiles.
            count = min(int(len(embedded) * self.config.merge_ratio), len(embedded) - 1)
            stay, merged = shuffled[:count], shuffled[count:]
        tokens = merge(merged)
        return torch.cat([stay, tokens]), {"merged_tokens": tokens}

    def _scores_of_all(self, kept: Tensor, bag: Bag, mask: Mask) -> Tensor:
        """The scores of the kept tiles (A x kept) and of the masked ones, in the order of the bag.

        Masked tiles have a gradient as well, but need a backward pass only if a loss reads their scores.
        """
        masked = self.network.encoder.attend(self.embed(bag.features[mask.masked]))
        return torch.cat([kept, masked], dim=1)[:, torch.cat([mask.kept, mask.masked]).argsort()]

    def _draw(self, count: int) -> Tensor:
        return self.chance.uniform((count,), next(self.parameters()))

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        loss = super().loss(outputs, targets, task)
        taught = [output for output in outputs if "teacher_feature" in output.extras]
        if not taught or self.recipe.consistency_weight == 0:
            return loss
        consistency = torch.stack([self._consistency(output) for output in taught]).mean()
        total = loss.total + self.recipe.consistency_weight * consistency
        return Loss(total, {**loss.parts, "consistency": consistency})

    def _consistency(self, output: Output) -> Tensor:
        """Cross-entropy over feature channels from the teacher's bag feature to the student's (mean over its rows)."""
        teacher = output.extras["teacher_feature"].detach().float()
        student = output.embedding.float().view_as(teacher)
        target = torch.softmax(teacher / self.config.teacher_temperature, dim=-1)
        return functional.cross_entropy(student / self.config.student_temperature, target)

    # Over the steps

    def stages(self) -> list[Stage]:
        if not self.config.pretrain:
            return super().stages()
        pure = PureMHIM(self.in_features, self.n_outputs, self.config)
        pure.normalizer = copy.deepcopy(self.normalizer)
        return [Stage("pure", pure), Stage("masked", self, start=self._start_from)]

    def _start_from(self, pure: MILModel, bags: Iterable[Bag]) -> None:
        """Copy the network that was trained alone to the teacher, and its embedding to the student."""
        assert isinstance(pure, PureMHIM)
        self.teacher.load_state_dict({**self.teacher.state_dict(), **pure.network.state_dict()})
        self.network.embedding.load_state_dict(pure.network.embedding.state_dict())

    def before_step(self, step: int, steps: int) -> None:
        self.step, self.steps = step, steps

    def after_step(self, bag: Bag, output: Output, target: Tensor) -> None:
        if self.network.merge is not None:
            self.network.merge.follow(output.extras["merged_tokens"], self.config.merge_momentum)
        move_towards(self.teacher, self.network, self.teacher_momentum())

    def teacher_momentum(self) -> float | Tensor:
        """mm at the current step."""
        momentum = self.recipe.momentum
        if self.recipe.momentum_schedule == "constant":
            return momentum
        value: float | Tensor = cosine(momentum, 1.0, self.step, self.steps)
        return value


@torch.no_grad()
def move_towards(slow: nn.Module, fast: nn.Module, momentum: float | Tensor) -> None:
    """`slow <- momentum slow + (1 - momentum) fast`, for the parameters (not the buffers) of two equal modules."""
    slow_parameters: list[Tensor] = list(slow.parameters())
    fast_parameters = [parameter.detach() for parameter in fast.parameters()]
    if not (isinstance(momentum, Tensor) or draws_batched()):
        torch._foreach_lerp_(slow_parameters, fast_parameters, 1.0 - momentum)
        return
    share = 1.0 - momentum
    for average, current in zip(slow_parameters, fast_parameters, strict=True):
        moved = torch.lerp(average, current, share.to(average.dtype) if isinstance(share, Tensor) else share)
        average.copy_(moved)


EMBEDDINGS = {1: "patch_to_emb.0", 2: "feature.0"}
ENCODERS: Mapping[str, Mapping[str, str]] = {
    "abmil": {
        "attention.value": "online_encoder.attention.attention.0",
        "attention.weight": "online_encoder.attention.attention.2",
        "head": "predictor",
    },
    "transmil": {**encoder_layers("online_encoder.", "pos_embedding"), "head": "predictor"},
    "dsmil": {
        "streams.instance": "online_encoder.i_classifier.0",
        "streams.query.0": "online_encoder.b_classifier.q.0",
        "streams.query.1": "online_encoder.b_classifier.q.2",
        "streams.value": "online_encoder.b_classifier.v.1",
        "head": "online_encoder.b_classifier.fcc",
    },
}
MERGE = {"norm": "merge.norm", "to_q": "merge.attn.to_q", "to_kv": "merge.attn.to_kv", "to_out": "merge.attn.to_out.0"}
COPIES = ("merge.global_q_mm", "merge.global_q_grad")
"""Further names of `merge.global_q`."""

MASK_WORDS = {
    "mask_ratio": "mask_random",
    "mask_ratio_l": "mask_low",
    "mask_ratio_h": "mask_high",
    "mask_ratio_hr": "high_share",
}
NOTHING_MASKED = {"mask_random": 0.0, "mask_low": 0.0, "mask_high": 0.0, "high_share": 1.0}
OTHER_WORDS = {
    "act": "activation",
    "attention_act": "attention_activation",
    "da_act": "attention_activation",
    "landmarks": "landmarks",
    "num_landmarks": "landmarks",
    "pinv_iterations": "iterations",
    "cl_alpha": "consistency_weight",
    "aux_alpha": "consistency_weight",
    "temp_t": "teacher_temperature",
    "temp_s": "student_temperature",
    "mm": "momentum",
    "merge_ratio": "merge_ratio",
    "merge_mm": "merge_momentum",
    "merge_heads": "merge_heads",
    "merge_test": "merge_test",
}


def _encoder_state(tensors: Tensors, base: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options that follow from the shapes of an encoder, and its state."""
    state = renamed(tensors, ENCODERS[base])
    if base == "abmil":
        return {"attention": len(state["attention.value.weight"])}, state
    if base == "dsmil":
        state["head.weight"] = state["head.weight"].flatten(start_dim=1)
        return {}, state
    state["class_token"] = tensors["online_encoder.cls_token"].flatten(0, 1)
    heads = len(state["layer1.attention.residual.weight"])
    head_width = len(state["layer1.attention.to_qkv.weight"]) // (3 * heads)
    return {"heads": heads, "head_width": head_width}, state


def _merge_state(tensors: Tensors, heads: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if "merge.global_q" not in tensors:
        return {"merge_k": 0}, {}
    state = renamed(tensors, MERGE)
    state["query"] = tensors["merge.global_q"].flatten(0, 1)
    return {"merge_k": len(state["query"]), "merge_head_width": len(state["to_q.weight"]) // heads}, state


def _asked(config: Config) -> dict[str, Any]:
    """Our options for the words of an official configuration; of masking stages it names, the others are off."""
    masks = options_of(config, MASK_WORDS)
    if masks:
        masks = NOTHING_MASKED | masks
        # 0 is the class's default, with which it can only run where nothing high is masked.
        masks["high_share"] = masks["high_share"] or 1.0
    return masks | options_of(config, OTHER_WORDS)


def _register_layout(version: int, base: str) -> None:
    """Register an official layout; the state dict of one network becomes both the student and the teacher."""
    embedding = EMBEDDINGS[version]

    def convert(tensors: Tensors, config: Config) -> Converted:
        asked = _asked(config)
        parts = {"embedding": renamed(tensors, {"layers.0": embedding})}
        options, parts["encoder"] = _encoder_state(tensors, base)
        if version == 2:
            merge_options, parts["merge"] = _merge_state(tensors, asked.get("merge_heads", 8))
            options |= merge_options
        inner, in_features = parts["embedding"]["layers.0.weight"].shape
        n_outputs = len(tensors["online_encoder.i_classifier.0.weight" if base == "dsmil" else "predictor.weight"])
        network = {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}
        state = {f"{role}.{name}": tensor for role in ("network", "teacher") for name, tensor in network.items()}
        options |= {"version": version, "base": base, "inner": inner}
        return converted(state, in_features, n_outputs, **options, **asked)

    # the official class has a predictor that it does not call for DSMIL
    register_official("mhim", (embedding, *ENCODERS[base].values()), convert, unused=(*COPIES, "predictor"))


for _version in EMBEDDINGS:
    for _base in ENCODERS:
        _register_layout(_version, _base)
