"""Padding changes nothing, and a batch equals its bags one by one, for every method that can take one."""

from functools import partial

import pytest
import torch

from asmil import Anchor, AsmilError, Bag, build, methods
from asmil.models.batch import run_batch
from asmil.tasks.classification import Classification
from asmil.training.gradients import StepGradients

WIDTH, CLASSES = 24, 3
TASK = Classification(["a", "b", "c"], [1.0, 2.0, 0.5])
FORMS = {name: (name, {}) for name in methods()} | {
    "acmil mha": ("acmil", {"arch": "mha", "branches": 2}),
    "aem mha": ("aem", {"base": "mha"}),
    "aem dsmil": ("aem", {"base": "dsmil"}),
    "ibmil dsmil": ("ibmil", {"base": "dsmil"}),
    "caprmil gated": ("caprmil", {"pooling": "gated"}),
    "simple_mil subsets": ("simple_mil", {"attention": 8}),
    "ilra as written": ("ilra", {"inner": 8, "heads": 4, "rank": 3, "norm": True}),
    "psmil mean": ("psmil", {"update": "mean_of_predicted", "hard_branch": True}),
    "demil entropy": ("demil", {"entropy_weight": 0.1}),
    "dsmil values": ("dsmil", {"values": True}),
    "clam_sb svm": ("clam_sb", {"instance_loss": "svm", "subtyping": True}),
    "asmil shared": ("asmil", {"projections": "shared"}),
    "deepattnmisl vlsa": ("deepattnmisl", {"variant": "vlsa", "clusters": 20, "mask_empty": False}),
    "dtfd MaxMinS": ("dtfd", {"distill": "MaxMinS", "total_instance": 8, "inference_splits": 2}),
    "max_pooling tile": ("max_pooling", {"level": "tile"}),
    "max_pooling embedding": ("max_pooling", {"level": "embedding"}),
}
CAN = {
    "abmil", "abmilx", "acmil", "additive_mil", "aem", "asmil", "caprmil", "clam_mb", "clam_sb", "demil", "dsmil",
    "hdmil", "ibmil", "ilra", "linear", "mamba_mil", "max_pooling", "mean_pooling", "mhim", "rgmil", "simlp",
    "simple_mil", "wikg",
}  # fmt: skip
CAN_BE_PADDED = {*CAN, "deepattnmisl", "dtfd", "psmil"}
"""Batches have no tables of tiles, which deepattnmisl and dtfd read, and no first bag, which starts psmil."""


def make(form):
    name, options = FORMS[form]
    torch.manual_seed(1)
    model = build(name, WIDTH, CLASSES, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():  # some begin at nearly zero, where nothing could differ
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def make_bag(tiles, seed=0):
    features = torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(seed + 1000 * tiles))
    return Bag(features.double(), id=f"slide-{tiles}")


def padded(bag, rows):
    """The bag with rows after its tiles that would change any result they entered."""
    features = torch.full((rows, WIDTH), 7.0, dtype=torch.float64)
    features[: len(bag)] = bag.features
    tables = {name: torch.nn.functional.pad(table, (0, rows - len(bag))) for name, table in bag.extras.items()}
    return Bag(features, mask=torch.arange(rows) < len(bag), id=bag.id, extras=tables)


def gradients_of(model, run):
    model.zero_grad(set_to_none=True)
    run()
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def step_of(model, anchored):
    anchored = anchored and bool(model.score_axes)
    anchor = {"anchor": Anchor(model, weight=0.5)} if anchored else {}
    if anchored:
        with torch.no_grad():
            for value in anchor["anchor"].copy.parameters():
                value.mul_(0.9)
    return StepGradients(model, TASK, anchor, False, False)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


def can(form):
    return make(form).batch_from is not None


def test_who_can():
    assert {name for name in methods() if can(name)} == CAN
    assert {name for name in methods() if make(name).padding_from is not None} == CAN_BE_PADDED
    assert build("abmil", WIDTH, 2, mil_dropout=3, embedding_layers=3).padding_from is None
    assert build("ibmil", WIDTH, 2, base="transmil").padding_from is None


@pytest.mark.parametrize("form", sorted(form for form in FORMS if FORMS[form][0] in CAN_BE_PADDED))
@pytest.mark.parametrize("extra", [1, 13])
def test_padding_changes_neither_loss_nor_gradients(form, extra):
    model = make(form)
    step = step_of(model, anchored=True)
    for tiles in sorted({model.padding_from, 17, 60}):
        bag, target = model.prepare(make_bag(max(tiles, model.padding_from))), torch.tensor([tiles % CLASSES])
        whole = gradients_of(model, partial(step.of_one, bag, target, 1))
        filled = gradients_of(model, partial(step.of_one, padded(bag, len(bag) + extra), target, 1))
        assert_same(filled, whole)


@pytest.mark.parametrize("form", sorted(form for form in FORMS if FORMS[form][0] in CAN))
@pytest.mark.parametrize("anchored", [False, True])
def test_a_batch_is_the_mean_of_single_steps(form, anchored):
    model = make(form)
    step = step_of(model, anchored)
    bags = [make_bag(tiles, tiles) for tiles in (16, 40, 23, 16, 31)]
    targets = torch.tensor([0, 2, 1, 1, 0])

    def one_by_one():
        for bag, target in zip(bags, targets.split(1), strict=True):
            step.of_one(bag, target, len(bags))

    batch = Bag.collate(bags)
    expected = gradients_of(model, one_by_one)
    assert_same(gradients_of(model, lambda: step.of_padded(batch.features, batch.mask, targets)), expected)
    for bag, output in zip(bags, run_batch(model, batch), strict=True):
        alone = model(bag)
        torch.testing.assert_close(output.logits, alone.logits)
        torch.testing.assert_close(output.embedding, alone.embedding)
        if model.score_axes:
            torch.testing.assert_close(output.scores, alone.scores)


@pytest.mark.parametrize("form", sorted(CAN - {"additive_mil"}))  # which keeps running statistics
def test_every_bag_of_a_batch_draws_its_own_masks(form):
    model = make(form).train().float()
    model.use_generator(torch.Generator().manual_seed(0))
    bag = Bag(make_bag(40).features.float())
    first, second = run_batch(model, Bag.collate([bag, bag]))
    assert torch.isfinite(first.logits).all()
    random = form in {
        *("clam_sb", "clam_mb", "acmil", "asmil", "caprmil", "mamba_mil", "max_pooling", "mean_pooling"),
        *("abmilx", "hdmil", "mhim", "simlp", "simple_mil", "wikg"),
    }
    assert torch.equal(first.logits, second.logits) != random


@pytest.mark.parametrize("name", sorted(set(methods()) - CAN))
def test_others_are_refused(name):
    model = build(name, WIDTH, CLASSES).eval()
    batch = Bag.collate([Bag(torch.randn(9, WIDTH)), Bag(torch.randn(5, WIDTH), id="short")])
    with pytest.raises(AsmilError, match=type(model).__name__):
        run_batch(model, batch)
    if name not in {"psmil", "transmil"}:
        with pytest.raises(AsmilError, match="padding"):
            model(padded(make_bag(5), 9))


def test_collate_pads_and_refuses():
    batch = Bag.collate([Bag(torch.ones(3, 4), id="a"), Bag(torch.ones(1, 4), id="b")], length=5)
    assert batch.features.shape == (2, 5, 4)
    assert batch.mask.sum(dim=1).tolist() == [3, 1]
    assert (batch.ids, batch.sizes) == (("a", "b"), (3, 1))
    assert not batch.features[1, 1:].any()
    with pytest.raises(AsmilError, match="one bag"):
        Bag.collate([])
    with pytest.raises(AsmilError, match=r"length = 5.*6 tiles"):
        Bag.collate([Bag(torch.ones(6, 4))], length=5)
    with pytest.raises(AsmilError, match=r"b: .* 3 features"):
        Bag.collate([Bag(torch.ones(6, 4), id="a"), Bag(torch.ones(6, 3), id="b")])


def test_a_bag_that_is_too_short_to_be_padded_is_named(monkeypatch):
    model = build("acmil", WIDTH, CLASSES)
    monkeypatch.setattr(type(model), "padding_from", 11)
    with pytest.raises(AsmilError, match="tiny"):
        run_batch(model, Bag.collate([Bag(torch.randn(40, WIDTH)), Bag(torch.randn(3, WIDTH), id="tiny")]))
