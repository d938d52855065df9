"""The training loop of all methods.

A training is a pure function of its settings, its seed and its bags: the order of the bags is drawn from the seed and
the epoch, and all randomness inside the model comes from a generator whose state is part of a checkpoint. A training
that is killed at any step and resumed therefore ends bitwise identical (on a CPU).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from asmil.attention.ema import WeightAverage
from asmil.attention.normalizers import Mixture
from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.machine.arithmetic import exact_arithmetic
from asmil.machine.bf16 import uses_bf16
from asmil.machine.timing import timed
from asmil.models.base import MILModel, Output
from asmil.models.batch import refuse_batches
from asmil.models.inference import infer_all
from asmil.runs import checkpoint
from asmil.runs.checkpoint import CheckpointStore, Executor, Progress
from asmil.runs.config import RunConfig
from asmil.runs.epochs import without_nan
from asmil.runs.selection import Merit, merit_of
from asmil.settings.config import flat
from asmil.tasks.base import Task
from asmil.tasks.survival import completed_task
from asmil.training.epoch_log import EpochLog
from asmil.training.gradients import Parts, StepGradients, refuse_single_bags
from asmil.training.interruption import Interrupted, stop_requests
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.optimization import build_optimizer, clip_gradients, lr_factor, set_lr
from asmil.training.recording import AttentionRecorder, Describes
from asmil.training.setup import build_stabilizers, build_stages
from asmil.training.shared_steps import OneProcess

EpochObserver = Callable[[Mapping[str, Any]], None]
OutputObserver = Callable[[MILModel, Bag, Output], None]


class Evaluator(Describes, Protocol):
    """Evaluates the model in training on many bags at once, instead of `infer`."""

    def logits(self, bags: BagSource) -> Tensor:
        """Logits of all bags of a source, n x C."""
        ...


class Trainer:
    """Trains one model on one fold with one seed, writing to `folder` if there is one.

    folder: gets `metrics.jsonl` and `checkpoints/{last,best}.safetensors`; a training found there is resumed
    on_epoch: called with the record of every epoch when it ends
    processes: the processes that share the bags of every step

    A method with several stages is trained stage by stage: each stage has its own model, optimizer, schedule, anchor
    and choice of epoch, and uses what it needs from the previous stage. The trained model is that of the last stage.
    """

    def __init__(
        self,
        model: MILModel,
        task: Task,
        config: RunConfig,
        *,
        seed: int,
        fold: int = 0,
        device: torch.device | str = "cpu",
        folder: Path | None = None,
        on_epoch: EpochObserver | None = None,
        processes: OneProcess | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.task = task
        self.config = config
        self.settings = config.training
        self.seed = seed
        self.fold = fold
        self.folder = folder
        self.on_epoch = on_epoch or (lambda record: None)
        self.generator = torch.Generator(self.device).manual_seed(seed_number(seed, fold, 1))
        self.autocast = uses_bf16(self.settings.precision, self.device)
        self.processes = processes or OneProcess()
        self.stages = build_stages(model, seed_number(seed, fold, 4))
        self.progress = Progress(processes=self.processes.count)
        self.losses = torch.zeros(0)
        self.checkpoints = CheckpointStore(folder, config.method, self.device, self.settings.checkpoint_seconds)
        self.recorder: AttentionRecorder | None = None
        self.evaluator: Evaluator | None = None
        self._set_up_stage()

    @property
    def threads(self) -> int:
        """Threads of torch on the CPU; one beside a GPU, where many would only wait for each other in small operations.

        The steps of the plain executor, which prepares every bag on the CPU, use those of the process.
        """
        return self.progress.threads if self.device.type == "cpu" else 1

    @property
    def total_epochs(self) -> int:
        """The epochs of all stages, if none is stopped early."""
        return sum(stage.epochs or self.settings.epochs for stage in self.stages)

    @property
    def random_key(self) -> int:
        """31 random bits: executors that draw on the device compute all numbers from them and the number of a step."""
        return seed_number(self.seed, self.fold, 6) & 0x7FFFFFFF

    def _set_up_stage(self) -> None:
        """Create the model, optimizer and stabilizers of the current stage of `progress`."""
        self.stage = self.stages[self.progress.stage]
        self.model = self.stage.model.to(self.device)
        self.epochs = self.stage.epochs or self.settings.epochs
        self.optimizer = build_optimizer(self.model, self.settings)
        penalties = build_stabilizers(self.config, self.model, self.seed)
        self.average = WeightAverage(self.model, self.settings.ema) if self.settings.ema else None
        self.stabilizers = penalties if self.average is None else {**penalties, "ema": self.average}
        for stabilizer in self.stabilizers.values():
            stabilizer.to(self.device)
        if self.settings.batch > 1:
            refuse_batches(self.model.train(), f"training.batch = {self.settings.batch}")
            refuse_single_bags(penalties)
        kept_rows = self.config.anchor.rows == "kept"
        self.gradients = StepGradients(
            self.model, self.task, penalties, kept_rows, self.autocast, self.config.anchor.gradient_share
        )

    def averaged(self) -> AbstractContextManager[None]:
        """A block in which the model has the weights that are evaluated: their average, if there is one."""
        return nullcontext() if self.average is None else self.average.in_place_of(self.model)

    def at_stage(self, stage: int) -> Trainer:
        """A copy at the start of a stage, to find out whether an executor can take its steps."""
        trial = copy.copy(self)
        trial.progress = Progress(stage=stage, processes=self.processes.count)
        trial._set_up_stage()
        return trial

    def fit(self, train: LabeledBags, val: LabeledBags | None) -> int:
        """Train to the end; return the epoch (1-based) whose weights the model then has.

        The epoch is chosen on `val` according to `training.select`; without validation bags it is the last epoch.
        """
        self.prepare(val)
        with exact_arithmetic(self.progress.threads), stop_requests() as stop:
            should_stop = self.processes.agreed(stop.is_set)
            for _ in self.session(train, val, should_stop):
                self._train_epoch(train, should_stop)
        return int(self.progress.best["epoch"])

    def prepare(self, val: LabeledBags | None, executor: Executor = "plain") -> None:
        """Restore the saved state, if any; call this once, before `session`.

        executor: how steps are computed; a training cannot change it when it resumes
        """
        if self.settings.early_stopping is not None and val is None:
            raise AsmilError("training.early_stopping needs validation slides; add some, or leave it out")
        self.progress.executor = executor
        self._resume()

    def session(self, train: LabeledBags, val: LabeledBags | None, should_stop: Callable[[], bool]) -> Iterator[None]:
        """Everything in a training except its steps: yields whenever the steps of an epoch are due."""
        if self.progress.finished:
            self._take_best()
            return
        self.recorder = self._build_recorder(train, val)
        log = None
        if self.folder is not None:
            shown = flat(self.config.model_dump(mode="json")) if self.settings.track else {}
            log = EpochLog(self.folder, self.progress.epoch, self.settings.track, {**shown, "fold": self.fold})
        try:
            yield from self._train_stage(train, val, log, should_stop)
            while self.stage is not self.stages[-1]:
                self._begin_next_stage(train)
                yield from self._train_stage(train, val, log, should_stop)
        finally:
            if log is not None:
                log.close()
        if self.recorder is not None:
            self.recorder.finish(self.model)

    # One stage

    def _train_stage(
        self, train: LabeledBags, val: LabeledBags | None, log: EpochLog | None, should_stop: Callable[[], bool]
    ) -> Iterator[None]:
        """Train the stage, yielding for the steps of each epoch; at the end, load the weights of the chosen epoch."""
        selects = self.settings.select != "last" and val is not None
        end = self.progress.stage_start + self.epochs
        self._record_if_due()
        self.model.use_generator(self.generator)
        try:
            while self.progress.epoch < end and not self._has_settled():
                yield
                for stabilizer in self.stabilizers.values():
                    stabilizer.end_epoch(self.model)
                with self.averaged():
                    record = self._end_epoch(val, selects)
                if log is not None:
                    log.add(record)
                self.on_epoch(self._with_attention(record))
                self._save_if_due(force=should_stop())
                if should_stop():
                    raise Interrupted
        finally:
            self.model.use_generator(None)
        if not selects:
            self.progress.best = {"epoch": self.progress.epoch, "score": None}
            with self.averaged():
                self.checkpoints.keep_best(self.model, self.progress.best)
        self._save_if_due(force=True)
        self._take_best()

    def _take_best(self) -> None:
        """Load the weights of the chosen epoch into the model, and set it to eval mode."""
        if self.processes.leads:
            self.checkpoints.load_best(self.model)
        self.processes.share_state(self.model)
        self.model.eval()

    def _begin_next_stage(self, train: LabeledBags) -> None:
        previous = self.model
        self.progress = self.progress.next_stage()
        stage = self.stages[self.progress.stage]
        stage.model.to(self.device)
        with torch.random.fork_rng(devices=[]), closing(_generator(train.bags.stream(range(len(train.bags))))) as bags:
            torch.manual_seed(seed_number(self.seed, self.fold, 5))
            stage.start(previous, (bag.to(self.device, torch.float32) for bag in bags))
        self.processes.share_state(stage.model)
        self._set_up_stage()
        self._save_if_due(force=True)

    # One epoch

    def epoch_order(self, train: LabeledBags) -> list[int]:
        """The order of the bags in the next epoch."""
        balanced = self.settings.sampling == "balanced"
        if train.own_order is not None and not balanced:
            return train.own_order(self.progress.epoch)
        return train.order(np.random.default_rng([self.seed, self.fold, 2, self.progress.epoch]), balanced)

    def lr_factor(self, step: int, steps_per_epoch: int) -> float:
        """The factor of the base learning rate at a step (0-based) of the stage."""
        return lr_factor(step, steps_per_epoch * self.epochs, steps_per_epoch, self.settings)

    @timed("steps")
    def _train_epoch(self, train: LabeledBags, should_stop: Callable[[], bool]) -> None:
        progress = self.progress
        order = self.epoch_order(train)
        group = self.settings.bags_per_step
        steps_per_epoch = -(-len(order) // group)
        if progress.position == 0:
            self.losses = torch.zeros(len(order), 0, dtype=torch.float64, device=self.device)
        started = time.monotonic() - progress.seconds
        self.model.train()
        steps = [range(first, min(first + group, len(order))) for first in range(progress.position, len(order), group)]
        own = [order[position] for step in steps for position in self.processes.share_of(step)]
        with closing(_generator(train.bags.stream(own))) as bags:
            for step in steps:
                set_lr(self.optimizer, self.lr_factor(progress.step, steps_per_epoch))
                self.optimizer.zero_grad(set_to_none=True)
                self.model.before_step(progress.step, steps_per_epoch * self.epochs)
                last = self._add_gradients(bags, order, step, train)
                self._share_gradients(step)
                clip_gradients(self.optimizer, self.settings.clip_norm)
                self.optimizer.step()
                for stabilizer in self.stabilizers.values():
                    stabilizer.update(self.model)
                if last is not None:
                    self.model.after_step(*last)
                progress.step += 1
                progress.seconds = time.monotonic() - started
                self._record_if_due(progress.position / len(order))
                if progress.position < len(order):
                    self._save_if_due(force=should_stop())
                    if should_stop():
                        raise Interrupted
        self._refuse_divergence(order, train)

    def _add_gradients(
        self, bags: Iterator[Bag], order: list[int], step: range, train: LabeledBags
    ) -> tuple[Bag, Output, Tensor] | None:
        """Add the gradients of this process's bags of a step; return the last bag, its output and its target.

        step: positions of the bags of the step in the order of the epoch
        """
        share = self.processes.share_of(step)
        self.progress.position = share.start
        if self.processes.count > 1:
            stage, done = self.progress.stage, self.progress.step
            self.generator.manual_seed(seed_number(self.seed, self.fold, 6, stage, done, self.processes.rank))
        if not share:
            return None
        group, size = [order[position] for position in share], len(step)
        targets = torch.as_tensor(train.targets[group], device=self.device)
        if self.task.joint:
            together = [self._training_bag(next(bags), index) for index in group]
            if self._can_pad(together):
                output = self._add_padded(together, targets, size)
            else:
                output, noted = self.gradients.of_all(together, targets)
                for parts in noted:
                    self._note(parts)
            return together[-1], output, targets[-1:]
        for first in range(0, len(group), self.settings.batch):
            indices = group[first : first + self.settings.batch]
            together = [self._training_bag(next(bags), index) for index in indices]
            wanted = targets[first : first + len(together)]
            if self._can_pad(together) and train.weights is None:
                output = self._add_padded(together, wanted, size)
                continue
            for i, bag in enumerate(together):
                weight = 1.0 if train.weights is None else float(train.weights[indices[i]])
                output, parts = self.gradients.of_one(bag, wanted[i : i + 1], size, weight)
                self._note(parts)
        return together[-1], output, targets[-1:]

    def _share_gradients(self, step: range) -> None:
        """Sum the gradients and losses of all processes for the bags of a step."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.processes.sum_step(parameters, self.losses[step.start : step.stop])
        self.progress.position = step.stop

    def _can_pad(self, bags: list[Bag]) -> bool:
        """Whether the bags can be computed at once; if one has too few tiles, they are computed one by one."""
        fewest = self.model.batch_from
        return self.settings.batch > 1 and len(bags) > 1 and fewest is not None and min(map(len, bags)) >= fewest

    def _add_padded(self, bags: list[Bag], targets: Tensor, size: int) -> Output:
        """Add the gradient of several bags of a step of `size` bags at once; return the output of the last bag."""
        batch = Bag.collate(bags)
        offsets = [bag.offset for bag in bags]
        output, parts = self.gradients.of_padded(batch.features, batch.mask, targets, len(bags) / size, offsets)
        for _ in bags:
            self._note(parts)
        return output

    def _training_bag(self, bag: Bag, index: int) -> Bag:
        """The bag for training: at most `data.max_tiles` tiles (in order), on the device."""
        cap = self.config.data.max_tiles
        if cap is not None and len(bag) > cap:
            draw = np.random.default_rng([self.seed, self.fold, 3, self.progress.epoch, index])
            chosen = np.sort(draw.choice(len(bag), size=cap, replace=False))
            bag = self.model.prepare(bag.subset(torch.from_numpy(chosen)))
        return bag.to(self.device, dtype=None if self.autocast else torch.float32)

    def _note(self, parts: Parts) -> None:
        if self.losses.shape[1] == 0:
            self.progress.part_names = list(parts)
            self.losses = self.losses.new_zeros(self.losses.shape[0], len(parts))
        self.losses[self.progress.position] = torch.stack([value.detach().double() for value in parts.values()])
        self.progress.position += 1

    def note_epoch(self, losses: Tensor, order: list[int], train: LabeledBags, seconds: float) -> None:
        """Record the steps of a whole epoch, which an executor has taken.

        losses: bags x parts, in the order of the epoch and of `progress.part_names`, in float64
        """
        self.losses = losses
        self.progress.position = len(order)
        self.progress.step += -(-len(order) // self.settings.bags_per_step)
        self.progress.seconds = seconds
        self._refuse_divergence(order, train)

    def _refuse_divergence(self, order: list[int], train: LabeledBags) -> None:
        """Raise if a loss of the epoch is not finite; the error names the slide."""
        broken = torch.nonzero(~torch.isfinite(self.losses[:, 0])).flatten()
        if len(broken):
            (bag,) = train.bags.stream([order[int(broken[0])]])
            raise AsmilError(
                f"the loss is no longer finite (epoch {self.progress.epoch + 1}, slide {bag.id}); "
                "lower training.lr or set training.clip_norm=1"
            )

    def _end_epoch(self, val: LabeledBags | None, selects: bool) -> dict[str, Any]:
        progress = self.progress
        means = self.losses.mean(dim=0).tolist()
        recorder = self._recorder_if_due(epoch_ended=True)
        record: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            **({"stage": self.stage.name} if self.stage.name else {}),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "train": dict(zip(progress.part_names, means, strict=True)),
            "val": None if val is None else without_nan(self.validate(val, recorder.note if recorder else None)),
            "seconds": round(progress.seconds, 3),
        }
        if isinstance(self.model.normalizer, Mixture):
            record["zeta"] = self.model.normalizer.zeta
        if self.processes.count > 1:
            self.processes.refuse_differing(self._learned(), self.config.method)
        progress.epoch += 1
        progress.position = 0
        progress.seconds = 0.0
        self._record_if_due(epoch_ended=True)
        if selects:
            self._keep_if_best(record["val"])
        return record

    def _keep_if_best(self, measures: Mapping[str, float | None]) -> None:
        assert self.settings.select != "last"
        merit, best = merit_of(measures, self.task, self.settings.select), self.progress.best
        if best["score"] is None or merit.beats(Merit(best["score"], best.get("loss"))):
            self.progress.best = {"epoch": self.progress.epoch, "score": merit.score, "loss": merit.loss}
            with timed("checkpoints"):
                self.checkpoints.keep_best(self.model, self.progress.best)

    def _has_settled(self) -> bool:
        patience = self.settings.early_stopping
        progress = self.progress
        if patience is None or progress.epoch - progress.stage_start < self.settings.early_stopping_from:
            return False
        return bool(progress.best["epoch"] > 0 and progress.epoch - progress.best["epoch"] >= patience)

    @timed("validation")
    def validate(self, labeled: LabeledBags, on_output: OutputObserver | None = None) -> dict[str, float]:
        """The task's metrics on bags with known targets, in eval mode."""
        return self.task.measure(labeled.targets, self.logits(labeled.bags, on_output))

    def logits(self, bags: BagSource, on_output: OutputObserver | None = None) -> Tensor:
        """Logits, n x C, of all bags during the training: by its executor, or a share of them in every process."""
        if self.evaluator is not None:
            logits = self.evaluator.logits(bags)
            _refuse_undefined(logits, bags)
            return logits
        if self.processes.count == 1:
            return self.predict(bags, on_output)
        share = self.processes.share_of(range(len(bags)))
        logits = torch.zeros(len(bags), self.task.n_outputs)
        if share:
            logits[share.start : share.stop] = self.predict(bags, on_output, share)
        self.processes.sum(logits)
        return logits

    def predict(self, bags: BagSource, on_output: OutputObserver | None = None, indices: range | None = None) -> Tensor:
        """Logits, n x C, of all bags or of those at some indices.

        on_output: called with the model, every bag and its output
        """
        logits = []
        with exact_arithmetic(self.threads):
            chosen = bags.stream(range(len(bags)) if indices is None else indices)
            for bag, output in infer_all(self.model, chosen, self.device):
                logits.append(output.logits)
                if on_output is not None:
                    on_output(self.model, bag, output)
        return torch.stack(logits)

    def completed_task(self, train: LabeledBags) -> Task:
        """The task, completed with the trained model: for Cox, the baseline survival."""
        return completed_task(self.task, self.predict(train.bags), train.targets) if self.task.joint else self.task

    # Attention

    def _build_recorder(self, train: LabeledBags, val: LabeledBags | None) -> AttentionRecorder | None:
        if self.folder is None or not self.stages[-1].model.score_axes:
            return None
        recorder = AttentionRecorder(self.config.record, self.folder, train, val, self.device)
        return recorder if recorder else None

    def _recorder_if_due(self, *, epoch_ended: bool) -> AttentionRecorder | None:
        """The recorder, if one is due; only the last stage is recorded."""
        recorder, is_last = self.recorder, self.stage is self.stages[-1]
        return recorder if recorder and is_last and recorder.is_due(self.progress.step, epoch_ended) else None

    def _with_attention(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The record of an epoch, with the effective share of tiles of the recorded attention."""
        share = None if self.recorder is None else self.recorder.effective_share
        return record if share is None else {**record, "effective_share": share}

    @timed("recording attention")
    def _record_if_due(self, share: float = 0.0, *, epoch_ended: bool = False) -> None:
        """Record attention if it is due, when `share` of the current epoch is done."""
        recorder = self._recorder_if_due(epoch_ended=epoch_ended)
        if recorder is not None:
            training = self.model.training
            recorder.record(self.model, self.progress.epoch + share, self.progress.step, self.evaluator)
            self.model.train(training)

    # Checkpoints

    @timed("checkpoints")
    def _save_if_due(self, force: bool) -> None:
        if self.folder is None or not (force or self.checkpoints.is_due()):
            return
        if self.recorder is not None:
            self.recorder.writer.flush()
        tensors = {**self._learned(), "generator": self.generator.get_state(), "losses": self.losses}
        self.checkpoints.save_last(tensors, self.progress.as_json())

    def _learned(self) -> dict[str, Tensor]:
        """The state of the model, its optimizer and its stabilizers."""
        tensors = {
            **checkpoint.prefixed("model", self.model.state_dict()),
            **checkpoint.prefixed("optimizer", checkpoint.optimizer_tensors(self.optimizer)),
        }
        for name, stabilizer in self.stabilizers.items():
            tensors |= checkpoint.prefixed(name, stabilizer.state_dict())
        return tensors

    def _resume(self) -> None:
        saved = self.processes.from_leader(self.checkpoints.load_last())
        if saved is None:
            if self.processes.count > 1:
                self.processes.share_state(self.model)
                self._set_up_stage()
            return
        tensors, state, path = saved
        asked = self.progress.executor
        with checkpoint.restoring(path):
            self.progress = Progress.from_json(state)
            if self.progress.executor != asked:
                raise AsmilError(
                    f"{path}: this training started with the {self.progress.executor} executor and cannot resume with "
                    f"the {asked} one, whose random numbers differ; run it where it started, or choose another --out"
                )
            if self.progress.processes != self.processes.count and not self.progress.finished:
                raise AsmilError(
                    f"{path}: this training started with {self.progress.processes} processes and cannot resume with "
                    f"{self.processes.count}, which would round differently; start the same number with torchrun, or "
                    "choose another --out"
                )
            self._set_up_stage()
            if self.progress.finished:
                return
            checkpoint.restore_model(self.model, checkpoint.under("model", tensors), path)
            checkpoint.restore_optimizer(self.optimizer, checkpoint.under("optimizer", tensors))
            for name, stabilizer in self.stabilizers.items():
                stabilizer.load_state_dict(checkpoint.under(name, tensors))
            self.generator.set_state(tensors["generator"])
            self.losses = tensors["losses"].to(self.device)
            if self.losses.dim() != 2 or self.progress.position > len(self.losses):
                raise ValueError("the number of losses does not match the bags of the epoch")


def seed_number(seed: int, fold: int, purpose: int, *more: int) -> int:
    """A reproducible seed for one purpose of a training's randomness."""
    return int(np.random.SeedSequence([seed, fold, purpose, *more]).generate_state(1, np.uint64)[0] >> 1)


def _refuse_undefined(logits: Tensor, bags: BagSource) -> None:
    """Raise if logits are not finite; the error names the bag."""
    broken = torch.nonzero(~logits.isfinite().all(dim=1)).flatten().tolist()
    for bag in bags.stream(broken[:1]):
        raise AsmilError(
            f"{bag.id}: the model's logits are not finite, so there is no prediction; check the features of this slide "
            "for very large values, and the weights of the model"
        )


def _generator(bags: Iterator[Bag]) -> Any:
    """`bags` as a generator, which `closing` can close, whatever iterator a source returns."""
    yield from bags
