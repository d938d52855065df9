"""Smoothing as an option of methods: early and late, with an anchor, and refused where it is not possible."""

import re

import pytest
import torch

from asmil import Anchor, AsmilError, Bag, methods
from asmil.models.blocks.smoothing import GRAPH, touching
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification

WIDTH = 24
BOTH = ["abmil", "acmil", "asmil", "clam_mb", "clam_sb", "demil", "psmil", "simple_mil"]
ON_BASE = ["aem", "ibmil"]
OWN_SCORES = [
    "abmilx",
    "additive_mil",
    "camil",
    "dgr_mil",
    "dsmil",
    "dtfd",
    "hdmil",
    "ilra",
    "mamba_mil",
    "patch_gcn",
    "r2t",
    "rgmil",
    "wikg",
]
LATE = [*BOTH, *OWN_SCORES]
OPTIONS = {"caprmil": {"pooling": "attention"}}


def make(name, where, **options):
    smoothing = {"where": where, **options} if where != "none" else {}
    config = resolve(name, changes={"smoothing": smoothing, "model": OPTIONS.get(name, {})})
    return build_model(config, WIDTH, 3, seed=1)


def make_bag(tiles=30, **fields):
    place = torch.arange(tiles)
    coords = 256 * torch.stack([place % 6, place // 6], dim=1)
    features = torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(0))
    return Bag(features, coords, id="slide-5", **fields)


def test_every_method_that_smooths_is_known():
    can = {name: method.model.smooths for name, method in methods().items()}
    assert {name for name, where in can.items() if "late" in where} == set(LATE)
    assert {name for name, where in can.items() if "early" in where} == set(BOTH)


@pytest.mark.parametrize("name", [*LATE, *ON_BASE, "caprmil"])
def test_late_smooths_the_scores_and_trains_alpha(name):
    plain, smoothed = make(name, "none").eval(), make(name, "late", alpha=0.7, exact=True).eval()
    bag = smoothed.prepare(make_bag())
    output = smoothed(bag)
    operator = (smoothed.base if name in ON_BASE else smoothed).tile_smoothing
    expected = operator(plain(plain.prepare(make_bag())).scores.t(), bag.extras[GRAPH]).t()
    torch.testing.assert_close(output.scores, expected)
    torch.testing.assert_close(smoothed.attend(bag), output.scores)
    torch.testing.assert_close(smoothed(make_bag()).logits, output.logits)
    assert smoothed.padding_from is None
    assert not smoothed.can_stream
    smoothed.loss([output], torch.tensor([1]), Classification(["a", "b", "c"])).total.backward()
    assert operator.logit.grad.abs() > 0
    trained = [parameter for group in smoothed.parameter_groups() for parameter in group["params"]]
    assert any(parameter is operator.logit for parameter in trained)


@pytest.mark.parametrize("name", BOTH)
def test_early_is_the_method_on_smoothed_tiles(name):
    model = make(name, "early").eval()
    bag = model.prepare(make_bag())
    tiles = model.tile_smoothing(model.embed(bag.features), bag.extras[GRAPH])
    torch.testing.assert_close(model(bag).scores, model.score(tiles))
    assert model.padding_from is None
    assert not model.can_stream


@pytest.mark.parametrize("where", ["early", "late"])
def test_an_anchor_smooths_its_own_scores(where):
    model = make("abmil", where)
    bag = model.prepare(make_bag())
    anchor = Anchor(model, momentum=0.5)
    torch.testing.assert_close(anchor.attend(bag), model.attend(bag))
    with torch.no_grad():
        model.tile_smoothing.logit.add_(2.0)
    assert not torch.allclose(anchor.attend(bag), model.attend(bag))
    anchor.update(model)
    assert anchor.copy.tile_smoothing.logit.item() == pytest.approx(1.0)


def test_mistakes_are_named():
    model = make("abmil", "late")
    with pytest.raises(AsmilError, match=r"slide-9.*smoothing\.where.*coordinates"):
        model(Bag(torch.randn(4, WIDTH), id="slide-9"))
    reasons = {name: method.model.why_not_smoothed for name, method in methods().items()}
    for name in ("transmil", "mhim", "deepattnmisl", "sm_abmil", "simlp"):
        with pytest.raises(AsmilError, match=re.escape(reasons[name])):
            make(name, "late")
    assert len({reasons[name] for name in ("transmil", "mhim", "deepattnmisl", "sm_abmil", "simlp")}) == 5
    with pytest.raises(AsmilError, match="alpha"):
        resolve("abmil", changes={"smoothing": {"alpha": 0.9}})
    with pytest.raises(AsmilError, match="steps"):
        resolve("abmil", changes={"smoothing": {"where": "late", "exact": True, "steps": 3}})


def test_neighbors_touch_in_every_slide_of_a_patient_and_in_a_part_of_the_tiles():
    place = torch.arange(400)
    coords = torch.stack([place % 20, place // 20], dim=1)
    slides = torch.cat([torch.zeros(400), torch.ones(400)]).long()
    both = Bag(torch.randn(800, 3), torch.cat([256 * coords, 512 * coords]), slide_index=slides)
    degrees = torch.bincount(touching(both, "test")[0], minlength=800)
    assert degrees[:400].tolist() == degrees[400:].tolist()
    part = torch.randperm(400, generator=torch.Generator().manual_seed(0))[:80].sort().values
    some = Bag(torch.randn(80, 3), 256 * coords[part])
    first, second = some.coords[touching(some, "test")].double()
    assert (first - second).norm(dim=1).max() <= 1.5 * 256


def test_a_readout_without_scores_refuses_smoothing():
    with pytest.raises(AsmilError, match="late"):
        build_model(
            resolve("wikg", changes={"smoothing": {"where": "late"}, "model": {"readout": "mean"}}), WIDTH, 3, 1
        )


@pytest.mark.parametrize("name", ["ibmil", "hdmil"])
def test_earlier_stages_smooth_like_the_last(name, monkeypatch):
    monkeypatch.setitem(OPTIONS, "hdmil", {"lipn": True})
    model = make(name, "late", alpha=0.8)
    first = model.stages()[0].model
    owner = first.base if name == "ibmil" else first
    assert owner.smoothed == "late"
    assert owner.tile_smoothing.alpha.item() == pytest.approx(0.8)
    assert owner.tile_smoothing is not (model.base if name == "ibmil" else model).tile_smoothing
