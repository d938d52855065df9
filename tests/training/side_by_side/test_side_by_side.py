"""Trainings side by side give what each training gives alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from asmil import AsmilError, methods
from asmil.models.inference import infer
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification, balanced_weights
from asmil.training.honored import MAY_DIFFER, NOT_ABOUT_STEPS, declared
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.resident import ResidentBags
from asmil.training.side_by_side.bags import NotSideBySide, StandardizedBags
from asmil.training.side_by_side.plain_forms import PLAIN, plain_forms
from asmil.training.side_by_side.schedule import common_steps
from asmil.training.side_by_side.step import StackedSteps
from asmil.training.side_by_side.train import fit_side_by_side
from other_settings import NO_OTHER_VALUE, every_setting, needed_by, nested, other_values
from watched_training import killed_in_the_second_epoch

BAGS, WIDTH, REPLICAS = 8, 6, 3
SIDE_BY_SIDE = {
    "abmil", "abmilx", "acmil", "additive_mil", "aem", "asmil", "caprmil", "clam_mb", "clam_sb", "demil", "dgr_mil",
    "dsmil", "hdmil", "ibmil", "ilra", "linear", "mamba_mil", "max_pooling", "mean_pooling", "mhim", "psmil", "r2t",
    "rgmil", "simlp", "simple_mil", "transmil", "wikg",
}  # fmt: skip
PREPARED = {"deepattnmisl", "dtfd"}
"""Side by side, unless trainings standardize features: the tables of their tiles are prepared once for all."""
NEEDS_COORDINATES = {"camil", "patch_gcn", "sm_abmil"}
SMALL = {"inner": 8, "hidden": 8, "heads": 2, "attention": 4, "query_width": 4, "landmarks": 4, "clusters": 2}


@dataclass(frozen=True)
class Replica:
    """One of several trainings on the same bags."""

    train: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    seed: int


def make(n_bags: int = BAGS, tiles: tuple[int, int] = (1, 7), n_classes: int = 2):
    draw = np.random.default_rng(0)
    targets = np.arange(n_bags) % n_classes
    bags = [
        torch.from_numpy(draw.normal(2, 3, (draw.integers(*tiles), WIDTH)).astype(np.float32) + target)
        for target in targets
    ]
    return bags, targets, [make_replica(bags, r) for r in range(REPLICAS)]


def make_replica(bags, number: int) -> Replica:
    train = np.array([i for i in range(len(bags)) if i % 4 != number])
    seen = np.concatenate([bags[i].numpy() for i in train])
    return Replica(train, seen.mean(axis=0), seen.std(axis=0), seed=number)


class Trained:
    """Trainers, the bags of each, and the probabilities of all bags after every epoch."""

    def __init__(self, config, bags, targets, replicas, order_seed=0, folder: Path | None = None):
        precision = config.training.model_copy(update={"select": "last", "early_stopping": None, "precision": "fp32"})
        config = config.model_copy(update={"training": precision})
        self.trainers, self.everything, self.train, self.courses = [], [], [], []
        bags, n_classes = [bag.float() for bag in bags], int(targets.max()) + 1
        for number, replica in enumerate(replicas):
            weights = None
            if config.training.class_weights == "balanced":
                weights = balanced_weights(targets[replica.train].tolist(), n_classes)
            task = Classification([str(k) for k in range(n_classes)], weights)
            model = build_model(config, WIDTH, n_classes, replica.seed)
            into = None if folder is None else folder / str(number)
            trainer = Trainer(model, task, config, seed=replica.seed, folder=into)
            center, scale = (torch.from_numpy(values).float() for values in (replica.center, replica.scale))
            source = StandardizedBags(bags, range(len(bags)), center, scale)
            self.trainers.append(trainer)
            self.everything.append(source)
            own = source.chosen(replica.train)
            self.train.append(LabeledBags(own, targets[replica.train], own_order=self.order(replica, bags, order_seed)))

    @staticmethod
    def order(replica, bags, order_seed):
        position = {int(bag): i for i, bag in enumerate(replica.train)}

        def order(epoch):
            drawn = np.random.default_rng([order_seed, epoch]).permutation(len(bags)).tolist()
            return [position[bag] for bag in drawn if bag in position]

        return order

    def watch(self, number, source):
        trainer, course = self.trainers[number], []

        def predict(record):
            if trainer.stage is trainer.stages[-1]:
                course.append(torch.softmax(trainer.logits(source).double(), dim=-1).numpy())

        trainer.on_epoch = predict
        self.courses.append(course)

    def together(self):
        for number, source in enumerate(self.everything):
            self.watch(number, source)
        fit_side_by_side(self.trainers, self.train, [None] * len(self.trainers))
        return np.stack(self.courses, axis=1)

    def alone(self):
        for number, (trainer, source, part) in enumerate(zip(self.trainers, self.everything, self.train, strict=True)):
            bags = [trainer.stages[-1].model.prepare(bag) for bag in source.stream(range(len(source)))]
            self.watch(number, BagList(bags))
            trainer.fit(replace(part, bags=BagList([bags[i] for i in part.bags.indices])), None)
        return np.stack(self.courses[-len(self.trainers) :], axis=1)


def together(config, bags, targets, replicas, order_seed=0) -> np.ndarray:
    """Probabilities, epochs x replicas x bags x classes."""
    return Trained(config, bags, targets, replicas, order_seed).together()


def train(config, bags, targets, replicas) -> np.ndarray:
    """The same, one at a time if there is an obstacle."""
    trained = Trained(config, bags, targets, replicas)
    try:
        return trained.together()
    except NotSideBySide:
        return trained.alone()


def obstacle(config, bags, targets, replicas) -> str | None:
    """Why these are not trained side by side."""
    try:
        together(
            config.model_copy(update={"training": config.training.model_copy(update={"epochs": 1})}),
            bags,
            targets,
            replicas,
        )
    except NotSideBySide as reason:
        return str(reason)
    return None


def settings(name: str, preset: str = "paper", model=None, **sections):
    fields = methods()[name].model.config_type.model_fields
    small = {key: value for key, value in SMALL.items() if key in fields}
    if name == "linear":
        small.pop("inner")
    if name in ("psmil", "sm_abmil"):
        small["embedding_layers"] = 1
    training = {"epochs": 2, "device": "cpu", **sections.pop("training", {})}
    return resolve(name, preset, {"model": small | (model or {}), "training": training, **sections})


def compare(config, n_classes: int = 2, **sizes) -> None:
    made = make(n_classes=n_classes, **sizes)
    np.testing.assert_allclose(together(config, *made), Trained(config, *made).alone(), rtol=0, atol=1e-5)


def test_every_method_is_known_to_run_one_way_or_the_other():
    assert methods().keys() == SIDE_BY_SIDE | PREPARED | NEEDS_COORDINATES


@pytest.mark.parametrize("name", sorted(SIDE_BY_SIDE))
def test_side_by_side_is_one_at_a_time(name):
    """With all that is random: each replica draws what it would draw alone."""
    compare(settings(name))


def test_trained_models_own_their_weights_as_if_trained_alone():
    trained = Trained(settings("asmil"), *make())
    trained.together()
    storages = set()
    for trainer in trained.trainers:
        for value in trainer.model.state_dict().values():
            assert value.is_contiguous()
            assert value.untyped_storage().nbytes() == value.nbytes
            storages.add(value.data_ptr())
    assert len(storages) == REPLICAS * len(trainer.model.state_dict())


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("additive_mil", {"anchor": {"normalizer": "nsf", "momentum": 0.9}}),
        ("aem", {"model": {"annealing": "cosine"}, "training": {"accumulate": 2}}),
        ("simple_mil", {"anchor": {"normalizer": "nsf", "momentum": 0.9}, "training": {"accumulate": 3}}),
    ],
)
def test_what_changes_with_steps_and_bags(name, sections):
    compare(settings(name, **sections))


def test_bags_that_train_different_weights_run_one_at_a_time():
    """R2T's attention between windows is not reached from bags of at most one tile a window."""
    assert obstacle(settings("r2t"), *make(tiles=(60, 65))) is None
    assert "number of tiles" in obstacle(settings("r2t"), *make(tiles=(60, 70)))


@pytest.mark.parametrize("model", [{"base": "dsmil"}, {"version": 2, "merge_heads": 2}])
def test_other_methods_run_one_at_a_time(model):
    """These gather the tiles that they keep, whose number depends on the bag."""
    bags, targets, replicas = make(n_bags=4)
    config = settings("mhim", model=model, training={"epochs": 1})
    assert "torch" in obstacle(config, bags, targets, replicas)
    probabilities = train(config, bags, targets, replicas[:2])
    assert probabilities.shape == (1, 2, 4, 2)
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1)


@pytest.mark.parametrize("name", sorted(NEEDS_COORDINATES))
def test_methods_that_need_coordinates_say_so(name):
    with pytest.raises(AsmilError, match="coordinates"):
        train(settings(name), *make(n_bags=4))


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"optimizer": "adamw", "weight_decay": 0.1, "decay": "matrices"}},
        {"training": {"schedule": "constant", "warmup_epochs": 1, "betas": [0.5, 0.9]}},
        {"training": {"clip_norm": 0.01, "lr_drops": [1]}},
        {"training": {"optimizer": "lookahead_radam"}},
        {"training": {"optimizer": "sgd"}},
        {"training": {"class_weights": "balanced"}},
        {"training": {"sampling": "balanced"}},
        {"anchor": {"normalizer": "nsf", "momentum": 0.9, "update": "epoch"}},
        {"anchor": {"normalizer": "softmax", "start": "random", "update": "never", "divergence": "cross_entropy"}},
        {"stabilizers": {"features": {"weight": 1.0, "momentum": 0.9}, "entropy": {"weight": 0.1}}},
        {"attention": {"normalizer": "mixture"}},
    ],
)
def test_settings_are_honored(sections):
    compare(settings("abmil", **sections))


FAST = {"training.lr": 0.02, "training.epochs": 2}
"""So that a setting that is ignored shows."""


@pytest.mark.parametrize("name", sorted(set(every_setting()) - NO_OTHER_VALUE))
def test_every_setting_is_honored_or_an_obstacle(name):
    """A new setting is an obstacle until it is declared, and what is declared gives the numbers of one at a time."""
    needed = needed_by(name)
    made = make(n_bags=4)
    usual = Trained(settings("abmil", **nested(FAST | needed)), *made).alone()
    effects = []
    for value in other_values(name):
        config = settings("abmil", **nested(FAST | needed | {name: value}))
        try:
            side_by_side = together(config, *made)
        except NotSideBySide:
            continue
        alone = Trained(config, *made).alone()
        effect = 0.0 if alone.shape != usual.shape else float(np.abs(alone - usual).max())
        effects.append(alone.shape != usual.shape or effect > 1e-4)
        # a setting that is ignored differs by its whole effect; strong anchors magnify rounding
        np.testing.assert_allclose(side_by_side, alone, rtol=0, atol=max(1e-5, 0.05 * effect))
    # the average of weights is for validation and prediction, which test_runs.py compares
    if effects and not declared(name, (*NOT_ABOUT_STEPS, "training.precision", "training.ema")):
        assert any(effects), "the test would not see that the setting is ignored"


@pytest.mark.parametrize("anchor", [{"ramp_epochs": 1}, {"gradient_share": 0.5}])
def test_what_only_the_loop_computes_is_an_obstacle(anchor):
    reason = obstacle(settings("abmil", anchor={"normalizer": "nsf", **anchor}), *make())
    assert f"anchor.{next(iter(anchor))}" in reason


@pytest.mark.parametrize("preset", ["no_anchor", "released"])
def test_presets_of_asmil(preset):
    compare(settings("asmil", preset, model={"tokens": 5}, training={"epochs": 2, "lr": 1e-3}))


@pytest.mark.parametrize("name", ["dsmil", "psmil", "rgmil"])
def test_three_classes(name):
    compare(settings(name), n_classes=3)


def test_dropout_of_large_bags_is_drawn_alike():
    compare(settings("mean_pooling", model={"inner": 64}), n_bags=4, tiles=(64, 90))


@pytest.mark.parametrize("sections", [{"training": {"batch": 2}}, {"data": {"max_tiles": 3}},
                                      {"stabilizers": {"temporal": {"weight": 1.0}}}])  # fmt: skip
def test_what_cannot_be_done_at_once_is_done_one_at_a_time(sections):
    (section,) = sections.values()
    assert next(iter(section)) in obstacle(settings("abmil", **sections), *make())


def test_an_anchor_of_the_kept_rows_runs_one_at_a_time():
    assert "anchor.rows" in obstacle(settings("asmil", anchor={"rows": "kept"}), *make())


def test_a_replica_does_not_depend_on_its_neighbors():
    bags, targets, replicas = make()
    all_of_them = together(settings("asmil"), bags, targets, replicas, 3)
    by_itself = together(settings("asmil"), bags, targets, replicas[1:2], 3)
    assert all_of_them.shape == (2, REPLICAS, BAGS, 2)
    np.testing.assert_allclose(all_of_them[:, 1:2], by_itself, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["asmil", "psmil"])
def test_bags_outside_the_training_set_leave_no_trace(name):
    """The predictions for training bags do not change when a test bag does: nothing is learned from it."""
    bags, targets, replicas = make()
    changed = [bag.clone() for bag in bags]
    outside = np.setdiff1d(np.arange(BAGS), replicas[0].train)
    for i in outside:
        changed[i] += 5.0
    first, second = (together(settings(name), some, targets, replicas) for some in (bags, changed))
    np.testing.assert_array_equal(first[:, 0, replicas[0].train], second[:, 0, replicas[0].train])
    assert not np.array_equal(first[:, 0, outside], second[:, 0, outside])


def test_the_same_seeds_give_the_same_numbers():
    made = make()
    first, second = (together(settings("asmil"), *made) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, together(settings("asmil"), *made, 1))


def test_learns_what_can_be_learned():
    draw = np.random.default_rng(1)
    targets = np.arange(20) % 2
    bags = [torch.from_numpy((draw.normal(size=(4, WIDTH)) + 2 * target).astype(np.float32)) for target in targets]
    config = settings("abmil", training={"epochs": 10, "lr": 1e-2})
    probabilities = together(config, bags, targets, [make_replica(bags, r) for r in range(2)])
    assert (probabilities[-1].argmax(axis=-1) == targets).all()


def test_a_column_with_infinite_scale_is_zero():
    bags, targets, (replica, *_) = make()
    scale = replica.scale.copy()
    scale[0] = np.inf
    changed = [bag.clone() for bag in bags]
    for bag in changed:
        bag[:, 0] = 7.0
    first, second = (
        together(settings("abmil"), some, targets, [replace(replica, scale=scale)]) for some in (bags, changed)
    )
    np.testing.assert_array_equal(first, second)


def test_a_loss_that_is_no_longer_finite_is_told():
    bags, targets, replicas = make()
    replicas[1] = replace(replicas[1], scale=np.full(WIDTH, 2e-38, np.float32))
    with pytest.raises(AsmilError, match=r"bag \d"):
        together(settings("abmil"), bags, targets, replicas)


def test_plain_forms_are_left_behind_nowhere():
    def current():
        return [getattr(owner, name) for owner, name, _ in PLAIN]

    before = current()
    with plain_forms():
        assert current() != before
    assert current() == before


# The one loop


def plain_bags(made):
    """All bags as they are, in trainings that draw their own order."""
    bags, targets, replicas = made
    bags = [bag.float() for bag in bags]
    everything = [
        next(StandardizedBags(bags, [i], torch.zeros(WIDTH), torch.ones(WIDTH)).stream([0])) for i in range(len(bags))
    ]
    sources = [BagList([everything[i] for i in replica.train]) for replica in replicas]
    return sources, [targets[replica.train] for replica in replicas]


def trainers_of(config, replicas, folder=None, seen=None):
    """Trainers that write their states, and the records of their epochs; config: of all, or one for each."""
    trainers = []
    configs = config if isinstance(config, list) else [config] * len(replicas)
    for (number, replica), config in zip(enumerate(replicas), configs, strict=True):
        model = build_model(config, WIDTH, 2, replica.seed)
        into = None if folder is None else folder / str(number)
        on_epoch = None if seen is None else seen.setdefault(number, []).append
        task = Classification(["a", "b"])
        trainers.append(Trainer(model, task, config, seed=replica.seed, folder=into, on_epoch=on_epoch))
    return trainers


def numbers(records):
    return [{**record, "seconds": None} for record in records]


STOPPING = {"epochs": 4, "lr": 0.02, "select": "loss", "early_stopping": 1}
EACH_ITS_OWN = [
    {"lr": 0.02, "weight_decay": 0.0, "epochs": 3, "lr_min": 0.01, "seed": 1},
    {"lr": 0.005, "weight_decay": 0.3, "epochs": 2, "schedule": "constant", "lr_drops": [1], "lr_drop_factor": 0.5},
    {**STOPPING, "weight_decay": 0.3, "early_stopping_from": 1, "warmup_epochs": 1},
]


def test_what_may_differ_between_trainings_is_tested():
    assert {f"training.{name}" for own in EACH_ITS_OWN for name in own} == set(MAY_DIFFER)


@pytest.mark.parametrize(
    ("name", "model", "optimizer", "own"),
    [
        ("abmil", {}, "adam", [STOPPING] * REPLICAS),
        ("abmil", {}, "adam", EACH_ITS_OWN),
        ("abmil", {}, "adamw", EACH_ITS_OWN),
        ("abmil", {}, "sgd", EACH_ITS_OWN),
        ("ibmil", {}, "adam", [STOPPING] * REPLICAS),
        ("mhim", {"momentum": 0.9}, "adam", [STOPPING] * REPLICAS),
        ("deepattnmisl", {"clusters": 4}, "adam", [STOPPING] * REPLICAS),
        ("deepattnmisl", {"variant": "vlsa", "clusters": 3, "mask_empty": False}, "adam", [STOPPING] * REPLICAS),
        ("dtfd", {"groups": 3, "inference_splits": 2}, "adam", [STOPPING] * REPLICAS),
        ("dtfd", {"groups": 2, "distill": "MaxS"}, "adam", [STOPPING] * REPLICAS),
        ("dtfd", {"groups": 2, "distill": "MaxMinS", "dropout": 0.2}, "adam", [STOPPING] * REPLICAS),
    ],
)
def test_own_orders_validation_and_selection_are_those_of_the_loop(name, model, optimizer, own):
    """Every training draws its own order; epochs, records, learning rates, choice and predictions are as alone."""
    made = make()
    config = [settings(name, model=model, training={"optimizer": optimizer, **training}) for training in own]
    sources, targets = plain_bags(made)
    labeled = [LabeledBags(*pair) for pair in zip(sources, targets, strict=True)]
    val = [labeled[(number + 1) % REPLICAS] for number in range(REPLICAS)]
    seen, seen_alone = {}, {}
    trainers = trainers_of(config, made[2], seen=seen)
    fit_side_by_side(trainers, labeled, val)
    for number, trainer in enumerate(trainers_of(config, made[2], seen=seen_alone)):
        best = trainer.fit(labeled[number], val[number])
        assert trainers[number].progress.best["epoch"] == best
        expected = trainer.predict(val[number].bags)
        torch.testing.assert_close(trainers[number].predict(val[number].bags), expected, rtol=0, atol=1e-5)
    for number, records in seen_alone.items():
        assert [record["epoch"] for record in seen[number]] == [record["epoch"] for record in records]
        for side_by_side, alone in zip(seen[number], records, strict=True):
            assert side_by_side["lr"] == alone["lr"]
            assert side_by_side["train"] == pytest.approx(alone["train"], abs=1e-5)
            assert side_by_side["val"] == pytest.approx(alone["val"], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("abmil", "lookahead_radam"), ("abmil", "sgd"), ("additive_mil", "adam"), ("ibmil", "adam")],
)
def test_a_training_that_is_resumed_ends_with_the_same_bits(tmp_path, name, optimizer):
    made = make()
    anchor = {"normalizer": "nsf", "momentum": 0.9}
    config = settings(name, anchor=anchor, training={"epochs": 3, "checkpoint_seconds": 0, "optimizer": optimizer})
    labeled = [LabeledBags(*pair) for pair in zip(*plain_bags(made), strict=True)]
    nobody = [None] * REPLICAS
    fit_side_by_side(trainers_of(config, made[2], tmp_path / "whole"), labeled, nobody)
    with killed_in_the_second_epoch():
        fit_side_by_side(trainers_of(config, made[2], tmp_path / "resumed"), labeled, nobody)
    fit_side_by_side(trainers_of(config, made[2], tmp_path / "resumed"), labeled, nobody)
    for number in range(REPLICAS):
        for name in ("last", "best"):
            path = f"{number}/checkpoints/{name}.safetensors"
            whole, resumed = (load_file(tmp_path / folder / path) for folder in ("whole", "resumed"))
            assert whole.keys() == resumed.keys()
            assert [key for key in whole if not torch.equal(whole[key], resumed[key])] == []
    with pytest.raises(AsmilError, match="side_by_side"):
        trainers_of(config, made[2], tmp_path / "resumed")[0].fit(labeled[0], None)


@pytest.mark.parametrize("name", sorted(PREPARED))
def test_prepared_bags_are_not_standardized(name):
    assert "prepares" in obstacle(settings(name), *make(n_bags=4))


def test_pseudo_bags_of_ones_own_are_an_obstacle():
    made = make()
    sources, targets = plain_bags(made)
    given = [replace(bag, extras={"pseudo_bags": torch.arange(len(bag))}) for bag in sources[0].bags]
    labeled = LabeledBags(BagList(given), targets[0])
    with pytest.raises(NotSideBySide, match="bag 1"):
        fit_side_by_side(trainers_of(settings("dtfd"), made[2][:1]), [labeled], [None])


def test_steps_keep_every_order_and_share_what_they_can():
    draw = np.random.default_rng(0)
    common = draw.permutation(20).tolist()
    parts = [[bag for bag in common if bag % 5 != number] for number in range(5)]
    steps = list(common_steps(parts))
    assert [key for key, _ in steps] == common
    others = [draw.choice(6, 9).tolist() for _ in range(4)]
    taken = [[key for key, active in common_steps(others) if number in active] for number in range(4)]
    assert taken == others


@pytest.mark.parametrize("name", ["abmil", "asmil", "clam_mb", "dsmil", "transmil"])
def test_outputs_of_recorded_bags_are_those_of_inference(name):
    made = make()
    config = settings(name)
    sources, targets = plain_bags(made)
    trainers = trainers_of(config, made[2])
    labeled = [LabeledBags(*pair) for pair in zip(sources, targets, strict=True)]
    pool = ResidentBags(WIDTH, torch.device("cpu"), torch.float32)
    steps = StackedSteps(trainers, labeled, pool)
    for number, source in enumerate(sources):
        bags = list(source.stream(range(3)))
        for bag, output in zip(bags, steps.outputs(number, pool.numbers(source)[:3]), strict=True):
            expected = infer(trainers[number].model, bag)
            maps = [trainers[number].model.tile_map(one) for one in (output, expected)]
            torch.testing.assert_close(*maps, rtol=0, atol=1e-5)
            torch.testing.assert_close(output.logits, expected.logits, rtol=0, atol=1e-5)
