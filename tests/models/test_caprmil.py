import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.explain.kinds import explain_bag
from asmil.models.inference import infer
from asmil.tasks.classification import Classification

WIDTH = 20
POOLINGS = ["mean", "attention", "gated"]


def make(**options):
    torch.manual_seed(3)
    return build("caprmil", WIDTH, 2, **{"inner": 12, "heads": 3, "clusters": 4, "blocks": 2, **options}).eval()


def make_bag(tiles: int = 23) -> Bag:
    return Bag(torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(tiles)))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_chunks_and_padding_change_nothing(pooling):
    model, bag = make(pooling=pooling).double(), make_bag()
    whole = infer(model, bag)
    parts = infer(model, bag, chunk_tiles=5)
    features = torch.cat([bag.features, torch.full((4, WIDTH), 7.0)])
    padded = model(Bag(features, mask=torch.arange(27) < 23))
    for other in (parts, padded):
        torch.testing.assert_close(other.logits, whole.logits)
        torch.testing.assert_close(other.instance_logits[:23], whole.instance_logits)
    if pooling != "mean":
        torch.testing.assert_close(parts.scores, whole.scores)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_logits_are_the_weighted_mean_of_the_tiles_own(pooling):
    model, bag = make(pooling=pooling), make_bag()
    output = model(bag)
    weights = torch.full((1, 23), 1 / 23) if pooling == "mean" else model.normalizer(output.scores)
    torch.testing.assert_close((weights @ output.instance_logits)[0], output.logits)
    torch.testing.assert_close(model.tile_map(output, "contribution").sum(), output.logits.max())
    other = explain_bag(model, Classification(("a", "b")), bag, "contribution", "b")
    assert float(other.values.sum()) == pytest.approx(output.logits[1].item(), abs=1e-5)
    if pooling != "mean":
        explained = explain_bag(model, Classification(("a", "b")), bag, "attention_logit", "b")
        assert float(explained.values.sum()) == pytest.approx(explained.evidence, abs=1e-5)


def test_shares_are_those_of_clusters_of_tiles():
    model, bag = make(), make_bag()
    for shares, attention in model.clusters(bag):
        assert (shares.shape, attention.shape) == ((3, 23, 4), (3, 4, 4))
        torch.testing.assert_close(shares.sum(dim=2), torch.ones(3, 23))
        torch.testing.assert_close(attention.sum(dim=2), torch.ones(3, 4))


def test_small_and_negative_temperatures_count_as_the_limit():
    limited, free = make(), make(min_temperature=None)
    with torch.no_grad():
        for model in (limited, free):
            model.blocks[0].temperature.copy_(torch.tensor([0.5, -0.3, 0.0]))
    assert infer(limited, make_bag()).logits.isfinite().all()
    with pytest.raises(AsmilError, match="finite"):
        infer(free, make_bag())
    assert "blocks.0.temperature" not in dict(make(learn_temperature=False).named_parameters())


def test_without_attention_there_is_nothing_to_anchor_and_widths_must_fit():
    assert make().score_axes == ()
    assert make(pooling="gated").score_axes == ("branch",)
    with pytest.raises(AsmilError, match="attention"):
        make().attend(make_bag())
    with pytest.raises(AsmilError, match="heads"):
        make(inner=13)
