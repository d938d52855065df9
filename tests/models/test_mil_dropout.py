import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.blocks.mil_dropout import MILDropout, choose_dropped


def plainly_dropped(x, top, neighbors):
    """Steps 1 to 5, one tile at a time."""
    order = sorted(range(len(x)), key=lambda i: (-float(x[i].mean()), i))
    chosen, others = order[:top], order[top:]
    fallen = set(chosen)
    for i in chosen:
        similarity = [float(torch.cosine_similarity(x[i], x[j], dim=0, eps=1e-12)) for j in others]
        ranked = sorted(range(len(others)), key=lambda place: -similarity[place])
        fallen |= {others[place] for place in ranked[:neighbors]}
    return fallen


@pytest.mark.parametrize(("tiles", "top", "neighbors"), [(40, 3, 7), (40, 1, 0), (17, 5, 2), (200, 4, 9)])
def test_drops_the_important_tiles_and_those_like_them(tiles, top, neighbors):
    x = torch.relu(torch.randn(tiles, 6, generator=torch.Generator().manual_seed(tiles)))
    drop = choose_dropped(x, top, neighbors)
    fallen = plainly_dropped(x, top, neighbors)
    assert set(torch.nonzero(drop.mask == 0).flatten().tolist()) == fallen
    assert top + min(neighbors, tiles - top) <= len(fallen) <= top + top * neighbors
    assert float(drop.scale) == pytest.approx(tiles / (tiles - len(fallen)))
    out = MILDropout(top, neighbors).train()(x)
    torch.testing.assert_close(out, x * drop.mask[:, None] * drop.scale)
    assert torch.equal(out, MILDropout(top, neighbors).train()(x)), "nothing is random"


def test_identity_in_inference_and_without_tiles_to_drop():
    x = torch.rand(9, 4)
    assert MILDropout(3, 4).eval()(x) is x
    assert MILDropout(0, 4).train()(x) is x
    assert MILDropout(3, 4).train()(x[:1]) is not None
    for few in (1, 2, 3):
        assert torch.equal(MILDropout(3, 4).train()(x[:few]), x[:few])


@pytest.mark.parametrize("tiles", range(1, 25))
def test_small_bags_stay_finite(tiles):
    x = torch.rand(tiles, 4, generator=torch.Generator().manual_seed(tiles))
    out = MILDropout(3, 7).train()(x)
    assert torch.isfinite(out).all()
    assert (out.abs().sum(dim=1) > 0).any()
    if 3 < tiles <= 10:  # all others are neighbors of each: only the three fall
        drop = choose_dropped(x, 3, 7)
        assert set(torch.nonzero(drop.mask == 0).flatten().tolist()) == set(drop.top.tolist())


def test_equal_tiles_fall_in_their_order():
    drop = choose_dropped(torch.ones(10, 4), 2, 3)
    assert drop.top.tolist() == [0, 1]
    assert torch.nonzero(drop.mask == 0).flatten().tolist() == [0, 1, 2, 3, 4]
    zeros = choose_dropped(torch.zeros(6, 4), 1, 1)
    assert torch.nonzero(zeros.mask == 0).flatten().tolist() == [0, 1]


def test_half_precision_ranks_like_full_precision():
    x = torch.rand(300, 32).bfloat16()
    assert torch.equal(choose_dropped(x, 3, 4).mask, choose_dropped(x.float(), 3, 4).mask)
    assert MILDropout(3, 4).train()(x).dtype == torch.bfloat16


def test_gradient_reaches_kept_tiles_only_and_is_scaled():
    x = torch.rand(20, 4, requires_grad=True)
    MILDropout(2, 3).train()(x).sum().backward()
    drop = choose_dropped(x.detach(), 2, 3)
    torch.testing.assert_close(x.grad, (drop.mask * drop.scale)[:, None].expand(20, 4))


def abmil(**options):
    torch.manual_seed(0)
    return build("abmil", 20, 2, embedding_layers=3, inner=12, attention=6, **options)


def test_follows_each_of_three_layers_in_training():
    model = abmil(mil_dropout=2, mil_dropout_neighbors=3).train()
    x = h = torch.randn(30, 20)
    assert [tuple(layer.weight.shape) for layer in model.embedding.layers] == [(10, 20), (256, 10), (12, 256)]
    for layer in model.embedding.layers:
        h = torch.relu(h @ layer.weight.T + layer.bias)
        drop = choose_dropped(h, 2, 3)
        h = h * drop.mask[:, None] * drop.scale
    torch.testing.assert_close(model.embed(x), h)
    output = model(Bag(x))
    fallen = output.scores[0][drop.mask == 0]
    torch.testing.assert_close(fallen, fallen[:1].expand_as(fallen))
    torch.testing.assert_close(abmil(mil_dropout=2).eval()(Bag(x)).logits, abmil().eval()(Bag(x)).logits)


def test_needs_an_embedding_layer():
    with pytest.raises(AsmilError, match=r"model\.mil_dropout = 3.*embedding_layers=3"):
        build("abmil", 20, 2, embedding_layers=0, mil_dropout=3)


@pytest.mark.parametrize("gated", [True, False])
def test_loads_the_official_names(gated):
    model = abmil(gated=gated).eval()
    state = model.state_dict()
    names = {"value": "attention_V.0", "gate": "attention_U.0", "weight": "attention_weights"}
    if not gated:
        names = {"value": "attention.0", "weight": "attention.2"}
    layers = {f"attention.{ours}": theirs for ours, theirs in names.items()} | {"head": "classifier.0"}

    def named(places):
        pairs = layers | {f"embedding.layers.{i}": f"feature_extractor.{place}" for i, place in enumerate(places)}
        return {f"{new}.{leaf}": state[f"{old}.{leaf}"] for old, new in pairs.items() for leaf in ("weight", "bias")}

    bag = Bag(torch.randn(9, 20))
    dropping = official.load(named((0, 3, 6)), {"topk": 2, "kernel": 5})
    assert (dropping.config.mil_dropout, dropping.config.mil_dropout_neighbors) == (2, 5)
    torch.testing.assert_close(dropping(bag).logits, model(bag).logits)
    assert official.load(named((0, 3, 6)), {"dropout_flag": 0}).config.mil_dropout == 0
    assert official.load(named((0, 2, 4))).config.mil_dropout == 0
