import copy
import math
import warnings

import pytest
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from asmil import Anchor, Bag, build
from asmil.attention import NSF, kl, log_nsf, log_softmax
from asmil.errors import AsmilError, AsmilWarning


def bag(tiles: int = 12, width: int = 32, seed: int = 0) -> Bag:
    return Bag(torch.randn(tiles, width, generator=torch.Generator().manual_seed(seed)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build("asmil", in_features=32, n_outputs=2)


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


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["anchor", "online"])
@pytest.mark.parametrize("divergence", ["kl", "cross_entropy"])
def test_broken_scores_of_either_side_make_the_loss_nan(broken, side, divergence):
    scores = {"anchor": torch.randn(2, 6), "online": torch.randn(2, 6)}
    scores[side][0, 2] = broken
    anchor = Anchor(nn.Linear(2, 2), scores=lambda _, bag: scores["anchor"], divergence=divergence)
    assert torch.isnan(anchor.loss(None, scores["online"]))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("normalizer", ["nsf", "softmax", "standardized_nsf", "entmax"])
def test_padding_does_not_enter_the_loss(reduction, normalizer):
    """A padded batch of bags costs what its bags cost one by one; the padding may hold anything."""
    lengths = torch.tensor([6, 3, 4])
    real = torch.arange(6) < lengths.unsqueeze(1)
    theirs, ours = torch.randn(2, 3, 6)
    theirs[~real], ours[~real] = math.nan, 1e4
    ours.requires_grad_()

    def anchor(found):
        return Anchor(nn.Linear(2, 2), normalizer=normalizer, reduction=reduction, scores=lambda _, bag: found)

    together = anchor(theirs).loss(None, ours, mask=real)
    alone = [anchor(theirs[[i], :n]).loss(None, ours[[i], :n]) for i, n in enumerate(lengths)]
    torch.testing.assert_close(together, torch.stack(alone).mean())
    torch.testing.assert_close(anchor(theirs).loss(None, ours, mask=real.float()), together)
    together.backward()
    assert torch.isfinite(ours.grad).all()
    assert ours.grad[~real].abs().max() == 0


def test_one_mask_for_all_rows_and_a_mask_that_does_not_fit(model):
    scores = model.attend(bag())
    anchor = Anchor(model)
    mask = torch.arange(12) < 9
    torch.testing.assert_close(
        anchor.loss(bag(), scores, mask=mask), anchor.loss(bag(), scores, mask=mask.expand(64, -1))
    )
    with pytest.raises(AsmilError, match=r"\(5,\)"):
        anchor.loss(bag(), scores, mask=mask[:5])


@pytest.mark.parametrize("share", [1.0, 0.8])
def test_scores_that_are_already_weights_are_warned_about_once(model, share):
    scores = model.attend(bag())
    anchor = Anchor(model)
    with pytest.warns(AsmilWarning):
        anchor.loss(bag(), share * torch.softmax(scores, dim=-1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        anchor.loss(bag(), share * torch.softmax(scores, dim=-1))
        Anchor(model).loss(bag(), scores)
        Anchor(model).loss(bag(), torch.zeros_like(scores))


HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("converted", ["model", "anchor"])
def test_the_average_moves_in_half_precision_as_in_float32(dtype, converted):
    def built(dtype):
        torch.manual_seed(0)
        layer = nn.Linear(8, 1).to(dtype)
        anchor = Anchor(layer, scores=lambda module, x: module(x.to(module.weight.dtype)).t())
        return layer, anchor

    full, expected = built(torch.float32)
    half, anchor = built(dtype if converted == "model" else torch.float32)
    half, anchor = half.to(dtype), anchor.to(dtype)
    expected.copy.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    if converted == "anchor":  # it knew the exact weights
        expected.copy.load_state_dict(full.state_dict())
    with torch.no_grad():
        for one in (full, half):
            one.weight.fill_(1.0)
            one.bias.fill_(-1.0)
    for _ in range(50):
        anchor.update(half)
        expected.update(full)
    state = anchor.state_dict()
    assert {value.dtype for value in state.values()} == {torch.float32}
    torch.testing.assert_close(state, expected.state_dict())
    assert anchor.attend(torch.randn(5, 8)).dtype == dtype
    assert torch.equal(anchor.copy.weight, state["copy.weight"].to(dtype))
    _, fresh = built(dtype)
    fresh.load_state_dict(state)
    fresh.update(half)
    anchor.update(half)
    torch.testing.assert_close(fresh.state_dict(), anchor.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(anchor.float().copy.weight, anchor.state_dict()["copy.weight"], rtol=0, atol=0)


class Training(nn.Module):
    """As in Lightning: the model and its anchor are parts of one module, whose state dict holds both."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.net = build("asmil", in_features=32, n_outputs=2).to(dtype)
        self.anchor = Anchor(self.net)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 multiplies in another way
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seen", [False, True])
def test_state_restores_as_a_part_of_another_module(dtype, seen):
    whole = Training(dtype)
    whole.anchor.attend(bag())
    with torch.no_grad():
        whole.net.tokens.add_(1)
    whole.anchor.update(whole.net)
    fresh = Training(dtype)
    if seen:
        fresh.anchor.attend(bag())
    fresh.load_state_dict(whole.state_dict())
    torch.testing.assert_close(fresh.state_dict(), whole.state_dict(), rtol=0, atol=0)
    assert torch.equal(fresh.anchor.attend(bag()), whole.anchor.attend(bag()))
    copied = copy.deepcopy(whole)
    copied.load_state_dict(whole.state_dict())


def test_a_state_without_an_anchor_leaves_the_anchor_as_it_was():
    whole = Training()
    state = {name: value for name, value in whole.state_dict().items() if name.startswith("net.")}
    with pytest.raises(RuntimeError, match=r"anchor\.copy\.tokens"):
        whole.load_state_dict(state)
    whole.load_state_dict(state, strict=False)
    whole.anchor.loss(bag(), whole.net.attend(bag()))


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def wrappings():
    yield "data parallel", DataParallel
    yield "distributed", DistributedDataParallel
    yield "compiled", lambda module: torch.compile(module, backend="eager")
    yield "compiled and distributed", lambda module: torch.compile(DistributedDataParallel(module), backend="eager")


@pytest.mark.parametrize(("name", "wrap"), [pytest.param(*one, id=one[0]) for one in wrappings()])
@pytest.mark.usefixtures("one_process")
def test_follows_a_wrapped_model(name, wrap):
    torch.manual_seed(0)
    plain = nn.Linear(8, 1)
    wrapped = wrap(plain)
    expected, *anchors = (
        Anchor(model, momentum=0.9, scores=lambda module, x: module(x).t()) for model in (plain, wrapped, plain)
    )
    with torch.no_grad():
        plain.weight.add_(1)
    expected.update(plain)
    for anchor in anchors:
        anchor.update(wrapped)
        torch.testing.assert_close(anchor.state_dict(), expected.state_dict())


def test_a_model_that_it_was_not_built_for_is_refused(model):
    anchor = Anchor(model)
    with pytest.raises(AsmilError, match="tokens"):
        anchor.update(nn.Sequential(model))


def test_both_sides_compares_under_one_rule_and_sees_no_scale(model):
    anchor = Anchor(model, normalizer="standardized_softmax", both_sides=True)
    scores = model.attend(bag())
    assert anchor.loss(bag(), 3.0 * scores + 1.0).abs() < 1e-5
    assert anchor.loss(bag(), -scores) > 0.01


def test_a_ramp_raises_the_weight_and_is_saved(model):
    anchor = Anchor(model, ramp_epochs=4, ramp_momentum=0.5, momentum=0.9)
    factors = []
    for _ in range(5):
        factors.append(anchor.ramp)
        anchor.update(model)
        assert anchor.momentum == (0.5 if len(factors) <= 4 else 0.9)
        anchor.end_epoch(model)
    assert factors == sorted(factors)
    assert factors[0] == pytest.approx(math.exp(-5 * 0.75**2))
    assert factors[-2:] == [1.0, 1.0]
    restored = Anchor(model, ramp_epochs=9)
    restored.load_state_dict(Anchor(model, ramp_epochs=9).state_dict() | {"epochs_done": torch.tensor(3)})
    assert restored.ramp == pytest.approx(math.exp(-5 * (1 - 4 / 9) ** 2))
