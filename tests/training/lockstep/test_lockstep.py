"""Trainings side by side are the trainings that each replica would have had alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from asmil import AsmilError, methods
from asmil.runs.config import resolve
from asmil.training.honored_settings import NOT_ABOUT_STEPS, declared
from asmil.training.lockstep import Replica, obstacle, train_side_by_side
from asmil.training.lockstep.plain_forms import PLAIN, plain_forms
from asmil.training.lockstep.replicas import share_bags
from asmil.training.lockstep.train import build_trainers, train_one_at_a_time
from other_settings import NO_OTHER_VALUE, every_setting, needed_by, nested, other_values

BAGS, WIDTH, REPLICAS = 8, 6, 3
SIDE_BY_SIDE = {
    "abmil", "acmil", "asmil", "demil", "dsmil", "ilra",
    "linear", "max_pooling", "mean_pooling", "psmil", "r2t", "rgmil", "transmil",
}  # fmt: skip
OBSTACLES = {
    "aem": "step to step",
    "clam_mb": "classes",
    "clam_sb": "classes",
    "deepattnmisl": "prepares its bags",
    "dtfd": "torch",
    "hdmil": "prepares its bags",
    "ibmil": "several stages",
    "mhim": "several stages",
}
NEEDS_COORDINATES = {"camil", "patch_gcn"}
SMALL = {"inner": 8, "heads": 2, "attention": 4, "query_width": 4, "landmarks": 4, "clusters": 2}


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


def settings(name: str, preset: str = "paper", model=None, **sections):
    fields = methods()[name].model.config_type.model_fields
    small = {key: value for key, value in SMALL.items() if key in fields}
    if name == "linear":
        small.pop("inner")
    if name == "psmil":
        small["embedding_layers"] = 1
    training = {"epochs": 2, **sections.pop("training", {})}
    return resolve(name, preset, {"model": small | (model or {}), "training": training, **sections})


def compare(config, n_classes: int = 2, **sizes) -> None:
    bags, targets, replicas = make(n_classes=n_classes, **sizes)
    assert obstacle(config, bags, targets, n_classes, replicas) is None
    together = train_side_by_side(config, bags, targets, n_classes, replicas, order_seed=0, every_epoch=True)
    np.testing.assert_allclose(together, alone(config, n_classes, **sizes), rtol=0, atol=1e-5)


def alone(config, n_classes: int = 2, **sizes) -> np.ndarray:
    bags, targets, replicas = make(n_classes=n_classes, **sizes)
    shared = share_bags(bags, targets, n_classes, order_seed=0)
    return train_one_at_a_time(build_trainers(config, shared, replicas), shared, replicas, every_epoch=True)


def test_every_method_is_known_to_run_one_way_or_the_other():
    assert SIDE_BY_SIDE | OBSTACLES.keys() | NEEDS_COORDINATES == methods().keys()


@pytest.mark.parametrize("name", sorted(SIDE_BY_SIDE))
def test_side_by_side_is_one_at_a_time(name):
    """With all that is random: each replica draws what it would draw alone."""
    compare(settings(name))


@pytest.mark.parametrize("name", sorted(OBSTACLES))
def test_other_methods_run_one_at_a_time(name):
    bags, targets, replicas = make(n_bags=4)
    config = settings(name, training={"epochs": 1})
    found = obstacle(config, bags, targets, 2, replicas)
    assert found is not None
    assert OBSTACLES[name] in found
    probabilities = train_side_by_side(config, bags, targets, 2, replicas[:2], order_seed=0, every_epoch=True)
    assert probabilities.shape == (1, 2, 4, 2)
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1)


@pytest.mark.parametrize("name", sorted(NEEDS_COORDINATES))
def test_methods_that_need_coordinates_say_so(name):
    bags, targets, replicas = make(n_bags=4)
    with pytest.raises(AsmilError, match="coordinates"):
        train_side_by_side(settings(name), bags, targets, 2, replicas, order_seed=0, every_epoch=True)


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"optimizer": "adamw", "weight_decay": 0.1, "decay": "matrices"}},
        {"training": {"schedule": "constant", "warmup_epochs": 1, "betas": [0.5, 0.9]}},
        {"training": {"clip_norm": 0.01, "lr_drops": [1]}},
        {"training": {"optimizer": "lookahead_radam"}},
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
    bags, targets, replicas = make(n_bags=4)
    usual = alone(settings("abmil", **nested(FAST | needed)), n_bags=4)
    effects = []
    for value in other_values(name):
        config = settings("abmil", **nested(FAST | needed | {name: value}))
        if obstacle(config, bags, targets, 2, replicas) is None:
            found = alone(config, n_bags=4)
            effects.append(found.shape != usual.shape or np.abs(found - usual).max() > 1e-4)
            compare(config, n_bags=4)
    if effects and not declared(name, (*NOT_ABOUT_STEPS, "training.precision")):
        assert any(effects), "the test would not see that the setting is ignored"


@pytest.mark.parametrize("anchor", [{"ramp_epochs": 1}, {"gradient_share": 0.5}])
def test_what_only_the_loop_computes_is_an_obstacle(anchor):
    bags, targets, replicas = make()
    found = obstacle(settings("abmil", anchor={"normalizer": "nsf", **anchor}), bags, targets, 2, replicas)
    assert found is not None
    assert f"anchor.{next(iter(anchor))}" in found


@pytest.mark.parametrize("preset", ["recommended", "released"])
def test_presets_of_asmil(preset):
    compare(settings("asmil", preset, model={"tokens": 5}, training={"epochs": 2, "lr": 1e-3}))


@pytest.mark.parametrize("name", ["dsmil", "psmil", "rgmil"])
def test_three_classes(name):
    compare(settings(name), n_classes=3)


def test_dropout_of_large_bags_is_drawn_alike():
    compare(settings("mean_pooling", model={"inner": 64}), n_bags=4, tiles=(64, 90))


@pytest.mark.parametrize("sections", [{"training": {"accumulate": 2}}, {"training": {"class_weights": "balanced"}},
                                      {"training": {"sampling": "balanced"}}, {"data": {"max_tiles": 3}},
                                      {"stabilizers": {"temporal": {"weight": 1.0}}}])  # fmt: skip
def test_what_cannot_be_done_at_once_is_done_one_at_a_time(sections):
    bags, targets, replicas = make()
    (section,) = sections.values()
    found = obstacle(settings("abmil", **sections), bags, targets, 2, replicas)
    assert found is not None
    assert next(iter(section)) in found


def test_an_anchor_of_the_kept_rows_runs_one_at_a_time():
    bags, targets, replicas = make()
    found = obstacle(settings("asmil", anchor={"rows": "kept"}), bags, targets, 2, replicas)
    assert found is not None
    assert "anchor.rows" in found


def test_a_replica_does_not_depend_on_its_neighbors():
    bags, targets, replicas = make()
    config = settings("asmil")
    all_of_them = train_side_by_side(config, bags, targets, 2, replicas, order_seed=3, every_epoch=False)
    by_itself = train_side_by_side(config, bags, targets, 2, replicas[1:2], order_seed=3, every_epoch=False)
    assert all_of_them.shape == (1, REPLICAS, BAGS, 2)
    np.testing.assert_allclose(all_of_them[:, 1:2], by_itself, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["asmil", "psmil"])
def test_bags_outside_the_training_set_leave_no_trace(name):
    """The predictions for training bags do not change when a test bag does: nothing is learned from it."""
    bags, targets, replicas = make()
    changed = [bag.clone() for bag in bags]
    outside = np.setdiff1d(np.arange(BAGS), replicas[0].train)
    for i in outside:
        changed[i] += 5.0
    first, second = (
        train_side_by_side(settings(name), some, targets, 2, replicas, order_seed=0, every_epoch=True)
        for some in (bags, changed)
    )
    np.testing.assert_array_equal(first[:, 0, replicas[0].train], second[:, 0, replicas[0].train])
    assert not np.array_equal(first[:, 0, outside], second[:, 0, outside])


def test_the_same_seeds_give_the_same_numbers():
    bags, targets, replicas = make()
    first, second = (
        train_side_by_side(settings("asmil"), bags, targets, 2, replicas, order_seed=0, every_epoch=False)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    other = train_side_by_side(settings("asmil"), bags, targets, 2, replicas, order_seed=1, every_epoch=False)
    assert not np.array_equal(first, other)


def test_learns_what_can_be_learned():
    draw = np.random.default_rng(1)
    targets = np.arange(20) % 2
    bags = [torch.from_numpy(draw.normal(size=(4, WIDTH)).astype(np.float32) + 2 * target) for target in targets]
    replicas = [replace(make_replica(bags, r), seed=r) for r in range(2)]
    config = settings("abmil", training={"epochs": 10, "lr": 1e-2})
    probabilities = train_side_by_side(config, bags, targets, 2, replicas, order_seed=0, every_epoch=False)
    assert (probabilities[0].argmax(axis=-1) == targets).all()


def test_a_column_with_infinite_scale_is_zero():
    bags, targets, (replica, *_) = make()
    scale = replica.scale.copy()
    scale[0] = np.inf
    changed = [bag.clone() for bag in bags]
    for bag in changed:
        bag[:, 0] = 7.0
    first, second = (
        train_side_by_side(settings("abmil"), some, targets, 2, [replace(replica, scale=scale)], 0, False)
        for some in (bags, changed)
    )
    np.testing.assert_array_equal(first, second)


def test_a_loss_that_is_no_longer_finite_is_told():
    bags, targets, replicas = make()
    replicas[1] = replace(replicas[1], scale=np.full(WIDTH, 2e-38, np.float32))
    with pytest.raises(AsmilError, match="replica 1"):
        train_side_by_side(settings("abmil"), bags, targets, 2, replicas, order_seed=0, every_epoch=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train": np.array([0, 99])}, "replica 0: .*0 to 7"),
        ({"train": np.array([], dtype=np.int64)}, "at least one"),
        ({"train": np.array([1, 1])}, "replica 0: .*twice"),
        ({"center": np.zeros(WIDTH + 1)}, "replica 0: center"),
        ({"scale": np.zeros(WIDTH)}, "scale not 0"),
    ],
)
def test_a_replica_that_does_not_fit_is_refused(change, says):
    bags, targets, replicas = make()
    replicas[0] = replace(replicas[0], **change)
    with pytest.raises(AsmilError, match=says):
        train_side_by_side(settings("abmil"), bags, targets, 2, replicas, order_seed=0, every_epoch=False)


def test_bags_that_do_not_fit_are_refused():
    bags, targets, replicas = make()
    for broken, says in (
        ([*bags[:-1], bags[-1][:, 1:]], "bag 7 .*shape"),
        ([*bags[:-1], bags[-1] * np.nan], "bag 7 .*NaN"),
        (bags[:-1], "7 bags and 8 targets"),
    ):
        with pytest.raises(AsmilError, match=says):
            train_side_by_side(settings("abmil"), broken, targets, 2, replicas, order_seed=0, every_epoch=False)
    with pytest.raises(AsmilError, match=r"targets .*0 to 1"):
        train_side_by_side(settings("abmil"), bags, targets + 1, 2, replicas, order_seed=0, every_epoch=False)
    with pytest.raises(AsmilError, match="no replicas"):
        train_side_by_side(settings("abmil"), bags, targets, 2, [], order_seed=0, every_epoch=False)


def test_plain_forms_are_left_behind_nowhere():
    def current():
        return [getattr(owner, name) for owner, name, _ in PLAIN]

    before = current()
    with plain_forms():
        assert current() != before
    assert current() == before
