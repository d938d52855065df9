import copy

import pytest
import torch
from torch import nn

from asmil import Anchor, Bag, build
from asmil.attention import NSF, kl, log_nsf, log_softmax
from asmil.errors import AsmilError


def bag(tiles: int = 12, width: int = 32, seed: int = 0) -> Bag:
    return Bag(torch.randn(tiles, width, generator=torch.Generator().manual_seed(seed)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build("asmil", in_features=32, n_classes=2)


class Foreign(nn.Module):
    """A model of somebody else: no Bag, no attend, a buffer that the scores read."""

    def __init__(self):
        super().__init__()
        self.score_layer = nn.Linear(8, 1)
        self.head = nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8)

    def weigh(self, x):
        return self.score_layer(self.norm(x)).t()


def test_loss_is_the_kl_of_the_definition(model):
    anchor = Anchor(model, weight=0.7)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    scores = other.attend(bag())
    expected = 0.7 * kl(log_nsf(model.attend(bag())), log_softmax(scores)).mean()
    torch.testing.assert_close(anchor.loss(bag(), scores), expected)


def test_rows_restrict_the_average_and_mean_divides_by_tiles(model):
    scores = model.attend(bag())
    rows = torch.arange(len(scores)) % 3 == 0
    per_row = kl(log_nsf(scores), log_softmax(scores))
    torch.testing.assert_close(Anchor(model).loss(bag(), scores, rows), per_row[rows].mean())
    torch.testing.assert_close(Anchor(model, reduction="mean").loss(bag(), scores), per_row.mean() / 12)


def test_keeps_only_what_attend_reads(model):
    anchor = Anchor(model)
    anchor.loss(bag(), model.attend(bag()))
    kept = {name.removeprefix("copy.") for name in anchor.state_dict()}
    blocks = {f"token_block.{part}" for part in ("q_weight", "q_bias", "k_weight", "k_bias")}
    assert kept == {"embedding.layers.0.weight", "tokens", *blocks}


def test_moves_after_each_step_by_the_moving_average(model):
    anchor = Anchor(model, momentum=0.9)
    anchor.attend(bag())
    before = {name: value.clone() for name, value in anchor.copy.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    anchor.update(model)
    online = dict(model.named_parameters())
    for name, value in anchor.copy.named_parameters():
        torch.testing.assert_close(value, 0.9 * before[name] + 0.1 * online[name])
        assert not value.requires_grad


@pytest.mark.parametrize(("update", "steps", "epochs"), [("step", 1, 0), ("epoch", 0, 1), ("never", 0, 0)])
def test_update_rule_decides_when_it_moves(model, update, steps, epochs):
    anchor = Anchor(model, momentum=0.0, update=update)
    anchor.attend(bag())
    moved = []
    for move in (anchor.update, anchor.end_epoch):
        with torch.no_grad():
            model.tokens.add_(1)
        move(model)
        moved.append(int(torch.equal(anchor.copy.tokens, model.tokens)))
    assert moved == [steps, epochs]


def test_three_lines_in_a_training_loop_change_the_attention_only_through_the_loss(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    anchor = Anchor(model, momentum=0.99)
    for step in range(3):
        one = bag(seed=step)
        output = model(one)
        total = nn.functional.cross_entropy(output.logits, torch.tensor(1)) + anchor.loss(one, output.scores)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        anchor.update(model)
    assert all(parameter.grad is None for parameter in anchor.parameters())
    assert not torch.equal(anchor.copy.tokens, model.tokens)


def test_state_restores_into_a_fresh_anchor_before_and_after_its_first_bag(model):
    anchor = Anchor(model)
    anchor.attend(bag())
    with torch.no_grad():
        anchor.copy.tokens.add_(1)
    for seen in (False, True):
        fresh = Anchor(model)
        if seen:
            fresh.attend(bag())
        fresh.load_state_dict(anchor.state_dict())
        torch.testing.assert_close(fresh.attend(bag()), anchor.attend(bag()))


def test_wraps_a_foreign_module_through_a_callable():
    model = Foreign()
    anchor = Anchor(model, scores=lambda m, x: m.weigh(x), normalizer=NSF(temperature=2.0))
    x = torch.randn(5, 8)
    model.eval()
    anchor.loss(x, model.weigh(x)).backward()
    names = set(dict(anchor.copy.named_parameters())) | {n for n, _ in anchor.copy.named_buffers()}
    assert "head.weight" not in names
    assert "norm.running_mean" in names
    model.norm.running_mean.add_(1)
    anchor.update(model)
    torch.testing.assert_close(anchor.copy.norm.running_mean, model.norm.running_mean)


def test_moves_between_types_and_stays_in_eval_mode(model):
    anchor = Anchor(model).double().train()
    assert not anchor.training
    assert not anchor.copy.training
    assert anchor.attend(bag()).dtype == torch.float64


def test_refusals(model):
    with pytest.raises(AsmilError, match="momentum = 2"):
        Anchor(model, momentum=2)
    with pytest.raises(AsmilError, match="scores=callable"):
        Anchor(nn.Linear(2, 2))
    with pytest.raises(AsmilError, match="choose 'step'"):
        Anchor(model, update="batch")
    with pytest.raises(AsmilError, match="unmasked bag"):
        Anchor(model).loss(bag(), model.attend(bag(5)))
