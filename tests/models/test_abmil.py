import pytest
import torch

from asmil import Bag, build


def test_gated_and_plain_equal_their_formulas():
    torch.manual_seed(0)
    x = torch.randn(9, 16)
    for gated in (True, False):
        model = build("abmil", 16, 2, gated=gated, attention=5, bias=True).eval()
        h = torch.relu(x @ model.embedding.layers[0].weight.T + model.embedding.layers[0].bias)
        a = model.attention
        hidden = torch.tanh(h @ a.value.weight.T + a.value.bias)
        if gated:
            hidden = hidden * torch.sigmoid(h @ a.gate.weight.T + a.gate.bias)
        z = hidden @ a.weight.weight.T + a.weight.bias
        pooled = (torch.softmax(z, dim=0) * h).sum(dim=0)
        torch.testing.assert_close(model(Bag(x)).logits, model.head(pooled))


def test_several_branches_are_joined():
    model = build("abmil", 16, 3, branches=4)
    output = model(Bag(torch.randn(6, 16)))
    assert output.scores.shape == (4, 6)
    assert output.embedding.shape == (4 * 8,)
    assert output.logits.shape == (3,)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_activations(activation):
    model = build("abmil", 16, 2, activation=activation, dropout=0.5).eval()
    expected = getattr(torch.nn.functional, activation)(model.embedding(torch.ones(1, 16)))
    torch.testing.assert_close(model.embed(torch.ones(1, 16)), expected)
