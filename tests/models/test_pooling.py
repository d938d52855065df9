import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.inference import infer
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification


def tile_logits(model, x):
    embedded = torch.relu(x @ model.embedding.layers[0].weight.T + model.embedding.layers[0].bias)
    return embedded, embedded @ model.head.weight.T + model.head.bias


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_levels_equal_their_formulas(classes):
    torch.manual_seed(0)
    x = torch.randn(11, 16)

    model = build("mean_pooling", 16, classes, inner=6).eval()
    embedded, f = tile_logits(model, x)
    torch.testing.assert_close(model(Bag(x)).logits, f.mean(dim=0))
    torch.testing.assert_close(model(Bag(x)).instance_logits, f)
    torch.testing.assert_close(model(Bag(x)).embedding, embedded.mean(dim=0))

    model = build("max_pooling", 16, classes, inner=6).eval()
    embedded, f = tile_logits(model, x)
    output = model(Bag(x))
    torch.testing.assert_close(output.logits, f.max(dim=0).values)
    torch.testing.assert_close(output.embedding, embedded[f.argmax(dim=0)].flatten())

    model = build("max_pooling", 16, classes, inner=6, level="embedding").eval()
    embedded, _ = tile_logits(model, x)
    torch.testing.assert_close(model(Bag(x)).logits, model.head(embedded.max(dim=0).values))


def test_one_tile_decides_for_all_classes():
    torch.manual_seed(1)
    x = torch.randn(20, 16)
    two = build("max_pooling", 16, 2, level="tile").eval()
    _, f = tile_logits(two, x)
    chosen = (f[:, 1] - f[:, 0]).argmax()
    torch.testing.assert_close(two(Bag(x)).logits, f[chosen])
    three = build("max_pooling", 16, 3, level="tile").eval()
    embedded, f = tile_logits(three, x)
    pair = torch.softmax(f, dim=1).argmax()
    output = three(Bag(x))
    torch.testing.assert_close(output.logits, f[pair // 3])
    assert int(output.logits.argmax()) == int(pair % 3)
    torch.testing.assert_close(output.embedding, embedded[pair // 3])
    one = build("max_pooling", 16, 1, level="tile").eval()
    torch.testing.assert_close(one(Bag(x)).logits, tile_logits(one, x)[1].max(dim=0).values)


def test_the_two_classes_of_one_tile_pooling_are_not_alike():
    torch.manual_seed(0)
    model = build("max_pooling", 16, 2, level="tile").eval()
    x = torch.randn(20, 16)
    first = model(Bag(x)).extras["deciding_tiles"]
    model.load_state_dict(model.state_dict() | {"head.weight": model.head.weight.flip(0), "head.bias": torch.zeros(2)})
    assert model(Bag(x)).extras["deciding_tiles"] != first


@pytest.mark.parametrize("level", ["instance", "embedding", "tile"])
def test_one_tile_gives_its_own_logits(level):
    for name in ("mean_pooling", "max_pooling"):
        if name == "mean_pooling" and level == "tile":
            continue
        model = build(name, 16, 3, level=level).eval()
        x = torch.randn(1, 16)
        torch.testing.assert_close(model(Bag(x)).logits, tile_logits(model, x)[1][0])


@pytest.mark.parametrize(("level", "reached"), [("tile", 1), ("instance", 3)])
def test_gradient_reaches_only_the_tiles_that_decide(level, reached):
    torch.manual_seed(0)
    model = build("max_pooling", 16, 3, level=level).train()
    x = torch.randn(50, 16, requires_grad=True)
    output = model(Bag(x))
    model.loss([output], torch.tensor([2]), Classification(["a", "b", "c"])).total.backward()
    touched = (x.grad.abs().sum(dim=1) > 0).nonzero().flatten().tolist()
    assert set(touched) <= set(output.extras["deciding_tiles"].tolist())
    assert 1 <= len(touched) <= reached


@pytest.mark.parametrize(
    ("name", "level"),
    [("mean_pooling", "instance"), *(("max_pooling", level) for level in ("instance", "embedding", "tile"))],
)
def test_in_chunks_as_whole(name, level):
    torch.manual_seed(0)
    model, bag = build(name, 16, 3, level=level).eval(), Bag(torch.randn(50, 16))
    whole = model(bag)
    for chunk in (1, 7, 49):
        parts = infer(model, bag, chunk_tiles=chunk)
        torch.testing.assert_close(parts.logits, whole.logits)
        torch.testing.assert_close(parts.embedding, whole.embedding)
        torch.testing.assert_close(parts.instance_logits, whole.instance_logits)
        assert all(torch.equal(value, whole.extras[key]) for key, value in parts.extras.items())


def test_heat_map_is_the_probability_of_the_predicted_class():
    bag = Bag(torch.randn(9, 16))
    model = build("max_pooling", 16, 3).eval()
    output = model(bag)
    probabilities = torch.softmax(output.instance_logits, dim=1)
    torch.testing.assert_close(model.tile_map(output), probabilities[:, int(output.logits.argmax())])
    with pytest.raises(AsmilError, match=r"'attention'.*'probability'"):
        model.tile_map(output, "attention")
    single = build("mean_pooling", 16, 1).eval()
    output = single(bag)
    torch.testing.assert_close(single.tile_map(output), torch.sigmoid(output.instance_logits[:, 0]))


def test_there_are_no_scores():
    model = build("mean_pooling", 16, 2)
    assert model(Bag(torch.randn(3, 16))).scores is None
    with pytest.raises(AsmilError, match="has no attention"):
        model.attend(Bag(torch.randn(3, 16)))


def test_start_of_the_weights():
    xavier = build("mean_pooling", 1024, 2)
    assert not xavier.head.bias.any()
    assert not xavier.embedding.layers[0].bias.any()
    expected = (2 / (1024 + 512)) ** 0.5
    assert float(xavier.embedding.layers[0].weight.detach().std()) == pytest.approx(expected, rel=0.02)
    assert build("max_pooling", 1024, 2, level="tile").embedding.layers[0].bias.any()


def acmil_state(last="head.3"):
    return {
        "head.0.weight": torch.randn(5, 7),
        "head.0.bias": torch.randn(5),
        f"{last}.weight": torch.randn(3, 5),
        f"{last}.bias": torch.randn(3),
    }


@pytest.mark.parametrize("last", ["head.3", "head.2"])
def test_official_mean_and_max_are_told_apart_by_the_mode(last):
    state, x = acmil_state(last), torch.randn(4, 7)
    f = torch.relu(x @ state["head.0.weight"].T + state["head.0.bias"]) @ state[f"{last}.weight"].T
    f = f + state[f"{last}.bias"]
    torch.testing.assert_close(official.load(state, {"mode": "mean"})(Bag(x)).logits, f.mean(dim=0))
    torch.testing.assert_close(official.load(state, {"mode": "max"})(Bag(x)).logits, f.max(dim=0).values)
    with pytest.raises(AsmilError, match="'mode'"):
        official.load(state)


def test_presets():
    assert resolve("max_pooling", "clam").model.level == "tile"
    assert resolve("mean_pooling", "official").training.optimizer == "adamw"
    with pytest.raises(AsmilError, match=r"model\.level"):
        build("mean_pooling", 16, 2, level="tile")
