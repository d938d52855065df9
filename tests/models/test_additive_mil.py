import pytest
import torch

from asmil import Anchor, AsmilError, Bag, build, infer
from asmil.explain.kinds import explain_bag
from asmil.models.batch import run_batch
from asmil.tasks.classification import Classification


def make(outputs=3, **options):
    torch.manual_seed(0)
    model = build("additive_mil", 12, outputs, hidden=9, **options)
    for _ in range(3):  # running statistics that are not those of the start
        model.train()(Bag(torch.randn(20, 12)))
    return model.eval()


@pytest.mark.parametrize("training", [False, True])
def test_classifies_every_attended_tile(training):
    model, x = make().train(training), torch.randn(7, 12)
    attention = torch.softmax(model.scorer(x), dim=0)
    output = model(Bag(x))
    torch.testing.assert_close(output.instance_logits, model.classifier(attention * x))
    torch.testing.assert_close(output.logits, output.instance_logits.sum(dim=0))
    torch.testing.assert_close(model.tile_map(output), attention[:, 0].detach())


@pytest.mark.parametrize("tiles", [1, 2, 7])
def test_padding_enters_no_statistics(tiles):
    x = torch.randn(tiles + 4, 12)
    padded, alone = make().train(), make().train()
    mask = torch.arange(len(x)) < tiles
    outputs = padded(Bag(x, mask=mask)), alone(Bag(x[:tiles]))
    for output in outputs:
        output.logits.square().sum().backward()
    for name in ("logits", "embedding"):
        torch.testing.assert_close(*(getattr(output, name) for output in outputs))
    for found, expected in zip(padded.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(padded.named_buffers()), dict(alone.named_buffers()))
    with pytest.raises(AsmilError, match="one by one"):
        run_batch(padded, Bag.collate([Bag(x), Bag(x)]))


def test_maps_add_up():
    model, bag = make(), Bag(torch.randn(7, 12))
    output = model(bag)
    top = output.logits.max()
    empty = model.classifier(torch.zeros(12))
    torch.testing.assert_close(model.empty_tile(), empty)
    torch.testing.assert_close(model.tile_map(output, "contribution").sum(), top.detach())
    net = model.tile_map(output, "net_contribution").sum()
    torch.testing.assert_close(net, (top - 7 * empty[output.logits.argmax()]).detach())


def test_the_margin_of_two_classes_is_a_sum_over_tiles():
    model, bag = make(2), Bag(torch.randn(7, 12))
    shown = explain_bag(model, Classification(["x", "y"]), bag, "attention_logit", "y")
    assert float(shown.values.sum()) == pytest.approx(shown.evidence, abs=1e-5)


def test_chunks_have_the_contributions_of_the_whole():
    model, bag = make(), Bag(torch.randn(50, 12))
    whole, parts = infer(model, bag), infer(model, bag, chunk_tiles=7)
    torch.testing.assert_close(parts.instance_logits, whole.instance_logits)


def test_one_tile_leaves_the_statistics_alone():
    model = make().train()
    before = [buffer.clone() for buffer in model.buffers()]
    model(Bag(torch.randn(1, 12)))
    assert all(torch.equal(old, new) for old, new in zip(before, model.buffers(), strict=True))


def test_an_anchor_takes_over_the_statistics():
    model, bag = make().train(), Bag(torch.randn(7, 12))
    anchor = Anchor(model)
    anchor.loss(bag, model(bag).scores)
    anchor.update(model)
    torch.testing.assert_close(anchor.copy.scorer[1].running_mean, model.scorer[1].running_mean)


def test_the_state_of_its_anchor_can_be_loaded():
    model, bag = make().train(), Bag(torch.randn(7, 12))
    anchor = Anchor(model)
    anchor.loss(bag, model(bag).scores)
    state = {name: value.clone() for name, value in anchor.state_dict().items()}
    Anchor(make()).load_state_dict(state)


def test_shares_of_three_classes_have_no_margin():
    with pytest.raises(AsmilError, match="two classes"):
        explain_bag(make(3), Classification(["x", "y", "z"]), Bag(torch.randn(7, 12)), "attention_logit", "y")
