import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.attention.normalizers import NSF

CLUSTERS = torch.tensor([0, 3, 3, 1, 0, 3, 5, 1, 3])
EMPTY = [2, 4]


def bag_of(features=None, clusters=CLUSTERS, **fields):
    features = (
        torch.randn(len(clusters), 16, generator=torch.Generator().manual_seed(0)) if features is None else features
    )
    return Bag(features, extras={} if clusters is None else {"clusters": clusters}, **fields)


def make(variant="official", outputs=3, **options):
    torch.manual_seed(0)
    return build("deepattnmisl", 16, outputs, variant=variant, clusters=6, **options).eval()


def means_of(model, bag, empty):
    e = model.embedding(bag.features)
    labels = bag.extras["clusters"]
    return torch.stack([e[labels == c].mean(dim=0) if (labels == c).any() else empty for c in range(6)])


def masked_softmax(scores):
    full = torch.ones(6, dtype=torch.bool)
    full[EMPTY] = False
    return torch.softmax(scores.masked_fill(~full, -torch.inf), dim=0)


def test_official_equals_its_formulas():
    model, bag = make(), bag_of()
    h = means_of(model, bag, empty=torch.relu(model.embedding.layers[0].bias))
    s = model.attention.weight(torch.tanh(model.attention.value(h)))[:, 0]
    a = masked_softmax(s)
    output = model(bag)
    torch.testing.assert_close(output.extras["cluster_features"], h)
    torch.testing.assert_close(output.extras["cluster_scores"], s)
    torch.testing.assert_close(output.extras["cluster_attention"], a)
    torch.testing.assert_close(output.embedding, a @ h)
    torch.testing.assert_close(output.logits, model.head(torch.relu(model.hidden(a @ h))))


@pytest.mark.parametrize("mask_empty", [True, False])
def test_vlsa_equals_its_formulas(mask_empty):
    model, bag = make("vlsa", mask_empty=mask_empty), bag_of()
    g = torch.relu(model.mix(means_of(model, bag, empty=torch.zeros(256))))
    gate = model.attention
    s = gate.weight(torch.tanh(gate.value(g)) * torch.sigmoid(gate.gate(g)))[:, 0]
    a = masked_softmax(s) if mask_empty else torch.softmax(s, dim=0)
    output = model(bag)
    torch.testing.assert_close(output.extras["cluster_attention"], a)
    torch.testing.assert_close(output.logits, model.head(a @ g))
    torch.testing.assert_close(model.tile_map(output).sum(), torch.tensor(1.0))


@pytest.mark.parametrize("variant", ["official", "vlsa"])
def test_tile_scores_are_the_true_weights_of_tiles(variant):
    model, bag = make(variant), bag_of()
    output = model(bag)
    attention, counts = output.extras["cluster_attention"], torch.bincount(CLUSTERS, minlength=6)
    torch.testing.assert_close(torch.softmax(output.scores, dim=1)[0], (attention / counts)[CLUSTERS])
    torch.testing.assert_close(model.tile_map(output), (attention / counts)[CLUSTERS])
    torch.testing.assert_close(model.tile_map(output, "clusters"), attention[CLUSTERS])
    torch.testing.assert_close(model.attend(bag), output.scores)


def test_another_normalizer_weighs_tiles():
    model, bag = make(), bag_of()
    model.normalizer = NSF()
    output = model(bag)
    weights = torch.sigmoid(output.scores[0]) / torch.sigmoid(output.scores[0]).sum()
    expected = torch.zeros(6).index_add(0, CLUSTERS, weights)
    torch.testing.assert_close(output.extras["cluster_attention"], expected)


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_fewer_tiles_than_clusters_leave_clusters_empty(tiles):
    model = make()
    bag = model.prepare(bag_of(torch.randn(tiles, 16), clusters=None))
    assert len(bag.extras["clusters"].unique()) == tiles
    output = model(bag)
    torch.testing.assert_close(output.extras["cluster_attention"].sum(), torch.tensor(1.0))
    assert int((output.extras["cluster_attention"] > 0).sum()) == tiles


def test_equal_tiles_may_leave_one_cluster():
    model = make()
    output = model(bag_of(torch.ones(20, 16), clusters=None))
    torch.testing.assert_close(model.tile_map(output), torch.full((20,), 0.05))


def test_clusters_are_found_and_repeatable():
    centers = 20 * torch.eye(6, 16)
    truth = torch.arange(60) % 6
    features = centers[truth] + torch.randn(60, 16, generator=torch.Generator().manual_seed(1))
    found = [make(fit_tiles=fit).prepare(bag_of(features, None)).extras["clusters"] for fit in (5000, 5000, 30)]
    assert torch.equal(found[0], found[1])
    for labels in found:
        assert len({(int(a), int(b)) for a, b in zip(truth, labels, strict=True)}) == 6


def test_unprepared_bags_and_half_precision_work():
    model = make()
    features = torch.randn(40, 16)
    plain = model(bag_of(features, clusters=None))
    half = model(model.prepare(bag_of(features.half(), clusters=None)))
    torch.testing.assert_close(plain.logits, half.logits, rtol=1e-2, atol=1e-2)


def test_misfitting_clusters_are_refused():
    model = make()
    with pytest.raises(AsmilError, match=r"slide-1.*3.*4"):
        model.prepare(bag_of(torch.ones(4, 16), torch.tensor([0, 1, 2]), id="slide-1"))
    with pytest.raises(AsmilError, match=r"slide-2.*0.*6.*0.*5"):
        model.prepare(bag_of(torch.ones(2, 16), torch.tensor([0, 6]), id="slide-2"))


def test_counts_are_exact_under_autocast():
    """Half precision cannot count to 1000; the weights of 1,001 tiles must still sum to one."""
    model = make()
    clusters = torch.cat([torch.zeros(1000, dtype=torch.long), torch.ones(1, dtype=torch.long)])
    bag = bag_of(torch.randn(1001, 16), clusters)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        output = model(bag)
    torch.testing.assert_close(output.extras["cluster_attention"].sum().float(), torch.tensor(1.0), rtol=1e-3, atol=0)
    torch.testing.assert_close(output.logits.float(), model(bag).logits, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("variant", ["official", "vlsa"])
def test_dropout_only_while_training(variant):
    model, bag = make(variant), bag_of()
    assert torch.equal(model(bag).logits, model(bag).logits)
    model.train()
    model.use_generator(torch.Generator().manual_seed(0))
    assert not torch.equal(model(bag).logits, model(bag).logits)
