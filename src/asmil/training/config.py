"""The settings of a run, as one typed tree, and the presets they start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from asmil.attention.normalizers import NORMALIZERS, Normalizer, build_normalizer
from asmil.cohort.units import UnitKind
from asmil.config import Settings, merge, nested, parse_settings
from asmil.errors import AsmilError, did_you_mean
from asmil.models import survival_study
from asmil.models.base import ModelConfig
from asmil.models.registry import Method, find_method
from asmil.tasks.base import TaskKind

COMMON_PRESETS = ("paper", "recommended")
"""Presets that every method has. `paper` is the common setting of the ASMIL study; `recommended` is ours where there is
evidence for one, and otherwise equals it."""


TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "survival": {"training": survival_study.TRAINING, "data": {"val_share": 0.0}},
}
"""How a task is trained where it differs: survival as in the study whose set-up the ASMIL paper took over."""


class TrainingConfig(Settings):
    """How a model is trained; the defaults are the ASMIL paper's."""

    epochs: int = Field(50, ge=1)
    lr: float = Field(1e-4, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    decay: Literal["all", "matrices"] = Field("all", description="matrices: biases and gains do not decay")
    optimizer: Literal["adam", "adamw", "lookahead_radam"] = "adam"
    betas: tuple[float, float] = Field((0.9, 0.999), description="of the optimizer")
    schedule: Literal["cosine", "constant"] = "cosine"
    lr_min: float = Field(0.0, ge=0, description="where the cosine ends")
    lr_drops: list[int] = Field([], description="epochs after which the learning rate falls")
    lr_drop_factor: float = Field(0.2, gt=0, le=1, description="by which it falls")
    warmup_epochs: float = Field(0, ge=0, description="epochs over which the learning rate rises from 0")
    batch: int = Field(1, ge=1, description="bags that are computed at once, for methods whose bags can be padded")
    accumulate: int = Field(1, ge=1, description="bags per step, or batches of them, one after the other")
    clip_norm: float | None = Field(None, gt=0, description="largest norm of the gradient of a step")
    class_weights: Literal["none", "balanced"] = "none"
    sampling: Literal["shuffle", "balanced"] = "shuffle"
    select: Literal["f1_auc", "loss", "last"] = Field(
        "f1_auc", description="which epoch is kept, by validation data; f1_auc: C-index for survival, R2 for regression"
    )
    early_stopping: int | None = Field(None, ge=1, description="stop after so many epochs without improvement")
    early_stopping_from: int = Field(0, ge=0, description="never stop before so many epochs of a stage are done")
    seed: int = Field(0, ge=0)
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 on a GPU that has it")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    executor: Literal["auto", "plain", "graphed", "fused"] = Field(
        "auto",
        description="who takes the steps; auto: on a GPU fused kernels, else CUDA graphs, where they apply "
        "(docs/performance.md)",
    )
    checkpoint_seconds: float = Field(20, ge=0, description="at least so long between two checkpoints")

    @property
    def bags_per_step(self) -> int:
        """How many bags an optimizer step is computed from."""
        return self.batch * self.accumulate

    @model_validator(mode="after")
    def _stopping_needs_a_choice(self) -> TrainingConfig:
        if self.early_stopping is not None and self.select == "last":
            raise ValueError("early_stopping stops by validation data, but select: last looks at none")
        return self

    @model_validator(mode="after")
    def _cosine_falls(self) -> TrainingConfig:
        if self.lr_min > self.lr:
            raise ValueError(f"lr_min = {self.lr_min} lies above lr = {self.lr}")
        return self

    @model_validator(mode="after")
    def _betas_are_shares(self) -> TrainingConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {list(self.betas)}: both must be at least 0 and below 1")
        return self


class NormalizerConfig(Settings):
    """A rule from scores to attention and its options; an option that the rule does not take is refused."""

    unnamed: ClassVar[str]
    """The word for no rule of one's own."""
    normalizer: str
    temperature: float = Field(1.0, gt=0, description="divides the scores, of softmax and nsf")
    alpha: float = Field(1.5, gt=1, le=2, description="of entmax: the larger, the fewer tiles")
    kappa: float = Field(2.0, gt=0, description="of standardized_nsf and standardized_softmax: how sharp they are")
    offset: float = Field(1.0, description="of standardized_nsf: the border, in standard deviations above the mean")

    @model_validator(mode="after")
    def _takes_its_options(self) -> NormalizerConfig:
        takes = () if self.normalizer == self.unnamed else NORMALIZERS[self.normalizer].options
        for option in ("temperature", "alpha", "kappa", "offset"):
            changed = getattr(self, option) != type(self).model_fields[option].default
            if changed and option not in takes:
                owners = " and ".join(name for name, rule in NORMALIZERS.items() if option in rule.options)
                raise ValueError(f"{option} belongs to the normalizer {owners}, not to {self.normalizer}")
        return self

    def build_normalizer(self) -> Normalizer | None:
        """The rule, or None where none is named."""
        if self.normalizer == self.unnamed:
            return None
        options = {option: getattr(self, option) for option in NORMALIZERS[self.normalizer].options}
        return build_normalizer(self.normalizer, **options)


class AttentionConfig(NormalizerConfig):
    """How the model in training turns its scores into attention."""

    unnamed = "own"
    normalizer: Literal["own", "softmax", "nsf", "standardized_nsf", "sparsemax", "entmax", "mixture"] = Field(
        "own", description="own: the method's own rule"
    )


class AnchorConfig(NormalizerConfig):
    """The anchor that the attention is held to; `normalizer: none` trains without one."""

    unnamed = "none"
    normalizer: Literal["none", "softmax", "nsf", "standardized_nsf", "standardized_softmax", "sparsemax", "entmax"] = (
        "none"
    )
    momentum: float = Field(0.999, ge=0, le=1)
    weight: float = Field(1.0, ge=0, description="beta")
    update: Literal["step", "epoch", "never"] = "step"
    start: Literal["copy", "random"] = Field("copy", description="of the online weights, or weights of its own")
    divergence: Literal["kl", "cross_entropy"] = "kl"
    reduction: Literal["sum", "mean"] = Field("sum", description="over tiles")
    rows: Literal["all", "kept"] = Field("all", description="which tokens enter the average")
    both_sides: bool = Field(False, description="compare the online scores under the anchor's normalizer too")
    ramp_epochs: int = Field(0, ge=0, description="epochs over which the weight rises, as in Mean Teacher")
    ramp_momentum: float | None = Field(None, ge=0, le=1, description="momentum during the ramp")
    gradient_share: float | None = Field(
        None, gt=0, description="largest norm of the anchor's gradient, as a share of the norm of the loss's own"
    )


class TemporalConfig(Settings):
    """Holds the attention of a slide to the average of its own past."""

    weight: float = Field(0.0, ge=0)
    rate: float = Field(0.9, ge=0, lt=1, description="rho, the share of the past in the average")


class FeaturesConfig(Settings):
    """Holds the bag feature to that of a moving copy of the model."""

    weight: float = Field(0.0, ge=0)
    momentum: float = Field(0.999, ge=0, le=1)
    teacher_temperature: float = Field(0.1, gt=0)
    student_temperature: float = Field(1.0, gt=0)


class EntropyConfig(Settings):
    """Rewards attention for its entropy."""

    weight: float = Field(0.0, ge=0)


class EntropyFloorConfig(Settings):
    """Pushes attention whose relative entropy H / ln N lies below a floor."""

    weight: float = Field(0.0, ge=0)
    floor: float = Field(0.5, gt=0, lt=1)


class L2Config(Settings):
    """Penalizes the mean square of the scores."""

    weight: float = Field(0.0, ge=0)


class StabilizersConfig(Settings):
    """Terms that steady attention, besides the anchor; a weight of 0 leaves one out."""

    temporal: TemporalConfig = TemporalConfig()
    features: FeaturesConfig = FeaturesConfig()
    entropy: EntropyConfig = EntropyConfig()
    entropy_floor: EntropyFloorConfig = EntropyFloorConfig()
    l2: L2Config = L2Config()


def _count_or(*words: str) -> BeforeValidator:
    """One of the words, or a whole number from 1 on."""

    def check(value: Any) -> int | str:
        if value in words:
            return str(value)
        text = str(value)
        if not (text.isdecimal() and int(text) >= 1):
            raise ValueError(f"input should be {', '.join(words)} or a whole number from 1 on")
        return int(text)

    return BeforeValidator(check)


class RecordConfig(Settings):
    """Which attention is written down while training, for `asmil stability`."""

    attention: Annotated[int | str, _count_or("none", "all")] = Field(
        2, description="slides: none, all, or so many a class"
    )
    every: Annotated[int | str, _count_or("epoch")] = Field("epoch", description="epoch, or so many steps")
    role: Literal["train", "val", "both"] = Field("train", description="the part that the slides are of")


class TaskConfig(Settings):
    """What is predicted; the options from `bins` on are of survival."""

    kind: TaskKind = "classification"
    loss: Literal["own", "incidence", "hazard", "cox", "squared", "huber"] = Field(
        "own", description="own: incidence for survival, squared for regression"
    )
    bins: int | None = Field(None, ge=2, description="of time; unset: the root of the number of training events")
    binning: Literal["interval", "quantile"] = "interval"
    last_edge: Literal["train", "all"] = Field(
        "train", description="all: the last bin reaches to the last time of all patients, as in the official code"
    )
    alpha: float = Field(0.0, ge=0, le=1, description="how much less censored patients count")
    risk: Literal["survival_sum", "mean_time"] = Field("survival_sum", description="how curves are ranked")

    @model_validator(mode="after")
    def _loss_is_of_the_kind(self) -> TaskConfig:
        known = {"survival": ("incidence", "hazard", "cox"), "regression": ("squared", "huber")}.get(self.kind, ())
        if self.loss != "own" and self.loss not in known:
            raise ValueError(f"loss = {self.loss} is no loss of a {self.kind} task: {', '.join(('own', *known))}")
        return self

    @property
    def chosen_loss(self) -> str:
        """The loss by its name."""
        own = {"survival": "incidence", "regression": "squared"}
        return own.get(self.kind, "own") if self.loss == "own" else self.loss


class NestedConfig(Settings):
    """Settings that every fold chooses for itself, by cross-validation among its own training patients."""

    folds: int = Field(0, ge=0, description="inner folds; 0: nothing is chosen")
    grid: dict[str, list[Any]] = Field({}, description="the values to choose from, by the names of settings")

    @model_validator(mode="after")
    def _has_something_to_choose(self) -> NestedConfig:
        if self.folds == 1:
            raise ValueError("folds = 1: choosing needs two inner folds or more")
        if bool(self.folds) != bool(self.grid):
            raise ValueError("nested.folds and nested.grid belong together: inner folds, and values to choose from")
        return self


class DataConfig(Settings):
    """How bags reach the model."""

    max_tiles: int | None = Field(None, ge=1, description="tiles of a bag in training, drawn anew every epoch")
    cache: Literal["auto", "none", "memory", "disk"] = "auto"
    val_share: float = Field(0.15, ge=0, lt=1, description="of what is not tested, where the manifest does not say")
    test_share: float = Field(0.25, ge=0, lt=1, description="of the slides, where the manifest does not say")
    unit: Literal["auto", "slide", "patient"] = Field(
        "auto", description="what is predicted; patient: the slides of a patient joined (auto: for survival)"
    )
    leave_out: Literal["patients", "site"] = Field("patients", description="what a test fold holds; site: one site")


class RunConfig(Settings):
    """Everything that decides what a run computes, besides the cohort."""

    method: str
    preset: str = "paper"
    folds: int = Field(1, ge=1)
    seeds: int = Field(1, ge=1, description="trainings a fold, with seeds seed, seed + 1, ...")
    task: TaskConfig = TaskConfig()
    nested: NestedConfig = NestedConfig()
    model: SerializeAsAny[ModelConfig]
    training: TrainingConfig = TrainingConfig()
    attention: AttentionConfig = AttentionConfig()
    anchor: AnchorConfig = AnchorConfig()
    stabilizers: StabilizersConfig = StabilizersConfig()
    data: DataConfig = DataConfig()
    record: RecordConfig = RecordConfig()

    @property
    def unit(self) -> UnitKind:
        """What one prediction is of."""
        if self.data.unit == "auto":
            return "patient" if self.task.kind == "survival" else "slide"
        return self.data.unit

    @model_validator(mode="after")
    def _comparisons_need_company(self) -> RunConfig:
        if self.task.chosen_loss == "cox" and self.training.bags_per_step < 2:
            raise ValueError("task.loss = cox compares patients of a step; set training.accumulate to 2 or more")
        if self.anchor.gradient_share is not None and (self.task.chosen_loss == "cox" or self.training.batch > 1):
            raise ValueError("anchor.gradient_share needs single bags: neither task.loss = cox nor training.batch")
        return self


def resolve(method: str, preset: str = "paper", changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The settings of a run: common defaults, the task's, the method's own, the preset's, then `changes`."""
    entry = find_method(method)
    known = preset_names(entry)
    if preset not in known:
        raise AsmilError(f"{method} has no preset {preset!r}: {did_you_mean(preset, known)}")
    for key in ("method", "preset"):
        if key in (changes or {}):
            raise AsmilError(f"'{key}' is no setting that can be changed afterwards; choose it with --{key}")
    task = (changes or {}).get("task") or {}
    tree = TASK_DEFAULTS.get(task.get("kind", ""), {}) if isinstance(task, Mapping) else {}
    for layer in (entry.defaults, entry.presets.get(preset, {}), changes or {}):
        tree = merge(tree, layer)
    return parse_run_config({**tree, "method": method, "preset": preset})


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The same settings but for some, by their dotted names."""
    tree = config.model_dump(mode="json")
    for name, value in settings.items():
        tree = merge(tree, nested(name, value))
    return parse_run_config(tree)


def preset_names(method: Method) -> list[str]:
    """The presets a method can be trained with."""
    return [*COMMON_PRESETS, *(name for name in method.presets if name not in COMMON_PRESETS)]


def parse_run_config(values: Mapping[str, Any]) -> RunConfig:
    """A run's settings from plain values, as `config.yaml` holds them."""
    tree = dict(values)
    model = tree.get("model") or {}
    if not isinstance(model, Mapping):
        raise AsmilError(f"setting 'model' = {model!r}: it is a section, write model.key=value")
    config_type = find_method(str(tree.get("method", ""))).model.config_type
    tree["model"] = parse_settings(config_type, model, section="model")
    return parse_settings(RunConfig, tree)
