"""Every registered method, every kind of map: one finite value per tile, or a reason why there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from asmil import AsmilError, Bag, build, infer, methods
from asmil.explain import kinds, pooled_tiles, whole_bags
from asmil.explain.kinds import KINDS, explain_bag, kinds_of
from asmil.tasks.classification import Classification
from asmil.tasks.regression import Regression

WIDTH = 24
TASK = Classification(("a", "b", "c"))
NO_LOGIT = {
    "additive_mil",
    "dtfd",
    "sm_abmil",
    "wikg",
    "abmilx",
    "aem",
    "ibmil",
    "camil",
    "caprmil",
    "deepattnmisl",
    "dgr_mil",
    "hdmil",
    "ilra",
    "mamba_mil",
    "patch_gcn",
    "r2t",
    "transmil",
    "linear",
    "mean_pooling",
    "max_pooling",
    "simlp",
}
POOLED = ("abmil", "clam_sb", "clam_mb", "acmil", "asmil", "demil", "psmil", "mhim", "simple_mil")


def make_bag(tiles: int = 30, seed: int = 0) -> Bag:
    draw = np.random.default_rng(seed)
    coords = np.stack([np.arange(tiles) % 7, np.arange(tiles) // 7], axis=1) * 256 + draw.integers(0, 90, (tiles, 2))
    return Bag(draw.normal(size=(tiles, WIDTH)).astype(np.float32), coords, id=f"slide-{tiles}")


def make(name: str):
    torch.manual_seed(1)
    return build(name, in_features=WIDTH, n_outputs=3).eval()


@pytest.mark.parametrize("name", sorted(methods()))
def test_every_method_has_every_kind_or_says_why_not(name, monkeypatch):
    monkeypatch.setattr(kinds, "STEPS", 2)
    model, bag = make(name), make_bag(6)
    known = kinds_of(model)
    assert KINDS.keys() <= known.keys()
    for kind, missing in known.items():
        if missing is not None:
            with pytest.raises(AsmilError, match=kind):
                explain_bag(model, TASK, bag, kind)
            continue
        found = explain_bag(model, TASK, bag, kind)
        assert found.values.shape == (len(bag),)
        assert found.values.isfinite().all()
        assert found.name in TASK.classes
        assert 0 < found.shown < 1
    assert known["leave_one_out"] is known["gradient"] is known["integrated_gradients"] is None
    assert (known["attention_logit"] is None) == (name not in NO_LOGIT)


@pytest.mark.parametrize("name", POOLED)
def test_what_is_computed_from_sums_is_what_whole_bags_give(name):
    model, bag = make(name), make_bag(12)
    evidence = lambda logits: TASK.evidence(logits, 1)  # noqa: E731
    whole, together = whole_bags.evidence_lost(model, bag, evidence, torch.device("cpu"))
    assert together == 1
    torch.testing.assert_close(pooled_tiles.evidence_lost(model, bag.features, evidence), whole, rtol=1e-4, atol=1e-5)
    alone = [float(evidence(infer(model, bag.subset(torch.tensor([i]))).logits[None])) for i in range(5)]
    found = evidence(pooled_tiles.tile_logits(model, bag.features))[:5]
    torch.testing.assert_close(found, torch.tensor(alone).double(), rtol=1e-4, atol=1e-5)
    at_once = whole_bags.gradient(model, bag, evidence, torch.device("cpu"))
    torch.testing.assert_close(pooled_tiles.gradient(model, bag.features, evidence), at_once, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["asmil", "abmil", "clam_mb"])
def test_removed_tiles_are_those_of_a_smaller_bag(name):
    model, bag = make(name), make_bag(20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    found = kinds.logits_after_removal(model, bag, order, [0, 3, 19], torch.device("cpu"))
    for row, count in zip(found, (0, 3, 19), strict=True):
        smaller = infer(model, bag.subset(order[count:])).logits.double()
        torch.testing.assert_close(row, smaller, rtol=1e-4, atol=1e-5)


def test_chunks_change_nothing(monkeypatch):
    model, bag = make("asmil"), make_bag(50)
    whole = {kind: explain_bag(model, TASK, bag, kind, "b").values for kind in KINDS}
    monkeypatch.setattr(pooled_tiles, "GRADIENT_CHUNK", 7)
    monkeypatch.setattr(pooled_tiles, "CHUNK_VALUES", 100)
    for kind, values in whole.items():
        torch.testing.assert_close(explain_bag(model, TASK, bag, kind, "b").values, values, rtol=1e-4, atol=1e-6)


def test_integrated_gradients_add_up_to_what_the_slide_differs_from_its_mean_tile():
    model, bag = make("abmil"), make_bag()
    found = explain_bag(model, TASK, bag, "integrated_gradients", "a")
    mean = replace(bag, features=bag.features.mean(dim=0, keepdim=True).expand(len(bag), -1).clone())
    baseline = float(TASK.evidence(infer(model, model.prepare(mean)).logits[None], 0))
    assert float(found.values.sum()) == pytest.approx(found.evidence - baseline, abs=1e-3)


def test_attention_times_logit_adds_up_to_the_evidence_of_a_linear_head():
    torch.manual_seed(0)
    model, bag = build("abmil", in_features=WIDTH, n_outputs=2).eval(), make_bag()
    found = explain_bag(model, Classification(("x", "y")), bag, "attention_logit", "y")
    assert float(found.values.sum()) == pytest.approx(found.evidence, abs=1e-5)


def test_a_class_row_is_that_of_the_class_asked_for():
    model, bag = make("clam_mb"), make_bag()
    by_class = [explain_bag(model, TASK, bag, "attention", name).values for name in TASK.classes]
    scores = infer(model, bag).scores
    for row, values in zip(torch.softmax(scores, dim=-1), by_class, strict=True):
        torch.testing.assert_close(values.float(), row)


def test_large_bags_leave_out_neighbors_together():
    model, bag = make("dsmil"), make_bag(60)
    lost, together = whole_bags.evidence_lost(
        model, bag, lambda logits: TASK.evidence(logits, 0), torch.device("cpu"), passes=10
    )
    assert together == 6
    assert len(lost.unique()) <= 10


def test_other_tasks_and_mistakes():
    torch.manual_seed(0)
    model, bag = build("abmil", in_features=WIDTH, n_outputs=1).eval(), make_bag()
    found = explain_bag(model, Regression(10.0, 2.0), bag, "leave_one_out")
    assert found.name == "value"
    assert found.shown == pytest.approx(found.evidence, rel=1e-5)
    with pytest.raises(AsmilError, match="nonsense"):
        explain_bag(model, Regression(), bag, "nonsense")
    with pytest.raises(AsmilError, match="nobody"):
        explain_bag(make("abmil"), TASK, bag, "attention", "nobody")
    with pytest.raises(AsmilError, match="slide-1"):
        explain_bag(make("abmil"), TASK, make_bag(1), "leave_one_out")
