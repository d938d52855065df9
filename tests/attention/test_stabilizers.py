"""Terms of the loss that steady attention, besides the anchor."""

import math

import pytest
import torch
from torch import nn

from asmil import Anchor, AsmilError, Bag
from asmil.attention import (
    NSF,
    AttentionStep,
    Entmax,
    EntropyFloor,
    EntropyReward,
    FeatureMatching,
    Mixture,
    ScorePenalty,
    Softmax,
    TemporalEnsemble,
    kl,
    softmax,
)
from asmil.models.base import Output


class Model(nn.Module):
    """Two rows of scores and a bag feature of four channels."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value = nn.Linear(5, 2), nn.Linear(5, 4)

    def forward(self, bag: Bag) -> Output:
        scores = self.score(bag.features).t()
        embedding = (softmax(scores) @ self.value(bag.features)).sum(dim=0)
        return Output(embedding[:2], scores, embedding)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def attended(model: Model, bag: Bag, normalizer=None, rows=None) -> AttentionStep:
    output = model(bag)
    return AttentionStep(bag, output.scores, output.embedding, normalizer or Softmax(), rows)


def bag(n=9, seed=0, name="slide") -> Bag:
    return Bag(torch.randn(n, 5, generator=torch.Generator().manual_seed(seed)), id=name)


def scored(scores, name="slide", normalizer=None) -> AttentionStep:
    return AttentionStep(Bag(torch.zeros(scores.shape[1], 1), id=name), scores, torch.zeros(3), normalizer or Softmax())


def test_temporal_ensemble_is_the_average_of_a_slides_past():
    draw = torch.Generator().manual_seed(1)
    visits = [torch.randn(2, 6, generator=draw, dtype=torch.float64) for _ in range(4)]
    ensemble = TemporalEnsemble(Softmax(), weight=2.0, rate=0.7)
    average = None
    for scores in visits:
        found = ensemble.penalty(scored(scores))
        now = softmax(scores)
        if average is None:
            assert found == 0
            average = now
        else:
            expected = (now * (now.log() - average.log())).sum(-1).mean()
            torch.testing.assert_close(found, 2.0 * expected)
            average = 0.7 * average + 0.3 * now
    other = ensemble.penalty(scored(visits[0], name="another slide"))
    assert other == 0
    torch.testing.assert_close(ensemble.log_averages["slide"].exp(), average)


def test_temporal_ensemble_pulls_attention_to_its_past_and_not_the_past_to_it():
    ensemble = TemporalEnsemble(Softmax())
    ensemble.penalty(scored(torch.tensor([[2.0, 0.0, 0.0]])))
    scores = torch.zeros(1, 3, requires_grad=True)
    loss = ensemble.penalty(scored(scores))
    loss.backward()
    assert scores.grad[0, 0] < 0 < scores.grad[0, 1]
    assert not any(value.requires_grad for value in ensemble.log_averages.values())


def test_temporal_ensemble_is_restored_and_survives_underflow_and_masks():
    first = TemporalEnsemble(Softmax(), rate=0.5)
    scores = torch.tensor([[0.0, -300.0, -math.inf]])
    first.penalty(scored(scores))
    second = TemporalEnsemble(Softmax(), rate=0.5)
    second.load_state_dict(first.state_dict())
    moved = torch.tensor([[-300.0, 0.0, -math.inf]], requires_grad=True)
    loss = second.penalty(scored(moved))
    loss.backward()
    assert loss.item() == pytest.approx(300, rel=1e-3)
    assert torch.isfinite(moved.grad).all()


def test_temporal_ensemble_needs_the_same_tiles_and_weights_above_zero():
    ensemble = TemporalEnsemble(Softmax())
    ensemble.penalty(scored(torch.zeros(1, 5), name="s1"))
    with pytest.raises(AsmilError, match=r"s1: .*\(1, 5\).*\(1, 4\)"):
        ensemble.penalty(scored(torch.zeros(1, 4), name="s1"))
    with pytest.raises(AsmilError, match="weight 0"):
        TemporalEnsemble(Entmax())
    with pytest.raises(AsmilError, match="temporal rate = 1"):
        TemporalEnsemble(Softmax(), rate=1.0)


def test_feature_matching_holds_the_bag_feature_of_a_moving_copy(model):
    matching = FeatureMatching(model, weight=3.0, momentum=0.5, teacher_temperature=0.5, student_temperature=2.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    seen = attended(model, bag())
    loss = matching.penalty(seen)
    teacher = torch.log_softmax(matching.copy(bag()).embedding / 0.5, -1)
    student = torch.log_softmax(seen.embedding / 2.0, -1)
    torch.testing.assert_close(loss, 3.0 * kl(teacher, student))
    loss.backward()
    assert model.value.weight.grad.abs().max() > 0
    before = matching.copy.value.weight.clone()
    matching.update(model)
    torch.testing.assert_close(matching.copy.value.weight, (before + model.value.weight) / 2)
    equal = FeatureMatching(model, teacher_temperature=1.0, student_temperature=1.0)
    assert equal.penalty(attended(model, bag())).item() == pytest.approx(0, abs=1e-6)


def test_feature_matching_cannot_see_attention_that_moves_along_dependent_tiles():
    """Two attentions with one bag feature: the term is 0 for both, while an anchor tells them apart."""
    features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 0.0]], dtype=torch.float64)  # the third is the mean of two
    even, middle = torch.tensor([[0.4, 0.4, 0.2]]).double(), torch.tensor([[0.2, 0.2, 0.6]]).double()
    torch.testing.assert_close(even @ features, middle @ features)
    assert kl(even.log(), middle.log()) > 0.2


def test_a_look_ahead_is_of_one_bag_and_changes_nothing(model):
    anchor = Anchor(model, scores=lambda module, given: module(given).scores)
    first, second = bag(), bag(seed=1)
    scores = model(first).scores
    plain = anchor.loss(first, scores)
    anchor.prefetch(first)
    with torch.no_grad():
        anchor.copy.score.weight.add_(1.0)  # what was seen already stays as it was
    assert torch.equal(anchor.loss(first, scores), plain)
    assert not torch.equal(anchor.loss(first, scores), plain)
    anchor.prefetch(first)
    assert torch.equal(anchor.attend(second), anchor.copy(second).scores)


def test_entropy_and_size_of_scores(model):
    seen = attended(model, bag())
    a = softmax(seen.scores)
    torch.testing.assert_close(EntropyReward(0.2).penalty(seen), 0.2 * (a * a.log()).sum(-1).mean())
    torch.testing.assert_close(ScorePenalty(0.2).penalty(seen), 0.2 * seen.scores.square().mean())
    masked = scored(torch.tensor([[3.0, -math.inf, 1.0]], requires_grad=True))
    assert ScorePenalty(1.0).penalty(masked).item() == pytest.approx(5.0)
    (ScorePenalty(1.0).penalty(masked) + EntropyReward(1.0).penalty(masked)).backward()
    assert torch.isfinite(masked.scores.grad).all()
    rows = torch.tensor([True, False])
    only = attended(model, bag(), rows=rows)
    torch.testing.assert_close(ScorePenalty(1.0).penalty(only), only.scores[0].square().mean())


def test_the_anchor_refuses_what_makes_no_sense(model):
    def read(module, given):
        return module(given).scores

    with pytest.raises(AsmilError, match="trained"):
        Anchor(model, scores=read, normalizer=Mixture())
    model.normalizer = Entmax()
    with pytest.raises(AsmilError, match="Entmax"):
        Anchor(model, scores=read)


@pytest.mark.parametrize("online", [Softmax, NSF, Mixture])
@pytest.mark.parametrize("name", ["softmax", "nsf", "standardized_nsf", "sparsemax", "entmax"])
def test_an_anchor_of_any_rule_pulls_the_online_attention_to_it(model, online, name):
    model.normalizer = online()
    anchor = Anchor(model, scores=lambda module, given: module(given).scores, normalizer=name, update="never")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = anchor.loss(bag(), model(bag()).scores)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(math.isfinite(value) for value in losses)
    assert losses[-1] < 0.5 * losses[0] + 1e-3


def test_the_entropy_floor_pushes_only_attention_below_it():
    flat, sharp = torch.zeros(1, 50), torch.zeros(1, 50)
    sharp[0, 0] = 30.0
    floor = EntropyFloor(weight=2.0, floor=0.4)
    assert floor.penalty(scored(flat)) == 0
    assert floor.penalty(scored(sharp)) == pytest.approx(0.8, abs=1e-4)
    single = torch.zeros(1, 1)
    assert torch.isfinite(floor.penalty(scored(single)))
