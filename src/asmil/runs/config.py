"""The settings of a run, as one typed tree, and the presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from asmil.attention.normalizers import NORMALIZERS, Normalizer, build_normalizer
from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError, did_you_mean
from asmil.models.base import MILModel, ModelConfig
from asmil.models.own_method import method_name
from asmil.models.registry import Method, find_method
from asmil.models.shared_presets import VLSA_SURVIVAL
from asmil.settings.config import Settings, assign, flat, merge, parse_settings
from asmil.tables.time_units import TimeUnit
from asmil.tasks.base import TaskKind

COMMON_PRESETS = ("paper",)
"""Presets of every method: `paper`, the common setting of the ASMIL paper."""

TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "survival": {"training": VLSA_SURVIVAL, "data": {"val_share": 0.0}},
}
"""Training defaults that depend on the task: survival as in the study that the ASMIL paper follows."""


class TrainingConfig(Settings):
    """How a model is trained; the defaults are the ASMIL paper's."""

    epochs: int = Field(50, ge=1, description="passes over the training bags, in each stage of the method")
    lr: float = Field(1e-4, gt=0, description="learning rate")
    weight_decay: float = Field(
        1e-4, ge=0, description="adam and sgd add it to the gradient; adamw and lookahead_radam shrink the weights"
    )
    decay: Literal["all", "matrices"] = Field(
        "all", description="parameters with weight decay; matrices: all except biases and gains"
    )
    optimizer: Literal["adam", "adamw", "lookahead_radam", "sgd"] = Field(
        "adam",
        description="lookahead_radam (TransMIL): RAdam, averaged with slow weights every sixth step; sgd: with the "
        "first of `betas` as momentum",
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="of the optimizer")
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="learning-rate schedule; cosine decreases to `lr_min` over all steps of a stage"
    )
    lr_min: float = Field(0.0, ge=0, description="learning rate at the end of the cosine schedule; at most `lr`")
    lr_drops: list[int] = Field(
        [], description="epochs of a stage after which the learning rate is multiplied by `lr_drop_factor`"
    )
    lr_drop_factor: float = Field(0.2, gt=0, le=1, description="see `lr_drops`")
    warmup_epochs: float = Field(0, ge=0, description="epochs over which the learning rate rises from 0")
    batch: int = Field(1, ge=1, description="bags computed at once, padded and masked; their losses are averaged")
    accumulate: int = Field(
        1, ge=1, description="bags (or batches) per step, computed one after the other; their losses are averaged"
    )
    clip_norm: float | None = Field(
        None, gt=0, description="maximum gradient norm of a step; parts of a method with their own limit keep it"
    )
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="momentum of a moving average of the weights over steps, which validation and prediction use; 0: "
        "the weights themselves",
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="balanced: n / (K n_k) for class k, from the training set; classification only"
    )
    sampling: Literal["shuffle", "balanced"] = Field(
        "shuffle",
        description="balanced: the same number of bags, drawn with replacement, all classes equally likely (survival: "
        "events and censored; regression: quartiles; multi-label: the rarest frequent label of a slide)",
    )
    select: Literal["f1_auc", "loss", "last"] = Field(
        "f1_auc",
        description="how the epoch is chosen on validation slides. f1_auc: the highest macro-F1 + macro-AUC "
        "(classification, multi-label), C-index (survival) or R2 (regression); loss: the lowest loss; last: the last "
        "epoch. Ties: the lower validation loss, then the earlier epoch. Without validation slides: the last epoch",
    )
    early_stopping: int | None = Field(
        None, ge=1, description="stop after this many epochs without improvement of the metric of `select`"
    )
    early_stopping_from: int = Field(0, ge=0, description="never stop a stage before this many epochs")
    seed: int = Field(0, ge=0, description="seed of the first training and of generated splits")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="precision of training; auto: bf16 autocast on a GPU that supports it (TF32 where folds and seeds "
        "train side by side), else fp32; bf16 is an error on a CPU without bf16 instructions. Validation and "
        "prediction use fp32",
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...; auto: a GPU if there is one")
    executor: Literal["auto", "plain", "graphed", "fused", "side_by_side"] = Field(
        "auto",
        description="how steps are computed; auto: on a GPU fused kernels, folds and seeds side by side, or CUDA "
        "graphs, elsewhere folds and seeds side by side, if they apply, else plain; others than plain are an error "
        "if they do not apply (docs/performance.md)",
    )
    checkpoint_seconds: float = Field(20, ge=0, description="minimum time between two checkpoints, in seconds")
    track: list[Literal["tensorboard", "wandb", "mlflow"]] = Field(
        [], description="experiment trackers that receive the metrics of every epoch (`--track`; docs/tracking.md)"
    )

    @property
    def bags_per_step(self) -> int:
        return self.batch * self.accumulate

    @model_validator(mode="after")
    def _check(self) -> TrainingConfig:
        if self.early_stopping is not None and self.select == "last":
            raise ValueError("early_stopping needs validation data, but select = last does not use any")
        if self.lr_min > self.lr:
            raise ValueError(f"lr_min = {self.lr_min} is above lr = {self.lr}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {list(self.betas)}: both must be at least 0 and below 1")
        return self


class NormalizerConfig(Settings):
    """A normalizer from scores to attention and its options; an option of another normalizer is an error."""

    unnamed: ClassVar[str]
    """The value that means no explicit normalizer."""
    normalizer: str
    temperature: float = Field(1.0, gt=0, description="softmax, nsf: divides the scores")
    alpha: float = Field(1.5, gt=1, le=2, description="entmax: larger values select fewer tiles")
    kappa: float = Field(2.0, gt=0, description="standardized_nsf, standardized_softmax: sharpness")
    offset: float = Field(1.0, description="standardized_nsf: midpoint, in standard deviations above the mean")

    @model_validator(mode="after")
    def _check(self) -> NormalizerConfig:
        takes = () if self.normalizer == self.unnamed else NORMALIZERS[self.normalizer].options
        for option in ("temperature", "alpha", "kappa", "offset"):
            changed = getattr(self, option) != type(self).model_fields[option].default
            if changed and option not in takes:
                owners = " and ".join(name for name, rule in NORMALIZERS.items() if option in rule.options)
                raise ValueError(f"{option} belongs to the normalizer {owners}, not to {self.normalizer}")
        return self

    def build_normalizer(self) -> Normalizer | None:
        """The normalizer, or None if none is set."""
        if self.normalizer == self.unnamed:
            return None
        options = {option: getattr(self, option) for option in NORMALIZERS[self.normalizer].options}
        return build_normalizer(self.normalizer, **options)


class AttentionConfig(NormalizerConfig):
    """How the model converts its scores to attention."""

    unnamed = "own"
    normalizer: Literal["own", "softmax", "nsf", "standardized_nsf", "sparsemax", "entmax", "mixture"] = Field(
        "own",
        description="own: the method's own (softmax for all but demil); mixture: softmax and nsf with a learned weight "
        "`zeta`, which is logged in `metrics.jsonl`",
    )


class SmoothingConfig(Settings):
    """Smooths over touching tiles what becomes attention (Sm, see `sm_abmil`); needs coordinates."""

    where: Literal["none", "early", "late"] = Field(
        "none", description="early: the embedded tiles; late: the scores, before the normalizer; none: no smoothing"
    )
    alpha: float = Field(0.5, gt=0, lt=1, description="how strongly neighbors count; the start of a trainable alpha")
    train_alpha: bool = Field(True, description="learn alpha, or keep it")
    steps: int = Field(10, ge=1, description="steps of the approximate form")
    exact: bool = Field(False, description="solve the smoothing exactly instead of `steps` steps")

    @model_validator(mode="after")
    def _check(self) -> SmoothingConfig:
        fields = type(self).model_fields
        changed = [name for name, field in fields.items() if getattr(self, name) != field.default]
        if changed and self.where == "none":
            raise ValueError(f"{changed[0]} has no effect with where = none; set where to early or late")
        if self.exact and "steps" in changed:
            raise ValueError("steps belongs to the approximate form; leave it out, or set exact to false")
        return self


class AnchorConfig(NormalizerConfig):
    """The anchor that regularizes the attention; `normalizer: none` trains without an anchor."""

    unnamed = "none"
    normalizer: Literal["none", "softmax", "nsf", "standardized_nsf", "standardized_softmax", "sparsemax", "entmax"] = (
        Field("none", description="from the anchor's scores to attention; none: train without an anchor")
    )
    momentum: float = Field(0.999, ge=0, le=1, description="momentum m of the exponential moving average")
    weight: float = Field(1.0, ge=0, description="beta, the weight of the anchor's loss")
    update: Literal["step", "epoch", "never"] = Field("step", description="when the anchor is updated")
    start: Literal["copy", "random"] = Field("copy", description="initial weights: those of the model, or random ones")
    divergence: Literal["kl", "cross_entropy"] = Field("kl", description="both have the same gradient")
    reduction: Literal["sum", "mean"] = Field("sum", description="over tiles")
    rows: Literal["all", "kept"] = Field(
        "all", description="the tokens that are averaged; kept: those not dropped in this step"
    )
    both_sides: bool = Field(
        False, description="also apply the anchor's normalizer to the model's scores, instead of the model's own"
    )
    ramp_epochs: int = Field(
        0, ge=0, description="epochs E over which the weight rises: exp(-5 (1 - e / E)^2) in epoch e (Mean Teacher)"
    )
    ramp_momentum: float | None = Field(None, ge=0, le=1, description="momentum during the ramp; null: `momentum`")
    gradient_share: float | None = Field(
        None,
        gt=0,
        description="maximum norm of the anchor's gradient relative to that of the task loss, over the parameters that "
        "the anchor's gradient reaches; a larger one is scaled down",
    )


class TemporalConfig(Settings):
    """Pulls the attention of a slide towards its own past average."""

    weight: float = Field(
        0.0,
        ge=0,
        description="KL of a slide's attention to the average of its own past attentions. Needs 4 A N bytes per slide "
        "(A rows, N tiles), in memory and in every checkpoint; refused with `data.max_tiles`",
    )
    rate: float = Field(0.9, ge=0, lt=1, description="rho, the weight of the past in the average")


class FeaturesConfig(Settings):
    """Pulls the bag feature towards that of an EMA copy of the model."""

    weight: float = Field(
        0.0,
        ge=0,
        description="KL divergence between the bag features of the model and of its EMA copy, over channels, as in "
        "MHIM (an error for mhim, which has it). It does not determine attention (docs/affine.md)",
    )
    momentum: float = Field(0.999, ge=0, le=1, description="momentum of the EMA copy")
    teacher_temperature: float = Field(0.1, gt=0, description="divides the bag feature of the EMA copy")
    student_temperature: float = Field(1.0, gt=0, description="divides the bag feature of the model")


class EntropyConfig(Settings):
    """Rewards the entropy of attention."""

    weight: float = Field(
        0.0, ge=0, description="sum a ln a, mean over rows, as in AEM (an error for aem, which has it)"
    )


class EntropyFloorConfig(Settings):
    """Penalizes attention whose relative entropy H / ln N is below a floor."""

    weight: float = Field(
        0.0,
        ge=0,
        description="max(0, floor - H(a) / ln N), mean over rows: no effect while the entropy is above the floor",
    )
    floor: float = Field(0.5, gt=0, lt=1, description="lowest relative entropy without a penalty")


class L2Config(Settings):
    """Penalizes the mean square of the scores."""

    weight: float = Field(0.0, ge=0, description="mean square of the scores")


class StabilizersConfig(Settings):
    """Loss terms that stabilize attention, besides the anchor; a weight of 0 disables a term."""

    temporal: TemporalConfig = TemporalConfig()
    features: FeaturesConfig = FeaturesConfig()
    entropy: EntropyConfig = EntropyConfig()
    entropy_floor: EntropyFloorConfig = EntropyFloorConfig()
    l2: L2Config = L2Config()


def _count_or(*words: str) -> BeforeValidator:
    """One of the words, or a positive integer."""

    def check(value: Any) -> int | str:
        if value in words:
            return str(value)
        text = str(value)
        if not (text.isdecimal() and int(text) >= 1):
            raise ValueError(f"input should be {', '.join(words)} or a positive integer")
        return int(text)

    return BeforeValidator(check)


class RecordConfig(Settings):
    """Which attention is recorded during training, for `asmil stability`."""

    attention: Annotated[int | str, _count_or("none", "all")] = Field(
        2,
        description="slides to record: none, all, or this many per class, the first in the manifest (or per group of "
        "outcomes, as for `training.sampling`)",
    )
    every: Annotated[int | str, _count_or("epoch")] = Field(
        "epoch", description="record after every epoch, or after this many optimizer steps; always before the first"
    )
    role: Literal["train", "val", "both"] = Field("train", description="which slides to record; never test slides")


class TaskConfig(Settings):
    """The prediction task; the options from `bins` on are for survival."""

    kind: TaskKind = Field("classification", description="`--task`")
    loss: Literal["own", "incidence", "hazard", "cox", "squared", "huber"] = Field(
        "own",
        description="own: cross-entropy (classification), incidence (survival; also hazard, cox), squared (regression; "
        "also huber), or binary cross-entropy of every label (multi-label)",
    )
    bins: int | None = Field(
        None, ge=2, description="survival: number of time bins; null: square root of the training events, rounded up"
    )
    binning: Literal["interval", "quantile"] = Field(
        "interval", description="survival: bins of equal length, or with equally many events"
    )
    last_edge: Literal["train", "all"] = Field(
        "train",
        description="survival: the last bin ends at the last time of the training patients, or of all patients "
        "(as in official code)",
    )
    alpha: float = Field(0.0, ge=0, le=1, description="survival: reduces the weight of censored patients in the loss")
    risk: Literal["survival_sum", "mean_time"] = Field(
        "survival_sum", description="survival: how curves are ranked; cox uses its log-risk"
    )
    time_unit: TimeUnit | None = Field(
        None,
        description="survival: unit of the times (`--time-unit`); null: as the name of their column says, e.g. "
        "`time_days`",
    )

    @model_validator(mode="after")
    def _check(self) -> TaskConfig:
        known = {"survival": ("incidence", "hazard", "cox"), "regression": ("squared", "huber")}.get(self.kind, ())
        if self.loss != "own" and self.loss not in known:
            raise ValueError(f"loss = {self.loss} is not a {self.kind} loss; choose from {', '.join(('own', *known))}")
        if self.time_unit is not None and self.kind != "survival":
            raise ValueError(f"time_unit = {self.time_unit}: a {self.kind} task has no times; leave it out")
        return self

    @property
    def chosen_loss(self) -> str:
        own = {"survival": "incidence", "regression": "squared"}
        return own.get(self.kind, "own") if self.loss == "own" else self.loss


class NestedConfig(Settings):
    """Nested cross-validation: settings that each fold chooses on its own training patients."""

    folds: int = Field(0, ge=0, description="inner folds, 0 or at least 2 (`--inner-folds`); 0: not nested")
    grid: dict[str, list[Any]] = Field(
        {}, description="values to try for each setting (`--grid`); all combinations are evaluated"
    )

    @model_validator(mode="after")
    def _check(self) -> NestedConfig:
        if self.folds == 1:
            raise ValueError("folds = 1: nested cross-validation needs at least two inner folds")
        if bool(self.folds) != bool(self.grid):
            raise ValueError("nested.folds and nested.grid must be given together: inner folds, and values to try")
        return self


class DataConfig(Settings):
    """How bags are loaded and split."""

    max_tiles: int | None = Field(
        None, ge=1, description="maximum tiles per bag in training, drawn anew every epoch; null: all tiles"
    )
    cache: Literal["auto", "none", "memory", "disk"] = Field(
        "auto",
        description="where bags are cached. auto: in memory if the files fit in a quarter of the free memory, else "
        "none; disk: a float16 pack in the run folder",
    )
    val_share: float = Field(
        0.15, ge=0, lt=1, description="share of the non-test slides used for validation; a split column overrides it"
    )
    test_share: float = Field(0.25, ge=0, lt=1, description="share of slides for testing; a split column overrides it")
    unit: Literal["auto", "slide", "patient"] = Field(
        "auto", description="unit of prediction; patient: the slides of a patient are joined (auto: for survival)"
    )
    leave_out: Literal["patients", "site"] = Field(
        "patients", description="what a test fold contains; site: one site (`--leave-one-site-out`)"
    )
    splits: str | None = Field(
        None,
        description="a table (CSV) of slide, patient, fold and role (train, val, test) that defines the folds; a slide "
        "may have no role in a fold; null: the manifest's split or folds, else generated ones",
    )
    covariates: list[str] = Field(
        [],
        description="columns of the manifest that are added to the logits by a linear term (`--covariates`); "
        "`stage:category` or `grade:number` states the kind, which otherwise follows from the values",
    )

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        if self.splits is not None and self.leave_out == "site":
            raise ValueError("splits and leave_out = site both define the folds; leave one of them out")
        return self


class InitConfig(Settings):
    """Pretrained weights that every training starts from."""

    weights: str | None = Field(
        None, description="checkpoint, run or bundle of asmil, or official weights (`--init`); null: random weights"
    )
    sha256: str | None = Field(None, description="SHA-256 of the weights file; stored by the run, and checked if given")


class RunConfig(Settings):
    """Everything that determines what a run computes, besides the cohort."""

    method: str = Field(description="the method, `--method`")
    preset: str = Field("paper", description="the preset, `--preset`")
    folds: int = Field(1, ge=1, description="folds of cross-validation; 1 is a single split")
    seeds: int = Field(1, ge=1, description="seeds per fold: `training.seed`, `training.seed` + 1, ...")
    task: TaskConfig = TaskConfig()
    nested: NestedConfig = NestedConfig()
    model: SerializeAsAny[ModelConfig]
    training: TrainingConfig = TrainingConfig()
    attention: AttentionConfig = AttentionConfig()
    smoothing: SmoothingConfig = SmoothingConfig()
    anchor: AnchorConfig = AnchorConfig()
    stabilizers: StabilizersConfig = StabilizersConfig()
    data: DataConfig = DataConfig()
    record: RecordConfig = RecordConfig()
    init: InitConfig = InitConfig()

    @property
    def all_seeds(self) -> tuple[int, ...]:
        return tuple(range(self.training.seed, self.training.seed + self.seeds))

    @property
    def unit(self) -> UnitKind:
        """The unit of prediction: a slide or a patient."""
        if self.data.unit == "auto":
            return "patient" if self.task.kind == "survival" else "slide"
        return self.data.unit

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        if self.task.chosen_loss == "cox" and self.training.bags_per_step < 2:
            raise ValueError("task.loss = cox compares the patients of a step; set training.accumulate to 2 or more")
        if self.anchor.gradient_share is not None and (self.task.chosen_loss == "cox" or self.training.batch > 1):
            raise ValueError("anchor.gradient_share cannot be used with task.loss = cox or training.batch > 1")
        return self


def resolve(method: str | type[MILModel], preset: str = "paper", changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The settings of a run: common defaults, then those of the task, the method and the preset, then `changes`.

    method: a name, `module:Class`, `file.py:Class` or a class
    """
    method = method_name(method)
    entry = find_method(method)
    known = preset_names(entry)
    if preset not in known:
        raise AsmilError(f"{method} has no preset {preset!r}: {did_you_mean(preset, known)}")
    for key in ("method", "preset"):
        if key in (changes or {}):
            raise AsmilError(f"'{key}' cannot be set here; use --{key}")
    task = (changes or {}).get("task") or {}
    tree = TASK_DEFAULTS.get(task.get("kind", ""), {}) if isinstance(task, Mapping) else {}
    for layer in (entry.defaults, entry.presets.get(preset, {}), changes or {}):
        tree = merge(tree, layer)
    return parse_run_config({**tree, "method": method, "preset": preset})


def with_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The settings with some changes, by dotted names."""
    return parse_run_config(assign(config.model_dump(mode="json"), settings))


def preset_names(method: Method) -> list[str]:
    """The presets of a method."""
    return [*COMMON_PRESETS, *(name for name in method.presets if name not in COMMON_PRESETS)]


def preset_changes(config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The settings that the preset of a run changed: their values in the run and in preset `paper`, by dotted name."""
    named = flat(find_method(config.method).presets.get(config.preset, {}))
    paper = flat(resolve(config.method, "paper", {"task": {"kind": config.task.kind}}).model_dump(mode="json"))
    used = flat(config.model_dump(mode="json"))
    return {name: (used[name], paper[name]) for name in named if used[name] != paper[name]}


def parse_run_config(values: Mapping[str, Any]) -> RunConfig:
    """A run's settings from plain values, as in `config.yaml`."""
    tree = dict(values)
    model = tree.get("model") or {}
    if not isinstance(model, Mapping):
        raise AsmilError(f"setting 'model' = {model!r}: this is a section; write model.key=value")
    config_type = find_method(str(tree.get("method", ""))).model.config_type
    tree["model"] = parse_settings(config_type, model, section="model")
    return parse_settings(RunConfig, tree)
