import pytest
import torch

from asmil import Anchor, Bag, build, infer
from asmil.models.simple_mil import fixed_order
from asmil.tasks.classification import Classification
from asmil.tasks.survival import Survival
from asmil.tasks.uncertainty import disagreement

WIDTH = 42


def make(outputs=3, attention=16, **options):
    torch.manual_seed(0)
    return build("simple_mil", WIDTH, outputs, attention=attention, **options).eval()


def scores_of(model, x, channels):
    """The scores of one subset, as the paper writes them."""
    net = model.attention
    value = torch.tanh(x[:, channels] @ net.value.weight[:, channels].T + net.value.bias)
    gate = torch.sigmoid(x[:, channels] @ net.gate.weight[:, channels].T + net.gate.bias)
    return ((value * gate) @ net.weight.weight.T + net.weight.bias)[:, 0]


@pytest.mark.parametrize("attention", [16, 41, 5])
def test_windows_are_those_of_the_formula(attention):
    model, x = make(attention=attention), torch.randn(9, WIDTH)
    output = model(Bag(x))
    order, starts = model.channel_order, model.window_starts
    assert starts[0] == 0
    assert starts[-1] == WIDTH - attention
    rows = torch.stack([scores_of(model, x, order[start : start + attention]) for start in starts])
    torch.testing.assert_close(output.scores, rows)
    windows = model.head(torch.softmax(rows, dim=1) @ x)
    torch.testing.assert_close(output.extras["window_logits"], windows)
    torch.testing.assert_close(output.logits, windows.mean(dim=0))
    risk = make(attention=attention, combine="logmeanexp")(Bag(x)).logits
    torch.testing.assert_close(risk, windows.exp().mean(dim=0).log())


def test_the_order_of_the_channels_is_part_of_the_weights():
    state = make().state_dict()
    assert torch.equal(state["channel_order"], fixed_order(WIDTH))
    other = make()
    with torch.no_grad():
        other.channel_order.copy_(torch.arange(WIDTH))
    bag = Bag(torch.randn(9, WIDTH))
    assert not torch.allclose(other(bag).logits, make()(bag).logits)
    other.load_state_dict(state)
    assert torch.equal(other(bag).logits, make()(bag).logits)


def test_all_channels_are_one_window():
    model, x = make(attention=64), torch.randn(9, WIDTH)
    assert model.window_starts == [0]
    output = model(Bag(x))
    torch.testing.assert_close(output.scores[0], scores_of(model, x, torch.arange(WIDTH)))
    assert not model.tile_map(output, "attention_std").any()
    numbers = model.uncertainty(output, Classification(["a", "b", "c"]))
    assert numbers["variance_a"] == 0
    assert numbers["mutual_information"] == pytest.approx(0, abs=1e-7)


def test_a_step_scores_one_subset_for_all_its_bags_and_its_anchor():
    model = make(dropout=0.0).train()
    anchor = Anchor(model, normalizer="softmax")
    bags = [Bag(torch.randn(tiles, WIDTH)) for tiles in (9, 6)]
    seen = []
    for step in range(2):
        model.before_step(step, 2)
        for bag in bags:
            anchor.prefetch(bag)
            scores = model(bag).scores
            assert scores.shape == (1, len(bag))
            torch.testing.assert_close(anchor.loss(bag, scores), torch.tensor(0.0), rtol=0, atol=1e-6)
        seen.append(model(bags[0]).scores)
    assert not torch.equal(*seen), "every step has its own subset"
    model.eval()
    assert len(model(bags[0]).scores) == len(anchor.attend(bags[0])) == len(model.window_starts)


def test_channels_outside_the_subset_get_no_gradient():
    model = make().train()
    model.hold(torch.arange(WIDTH))
    model(Bag(torch.randn(9, WIDTH))).logits.square().sum().backward()
    gradient = model.attention.value.weight.grad
    assert gradient[:, model.channel_order[:16]].any()
    assert not gradient[:, model.channel_order[16:]].any()


def test_without_subsets_there_is_no_gate():
    model, x = make(channel_subsets=False), torch.randn(9, WIDTH)
    net = model.attention
    assert net.gate is None
    expected = torch.tanh(x @ net.value.weight.T + net.value.bias) @ net.weight.weight.T + net.weight.bias
    torch.testing.assert_close(model(Bag(x)).scores, expected.T)


def test_chunks_disagree_as_the_whole():
    model, bag = make(), Bag(torch.randn(50, WIDTH))
    task = Classification(["a", "b", "c"])
    whole, parts = (model.uncertainty(infer(model, bag, chunk_tiles=tiles), task) for tiles in (50, 7))
    assert whole == pytest.approx(parts, abs=1e-6)
    assert whole["mutual_information"] > 0


def test_uncertainty_is_that_of_the_task():
    output = make(1)(Bag(torch.randn(9, WIDTH)))
    model, windows = make(1), output.extras["window_logits"][:, 0].detach()
    cox = model.uncertainty(output, Survival(None, "cox"))
    assert cox == {"variance_risk": pytest.approx(float(windows.double().var()))}
    two = model.uncertainty(output, Classification(["a", "b"], single_output=True))
    assert two["variance_a"] == pytest.approx(float(torch.sigmoid(windows.double()).var()))
    assert model.uncertainty(output, Survival([0.0, 1.0, 2.0])) == {}


def test_one_tile_has_no_disagreement():
    model = make()
    numbers = model.uncertainty(model(Bag(torch.randn(1, WIDTH))), Classification(["a", "b", "c"]))
    assert numbers["mutual_information"] == pytest.approx(0, abs=1e-6)


def test_disagreement_of_members_that_contradict_each_other():
    spread = disagreement(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert float(spread.mutual_information) == pytest.approx(float(torch.tensor(2.0).log()), abs=1e-6)
    assert spread.variance.tolist() == [0.5, 0.5]
