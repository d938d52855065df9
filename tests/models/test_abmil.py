import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.runs.config import resolve


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
    expected = getattr(torch.nn.functional, activation)(model.embedding.layers[0](torch.ones(1, 16)))
    torch.testing.assert_close(model.embed(torch.ones(1, 16)), expected)


@pytest.mark.parametrize("gated", [True, False])
def test_survival_form_pools_the_features_themselves(gated):
    torch.manual_seed(0)
    model, x = build("abmil", 16, 4, embedding_layers=0, attention=5, gated=gated).eval(), torch.randn(9, 16)
    attention = torch.softmax(model.attention(x), dim=1)
    output = model(Bag(x))
    torch.testing.assert_close(output.embedding, (attention @ x)[0])
    torch.testing.assert_close(output.logits, model.head(attention @ x)[0])
    assert not any(name.startswith("embedding") for name in model.state_dict())
    for dtype in (torch.float16, torch.float64):
        torch.testing.assert_close(model(Bag(x.to(dtype))).logits, output.logits, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("gated", [True, False])
def test_loads_the_survival_form(gated):
    torch.manual_seed(0)
    model = build("abmil", 16, 4, embedding_layers=0, attention=5, gated=gated).eval()
    names = {"attention.value": "sigma.attention.0", "attention.weight": "sigma.attention.2", "head": "g"}
    if gated:
        names |= {"attention.value": "sigma.fc1.0", "attention.gate": "sigma.score.0", "attention.weight": "sigma.fc2"}
    state = model.state_dict()
    tensors = {f"{new}.{leaf}": state[f"{old}.{leaf}"] for old, new in names.items() for leaf in ("weight", "bias")}
    bag = Bag(torch.randn(9, 16))
    assert torch.equal(official.load(tensors)(bag).logits, model(bag).logits)


def test_two_embedding_layers_have_one_width():
    model = build("abmil", 16, 2, embedding_layers=2, inner=6).eval()
    x = torch.randn(3, 16)
    first, second = model.embedding.layers
    hidden = torch.relu(x @ first.weight.T + first.bias)
    torch.testing.assert_close(model.embed(x), torch.relu(hidden @ second.weight.T + second.bias))


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_loads_any_number_of_layers_of_mil_lab(layers):
    torch.manual_seed(0)
    basic = min(layers, 2)
    shape = {"embedding_layers": basic, "further_layers": layers - basic, "inner": 6, "bias": True}
    model = build("abmil", 16, 4, attention=5, **shape).eval()
    names = {f"embedding.layers.{number}": f"patch_embed.{3 * number}" for number in range(layers)}
    names |= {"attention.value": "global_attn.attention_a.0", "attention.gate": "global_attn.attention_b.0"}
    names |= {"attention.weight": "global_attn.attention_c", "head": "classifier"}
    state = model.state_dict()
    tensors = {f"{new}.{leaf}": state[f"{old}.{leaf}"] for old, new in names.items() for leaf in ("weight", "bias")}
    loaded = official.load(tensors)
    bag = Bag(torch.randn(9, 16))
    assert torch.equal(loaded(bag).logits, model(bag).logits)
    assert (loaded.config.attention_dropout, loaded.config.dropout) == (0.25, 0.25 if layers > 1 else 0.0)
    if layers > 2:
        del tensors["patch_embed.3.weight"], tensors["patch_embed.3.bias"]
        with pytest.raises(AsmilError, match=r"patch_embed\.3\.weight"):
            official.load(tensors)


def test_dropout_between_layers_leaves_the_last_one_alone():
    """Without the last layer's dropout, zeros in the embedding come only from its ReLU."""
    torch.manual_seed(0)
    x, kept = torch.randn(50, 16), {}
    for last in (True, False):
        model = build("abmil", 16, 2, embedding_layers=2, inner=6, dropout=0.5, dropout_last=last).train()
        with torch.no_grad():
            model.embedding.layers[1].bias.fill_(50.0)
        model.use_generator(torch.Generator().manual_seed(0))
        kept[last] = bool((model.embed(x) > 0).all())
    assert kept == {True: False, False: True}


def test_attention_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model, bag = build("abmil", 16, 2, attention_dropout=0.5).train(), Bag(torch.randn(9, 16))
    first, second = model(bag).scores, model(bag).scores
    assert not torch.equal(first, second)
    assert torch.equal(model.eval()(bag).scores, model(bag).scores)


def test_presets_of_the_variants_build():
    for preset, layers in (("official", 1), ("mil_lab", 1), ("survival", 0), ("mil_dropout", 3)):
        config = resolve("abmil", preset).model
        assert len(build("abmil", 32, 2, config).embedding.layers) == layers
