"""The base class of all methods: a module from a bag to an `Output`, with scores, a loss and a heat map."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from asmil.attention.normalizers import Normalizer, Softmax
from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.machine.lazy_names import former_name
from asmil.models.blocks.randomness import use_generator
from asmil.models.blocks.smoothing import GRAPH, Smoothing, with_graph
from asmil.settings.config import Settings
from asmil.tasks.base import Task

EVIDENCE_WEIGHTS = "evidence_weights"
"""Key of an output's extras: C, how much the explained number grows with every logit."""
INNER_WIDTHS = {384: 128, 512: 256, 768: 384, 1024: 512, 1536: 768}


def inner_width(in_features: int) -> int:
    """The embedding width that the ASMIL study pairs with a feature width.

    Widths it does not name get half their size, rounded up to a multiple of 8 so that eight heads fit.
    """
    return INNER_WIDTHS.get(in_features, -(-in_features // 16) * 8)


def refuse_uneven(width: int, heads: int, option: str = "heads") -> None:
    """Raise unless the width is a multiple of the heads, which the option sets."""
    if width % heads:
        raise AsmilError(
            f"an embedding of width {width} cannot be split into model.{option} = {heads}; "
            "choose model.inner as a multiple of the heads"
        )


class ModelConfig(Settings):
    """The architecture of a method: the `model` section of the configuration."""


@dataclass(slots=True)
class Output:
    """The output of a model for one bag; plain tensors only.

    logits: C, before softmax (or the task's own link)
    scores: A x N, attention before normalization, or None for a method without attention
    embedding: the bag as a vector
    instance_logits: N x C where a method classifies its tiles
    extras: further tensors, for the loss of a method or for users
    """

    logits: Tensor
    scores: Tensor | None
    embedding: Tensor
    instance_logits: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)


def predicted_row(output: Output) -> Tensor:
    """The scores of the predicted class, 1 x N; or the only row, if there is one."""
    assert output.scores is not None
    if len(output.scores) == 1:
        return output.scores
    return output.scores.index_select(0, output.logits.argmax().reshape(1))  # a Python number could not be exported


def predicted_column(output: Output, instance_logits: Tensor) -> Tensor:
    """The column (N) of N x C values of tiles that belongs to the predicted class; or the only column."""
    # index_select: torch.export before 2.13 cannot index with a tensor
    return instance_logits.index_select(1, output.logits.argmax().reshape(1))[:, 0]


def explained_column(output: Output, contributions: Tensor) -> Tensor:
    """The contributions (N) of tiles to what is explained, from those to every logit (N x C)."""
    weights = output.extras.get(EVIDENCE_WEIGHTS)
    return predicted_column(output, contributions) if weights is None else contributions @ weights.to(contributions)


def explains_logits(task: Task) -> bool:
    """Whether maps explain a logit each; otherwise one number of several logits, such as the risk of time bins."""
    return task.n_outputs in (1, len(task.explained_names))


def toward_evidence(output: Output, task: Task, index: int = 0) -> Output:
    """The output whose contributions of tiles are those to the task's evidence, to first order, not to a logit."""
    with torch.enable_grad():
        logits = output.logits.detach().double().clone().requires_grad_()
        (weights,) = torch.autograd.grad(task.evidence(logits.unsqueeze(0), index).sum(), logits)
    return replace(output, extras={**output.extras, EVIDENCE_WEIGHTS: weights})


def comparable_maps(outputs: Sequence[Output], tasks: Sequence[Task]) -> list[Output]:
    """The outputs of several models for a bag, changed so that their maps explain the same number."""
    if explains_logits(tasks[0]):
        return of_one_class(outputs)
    return [toward_evidence(output, task) for output, task in zip(outputs, tasks, strict=True)]


def of_one_class(outputs: Sequence[Output]) -> list[Output]:
    """The outputs of several models for a bag, each with the mean prediction as logits: their maps are of one class."""
    if len(outputs) == 1 or len(outputs[0].logits) == 1:
        return list(outputs)
    mean = torch.stack([output.logits for output in outputs]).softmax(dim=-1).mean(dim=0)
    return [replace(output, logits=mean.to(output.logits.dtype)) for output in outputs]


def masked_scores(scores: Tensor, bag: Bag) -> Tensor:
    """The scores (A x N), minus infinity for padding."""
    return scores if bag.mask is None else scores.masked_fill(~bag.mask, -torch.inf)


def refuse_padding(bag: Bag) -> None:
    """Raise for a padded bag that is not prepared."""
    if bag.mask is not None:
        raise AsmilError(f"{bag.id}: a bag must be prepared before its padding is added; use model.prepare(bag)")


@dataclass(slots=True)
class Loss:
    """A training loss (`total`, with gradient) and the parts it is made of."""

    total: Tensor
    parts: Mapping[str, Tensor]


@dataclass(frozen=True)
class Stage:
    """One of several stages of a training; the loop trains `model`, then starts the next stage.

    name: written to `metrics.jsonl` and checkpoints
    model: what this stage trains; the model of the last stage is kept
    start: called once with the previous stage's model (its chosen epoch, in eval mode) and the training bags
        (prepared, on the model's device), to initialize this stage
    epochs: the number of epochs; None: `training.epochs`
    """

    name: str
    model: MILModel
    start: Callable[[MILModel, Iterable[Bag]], None] = lambda previous, bags: None
    epochs: int | None = None


class MILModel(nn.Module):
    """The base of all methods.

    A subclass sets `config_type` and `score_axes`, and implements `attend` and `forward`. It never sees a label in
    `forward`, draws its randomness from modules of `models/blocks/randomness.py`, and takes features in any floating
    type.
    """

    config_type: ClassVar[type[ModelConfig]] = ModelConfig
    score_axes: tuple[str, ...] = ()
    """What the A rows of the scores are, outermost first; empty for a method without attention."""
    map_kinds: tuple[str, ...] = ("attention",)
    """The kinds of `tile_map`, the default first."""
    weighted_instance_logits: ClassVar[bool] = False
    """Whether the instance logits of an output are shares of the bag's logits: multiplied by the weights of tiles."""
    smooths: tuple[str, ...] = ()
    """What `use_smoothing` can smooth: `early` the embedded tiles, `late` the scores."""
    why_not_smoothed: str = "it has no attention scores"
    """Why a method with empty `smooths` cannot be smoothed."""
    records_steps: ClassVar[bool] = True
    """Whether its steps may be recorded as CUDA graphs, if its bags can be padded."""
    label_routes_gradients: ClassVar[bool] = False
    """Whether the class of a bag decides which parameters its loss reaches."""
    maps_predicted_class: bool = False
    """Whether the attention map is that of the predicted class; otherwise it is the mean over the rows."""
    own_stabilizers: ClassVar[Mapping[str, str]] = {}
    """Stabilizers that are part of the method, each with the setting of its weight."""
    logits_in_extras: ClassVar[tuple[str, ...]] = ()
    """Extras of outputs that the loss compares with the target of the bag, like its logits; they get its offset too."""
    magnifications: ClassVar[Literal["one", "any"]] = "any"
    """Features that it reads: of one magnification, or also of several, concatenated; see docs/magnifications.md."""

    heatmap = former_name("heatmap", "tile_map")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for former, new in (("draw_heatmap", "draw_tile_map"), ("heatmap_kinds", "map_kinds")):
            if former in vars(cls):
                text = f"{cls.__name__}.{former} is deprecated; it is now called {new}"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                setattr(cls, new, vars(cls)[former])

    def __init__(self, in_features: int, n_outputs: int, config: ModelConfig) -> None:
        super().__init__()
        if in_features < 1 or n_outputs < 1:
            raise AsmilError(f"a model needs at least one feature and one output, not {in_features} and {n_outputs}")
        self.in_features = in_features
        self.n_outputs = n_outputs
        self.config = config
        self.normalizer: Normalizer = Softmax()
        self.tile_smoothing: Smoothing | None = None
        self.smoothed = ""
        self.register_forward_pre_hook(_refuse_misfit)

    def refuse_misfit(self, bag: Any) -> None:
        """Raise unless `bag` is a bag whose tiles have the width the model was built for."""
        if not isinstance(bag, Bag):
            raise AsmilError(f"{type(self).__name__} takes a Bag, not {type(bag).__name__}; wrap it: Bag(features)")
        if bag.mask is not None and self.padding_from is None:
            raise AsmilError(f"{bag.id}: {type(self).__name__} needs a bag without padding; give it bags one by one")
        if bag.width != self.in_features:
            raise AsmilError(
                f"{bag.id}: its tiles have {bag.width} features, the model was built for {self.in_features}; "
                "use features of the encoder that the model was trained with"
            )

    def prepare(self, bag: Bag) -> Bag:
        """Parameter-free work on a bag (neighbors, clusters); the loader keeps the result."""
        return bag if self.tile_smoothing is None else with_graph(bag, f"smoothing.where = {self.smoothed}")

    @property
    def tile_tables(self) -> tuple[str, ...] | None:
        """The extras that `prepare` adds, if each is an integer for every tile (N); None: it adds others."""
        return () if type(self).prepare is MILModel.prepare else None

    def attend(self, bag: Bag) -> Tensor:
        """The scores of the tiles, A x N."""
        raise AsmilError(f"{type(self).__name__} has no attention, so there are no scores to read")

    @property
    def padding_from(self) -> int | None:
        """Bags of at least this many tiles may be padded with rows that `bag.mask` marks, with the same result.

        None: the method needs bags without padding.
        """
        return None

    @property
    def batch_from(self) -> int | None:
        """`padding_from` of bags in a batch, which have no extras: None if the method reads `tile_tables`."""
        return self.padding_from if self.tile_tables == () else None

    @property
    def steps_alike(self) -> bool:
        """Whether every training step is the same function of weights and bag: no schedule or state of the method."""
        own, base = type(self), MILModel
        return own.before_step is base.before_step and own.after_step is base.after_step

    @property
    def can_stream(self) -> bool:
        """Whether a long bag can be read in chunks; if so, the model has `stream(chunks) -> Output`."""
        return False

    def stream(self, chunks: Iterable[Tensor]) -> Output:
        """The output for a bag that arrives as chunks of features (n x D each), in the order of its tiles.

        chunks: some methods read them twice, so they must not be an iterator
        """
        raise AsmilError(f"{type(self).__name__} cannot process a bag in chunks")

    def loss(self, outputs: Sequence[Output], targets: Tensor, task: Task) -> Loss:
        """The loss of the bags of one step; by default the task's loss of the logits."""
        value = task.loss(torch.stack([output.logits for output in outputs]), targets)
        return Loss(value, {task.loss_name: value})

    def uncertainty(self, output: Output, task: Task) -> dict[str, float]:
        """Uncertainties of a bag by name, for methods that estimate them; shown beside predictions."""
        return {}

    def with_offset(self, output: Output, offset: Tensor | None) -> Output:
        """The output with the offset of a bag (C) added to its logits, and to those that only the loss reads."""
        if offset is None:
            return output
        extras = {name: output.extras[name] + offset for name in self.logits_in_extras if name in output.extras}
        return replace(output, logits=output.logits + offset, extras={**output.extras, **extras})

    @property
    def has_tile_map(self) -> bool:
        """Whether the model can show how much each tile counted: by its scores, or by its own map."""
        return bool(self.score_axes) or type(self).draw_tile_map is not MILModel.draw_tile_map

    @property
    def classifies_tiles(self) -> bool:
        """Whether outputs have instance logits in eval mode."""
        return False

    @torch.no_grad()
    def tile_map(self, output: Output, kind: str | None = None) -> Tensor:
        """One value per tile, N, as the method's authors draw it; `kind` is one of `map_kinds`."""
        if not self.has_tile_map:
            raise AsmilError(
                f"{type(self).__name__} has no map of its tiles: it has neither attention scores nor a draw_tile_map"
            )
        kind = self.map_kinds[0] if kind is None else kind
        if kind not in self.map_kinds:
            known = ", ".join(repr(known) for known in self.map_kinds)
            raise AsmilError(f"{type(self).__name__} has no map {kind!r}; it has {known}")
        return self.draw_tile_map(output, kind)

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        """What `tile_map` gives for a known kind: by default the attention."""
        assert output.scores is not None, "a method without scores draws its own map"
        attention: Tensor = self.normalizer(predicted_row(output) if self.maps_predicted_class else output.scores)
        return attention.mean(dim=0)

    def stages(self) -> list[Stage]:
        """The stages of the training, if it has several; the model of the last stage is this model."""
        return [Stage("", self)]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Optimizer groups: `params`, and, if they differ from those of the run, `lr`, `weight_decay`, `clip_norm`."""
        return [{"params": [parameter for parameter in self.parameters() if parameter.requires_grad]}]

    def before_step(self, step: int, steps: int) -> None:
        """Called before every optimizer step of a stage: this is step `step` of `steps` (0-based; for schedules).

        Where trainings run side by side, both are tensors without axes; what it sets must depend on these, parameters
        and buffers alone.
        """

    def after_step(self, bag: Bag, output: Output, target: Tensor) -> None:
        """Called after every optimizer step (momentum teachers, prototypes), with the step's last bag.

        target: a class index of shape (1,), or what the task's targets are
        """

    def use_normalizer(self, normalizer: Normalizer) -> None:
        """Replace the normalizer of the method; refused if it is built in."""
        if not self.score_axes:
            raise AsmilError(f"{type(self).__name__} has no attention, so there are no scores to normalize")
        if self.normalizer_built_in:
            raise AsmilError(
                f"the softmax of {type(self).__name__} is part of its Nystrom attention and cannot be replaced; leave "
                "attention.normalizer out (an anchor can have any normalizer)"
            )
        self.normalizer = normalizer

    def use_smoothing(self, smoothing: Smoothing, where: str) -> None:
        """Smooth embedded tiles (`early`) or scores (`late`) over touching tiles; refused where a method does not."""
        if where not in self.smooths:
            can = f"; it can be {' or '.join(self.smooths)}" if self.smooths else f": {self.why_not_smoothed}"
            raise AsmilError(f"{type(self).__name__} does not support smoothing.where = {where}{can}")
        self.tile_smoothing, self.smoothed = smoothing, where

    def use_attention_settings_of(self, other: MILModel) -> None:
        """Take copies of the normalizer and of the smoothing of a model, for a stage of its training."""
        self.normalizer = copy.deepcopy(other.normalizer)
        if other.tile_smoothing is not None:
            self.use_smoothing(copy.deepcopy(other.tile_smoothing), other.smoothed)

    def smooth_tiles(self, embedded: Tensor, bag: Bag) -> Tensor:
        """Embedded tiles (N x I), smoothed if they are to be."""
        return self._smooth(embedded, bag) if self.smoothed == "early" else embedded

    def smooth_scores(self, scores: Tensor, bag: Bag) -> Tensor:
        """Scores (A x N), smoothed row by row if they are to be."""
        return self._smooth(scores.t(), bag).t() if self.smoothed == "late" else scores

    def _smooth(self, values: Tensor, bag: Bag) -> Tensor:
        assert self.tile_smoothing is not None
        matrix = self.prepare(bag).extras[GRAPH]
        return self.tile_smoothing(values, matrix).to(values.dtype)

    @property
    def normalizer_built_in(self) -> bool:
        """Whether the normalizer is part of the method and cannot be replaced."""
        return False

    def use_generator(self, generator: torch.Generator | None) -> None:
        """Draw all random numbers of training from `generator`, so that a run can be repeated and resumed."""
        use_generator(self, generator)


class ModelOnBase(MILModel):
    """A method that is built on another one and shares its attention: scores, heat map and padding are the base's.

    A subclass sets `base` and `forward`.
    """

    base: MILModel

    def prepare(self, bag: Bag) -> Bag:
        return self.base.prepare(bag)

    def use_smoothing(self, smoothing: Smoothing, where: str) -> None:
        self.base.use_smoothing(smoothing, where)

    def use_attention_settings_of(self, other: MILModel) -> None:
        assert isinstance(other, ModelOnBase)
        super().use_attention_settings_of(other)
        if other.base.tile_smoothing is not None:
            self.use_smoothing(copy.deepcopy(other.base.tile_smoothing), other.base.smoothed)

    def current_base(self) -> MILModel:
        """The base, with the current normalizer of this model; a state dict contains the normalizer only once."""
        self.base._modules.pop("normalizer", None)
        object.__setattr__(self.base, "normalizer", self.normalizer)
        return self.base

    @property
    def normalizer_built_in(self) -> bool:
        return self.base.normalizer_built_in

    @property
    def tile_tables(self) -> tuple[str, ...] | None:
        return self.base.tile_tables

    @property
    def padding_from(self) -> int | None:
        return self.base.padding_from

    @property
    def can_stream(self) -> bool:
        return self.current_base().can_stream

    def attend(self, bag: Bag) -> Tensor:
        return self.current_base().attend(bag)

    def draw_tile_map(self, output: Output, kind: str) -> Tensor:
        return self.current_base().draw_tile_map(output, kind)


def _refuse_misfit(model: nn.Module, args: tuple[Any, ...]) -> None:
    assert isinstance(model, MILModel)
    model.refuse_misfit(args[0])
