"""Attention methods on a GPU: a step replayed as a CUDA graph beside their official step, and batches of short bags.

    make bench-gpu        or        python benchmarks/gpu_methods.py [--out FILE] [--methods abmil ...]

First table: one bag of 11,000 tiles x 384, two classes. `official` is the official way to compute the method
(`plain_methods/`, or the method's own code where there is none), eager, in float32. `plain` is the step of
`asmil train --plain`, `graphed` that of `asmil train`, `+ anchor` with the anchor; these in bf16 with float32 weights.
Second table: an epoch of `asmil train` over 395 bags of 2,000 to 20,000 tiles, recording included and not. Third table:
10,000 bags of 50 to 1,000 tiles, one bag per step beside batches of 128. Features are noise.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asmil import Bag, build
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.graphed.step import Steps
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer
from asmil.training.resident import ResidentBags
from asmil.training.turns import take_turns
from gpu_speed import SEEDS, NoiseBags, timed
from markdown_table import markdown_table
from measuring import training_step
from method_speed import plain_form, plain_training_step

WIDTH, TILES, CLASSES = 384, 11_000, 2
METHODS = ("abmil", "clam_sb", "clam_mb", "dsmil", "acmil", "aem", "ibmil")
SHORT_BAGS, FEWEST, MOST, BATCH = 10_000, 50, 1_000, 128
TIMED_BAGS = 1_280
BAGS = 256
Found = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu_methods.py needs a CUDA GPU; torch sees none here")
    steps = {name: attempt(partial(step_times, name, options.rounds)) for name in options.methods}
    epochs = {name: attempt(partial(epoch_times, name)) for name in ("abmil", "clam_sb")}
    short = {name: attempt(partial(short_bags, name)) for name in ("asmil", "abmil")}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for title, table in (("step, ms", steps), ("epoch of 395 bags, s", epochs), ("short bags, slides/s", short)):
        columns = list(next((row for row in table.values() if row), {}))
        rows = [(name, *(f"{row[c]:.4g}" if c in row else "" for c in columns)) for name, row in table.items()]
        print(f"\n{title}\n{markdown_table(('method', *columns), rows)}")
    if options.out is not None:
        found = {"steps_ms": steps, "epochs_s": epochs, "short_bags_per_s": short}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def attempt(measure: Callable[[], Found]) -> Found:
    """What could be measured; a failure is printed and costs one row."""
    try:
        return measure()
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, AssertionError):
        traceback.print_exc()
        return {}


def noise(lengths: Sequence[int]) -> tuple[ResidentBags, LabeledBags]:
    """Bags of noise on the device."""
    device = torch.device("cuda")
    bags = NoiseBags(Bag(torch.randn(n, WIDTH, device=device, dtype=torch.bfloat16), validated=True) for n in lengths)
    pool = ResidentBags(WIDTH, device, torch.bfloat16)
    pool.add(bags)
    return pool, LabeledBags(bags, np.arange(len(lengths)) % CLASSES)


def trainer(name: str, *, anchored: bool = False, **training: Any) -> Trainer:
    anchor = {"anchor": {"normalizer": "nsf", "weight": 0.1}} if anchored else {"anchor": {"normalizer": "none"}}
    config = resolve(name, changes={"training": training, **anchor})
    one = Trainer(
        build_model(config, WIDTH, CLASSES, 0), Classification(["a", "b"]), config, seed=0, device="cuda", folder=None
    )
    one.model.use_generator(one.generator)
    one.model.train()
    return one


def step_times(name: str, rounds: int) -> Found:
    """Milliseconds of a step on a bag of 11,000 tiles."""
    bag = Bag(torch.randn(TILES, WIDTH, device="cuda"), validated=True)
    model = build(name, WIDTH, CLASSES).to("cuda")
    official = plain_form(model)
    eager = training_step(model, bag) if official is None else plain_training_step(official.to("cuda"), bag)
    found = {"official": timed(eager, rounds, 20)}
    pool, train = noise([TILES] * BAGS)
    plain = plain_step(trainer(name), pool)
    found["plain"] = timed(lambda: plain(0), rounds, 20)
    order = list(range(BAGS))
    for column, anchored, precision in (
        ("graphed", False, "auto"),
        ("+ anchor", True, "auto"),
        ("bf16", False, "bf16"),
    ):
        steps = Steps(trainer(name, anchored=anchored, precision=precision), pool, train)
        found[column] = timed(partial(run_epoch, [steps], order), rounds, 1) / BAGS
    together = [Steps(trainer(name), pool, train) for _ in range(SEEDS)]
    found["five seeds, per seed"] = timed(partial(run_epoch, together, order), rounds, 1) / BAGS / SEEDS
    found["official / graphed"] = found["official"] / found["graphed"]
    return found


def run_epoch(trainings: Sequence[Steps], order: list[int]) -> None:
    take_turns([steps.epoch(order) for steps in trainings])


def plain_step(one: Trainer, pool: ResidentBags) -> Callable[[int], None]:
    """The step of the plain executor, for a bag on the device."""

    def step(number: int) -> None:
        one.optimizer.zero_grad(set_to_none=True)
        target = pool.targets[number : number + 1].long()
        one.gradients.of_one(pool.bag(number), target, 1)
        one.optimizer.step()
        for stabilizer in one.stabilizers.values():
            stabilizer.update(one.model)

    return step


def epoch_times(name: str) -> Found:
    """Seconds of the steps of the first and of later epochs, bags of 2,000 to 20,000 tiles."""
    torch.manual_seed(0)
    pool, train = noise(torch.randint(2_000, 20_001, (395,)).tolist())
    steps = Steps(trainer(name, epochs=10), pool, train)
    found = {}
    for epoch in ("first epoch", "second", "third"):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run_epoch([steps], np.random.default_rng(0).permutation(395).tolist())
        torch.cuda.synchronize()
        found[epoch] = time.perf_counter() - started
    found["graphs"] = float(len(steps._graphs))
    return found


def short_bags(name: str) -> Found:
    """Slides per second of training steps on short bags."""
    torch.manual_seed(0)
    lengths = torch.randint(FEWEST, MOST + 1, (SHORT_BAGS,)).tolist()
    pool, train = noise(lengths)
    found: Found = {}
    plain = plain_step(trainer(name, anchored=True), pool)
    found["plain, 1"] = per_second(lambda: [plain(i) for i in range(200)], 200)
    if name == "asmil":
        found["fused, 1"] = fused_rate(pool)
    order = list(range(TIMED_BAGS))
    for batch in (1, BATCH):
        steps = Steps(trainer(name, anchored=True, batch=batch, epochs=2), pool, train)
        for column, recorded in (("eager", False), ("graphed", True)):
            run = partial(first_steps, steps, order if batch > 1 else order[:256], recorded)
            found[f"{column}, {batch}"] = per_second(run, TIMED_BAGS if batch > 1 else 256)
    found["batch / plain, 1"] = found[f"graphed, {BATCH}"] / found["plain, 1"]
    return found


def first_steps(steps: Steps, order: list[int], recorded: bool) -> None:
    """The first steps of an epoch, replayed or launched one by one."""
    steps.begin_epoch(steps.numbers[order])
    steps.step.zero_()
    batch = steps.trainer.settings.batch
    for first in range(0, len(order), batch):
        together = order[first : first + batch]
        shape = steps._shape([steps.pool.sizes[i] for i in together], [0] * len(together))
        assert shape is not None
        steps._graph(shape).replay() if recorded else steps._take(shape)


def fused_rate(pool: ResidentBags) -> float:
    """Slides per second of the fused ASMIL step, one bag per step."""
    from asmil.models.asmil import ASMIL
    from asmil.training.fused.forward import Dropped
    from asmil.training.fused.layout import Sizes
    from asmil.training.fused.step import Step, StepSettings
    from asmil.training.fused.weights import Weights

    model = build("asmil", WIDTH, CLASSES)
    assert isinstance(model, ASMIL)
    weights = Weights(Sizes.of(model), 1, torch.device("cuda"), torch.bfloat16)
    for parameter, value in model.named_parameters():
        weights.layout.view(weights.parameters, parameter)[0].copy_(value.detach())
    weights.anchors.copy_(weights.parameters[:, : weights.layout.anchor_size])
    weights.refresh()
    settings = StepSettings(Dropped(0.1, 0.5), 0.1, 0.999, 1e-4, (0.9, 0.999), (1.0, 1.0))
    n = torch.arange(1, 200_001, dtype=torch.float64)
    schedule = torch.stack([1e-4 / (1 - 0.9**n), (1 - 0.999**n).sqrt()], dim=1)
    step = Step(weights, pool, settings, MOST, TIMED_BAGS, schedule)
    step.record()
    step.order.copy_(torch.arange(TIMED_BAGS)[None])
    return per_second(lambda: take_turns([step.epoch()]), TIMED_BAGS)


def per_second(run: Callable[[], object], slides: int) -> float:
    """The best of three, after one to warm up."""
    run()
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return slides / min(seconds)


if __name__ == "__main__":
    main()
