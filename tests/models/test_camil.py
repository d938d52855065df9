import math

import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.camil import HeadConvolution, official_similarity, paper_similarity
from asmil.models.inference import infer


def bag_of(tiles, width=16, seed=0, **fields):
    features = torch.randn(tiles, width, generator=torch.Generator().manual_seed(seed))
    coords = torch.stack([torch.arange(tiles) % 5, torch.arange(tiles) // 5], dim=1) * 256
    return Bag(features, coords, id=f"slide-{tiles}", **fields)


def make(variant="paper", **options):
    torch.manual_seed(0)
    sizes = {"inner": 32, "landmarks": 4} if variant == "paper" else {"heads": 2, "head_width": 8, "landmarks": 4}
    return build("camil", 16, 3, variant=variant, **{**sizes, **options}).eval()


def dense(matrix, tiles):
    ends = [*matrix["row_starts"][1:].tolist(), len(matrix["columns"])]
    rows = torch.zeros(tiles, tiles)
    for tile, (start, end) in enumerate(zip(matrix["row_starts"].tolist(), ends, strict=True)):
        rows[tile, matrix["columns"][start:end]] = matrix["values"][start:end]
    return rows


def nearest_others(bag):
    squared = (bag.coords[:, None] - bag.coords[None]).square().sum(dim=-1)
    squared.fill_diagonal_(10**9)
    return torch.sort(squared, dim=1, stable=True).indices[:, :-1]


def plain_nystrom(layer, x, residual=None):
    """All softmax matrices, all pads, no folding."""
    run = math.ceil(len(x) / layer.landmarks)
    padded = functional.pad(x, (0, 0, run * layer.landmarks - len(x), 0))
    q, k, v = layer.to_qkv(padded).view(len(padded), 3, layer.heads, layer.head_width).permute(1, 2, 0, 3)
    q = q * layer.head_width**-0.5
    ql, kl = (part.unflatten(1, (layer.landmarks, run)).mean(dim=2) for part in (q, k))
    first, second, third = (torch.softmax(a @ b.transpose(1, 2), -1) for a, b in ((q, kl), (ql, kl), (ql, k)))
    z = second.transpose(1, 2) / (second.sum(dim=1).max() * second.sum(dim=2).max())
    eye = torch.eye(layer.landmarks)
    for _ in range(6):
        y = second @ z
        z = z @ (13 * eye - y @ (15 * eye - y @ (7 * eye - y))) / 4
    out = first @ z @ third @ v + (0 if residual is None else residual(v))
    return layer.to_out(out.transpose(0, 1).flatten(1))[-len(x) :]


@pytest.mark.parametrize("tiles", [1, 3, 8, 23])
@pytest.mark.parametrize("options", [{}, {"gated": False, "mlp": True, "heads": 2}, {"inner": 16}])
def test_paper_equals_its_formulas(tiles, options):
    model, bag = make(**options), bag_of(tiles)
    x = bag.features if model.projection is None else model.projection(bag.features)
    assert (model.projection is None) == (options.get("inner") == 16)
    t = x + plain_nystrom(model.nystrom, model.norm(x))
    if model.mlp is not None:
        t = t + model.mlp(t)
    weights = torch.eye(tiles)
    for tile, others in enumerate(nearest_others(bag)):
        near = others[:8]
        weights[tile, near] = torch.exp(-(bag.features[near] - bag.features[tile]).norm(dim=1) / 4)
    r = (weights * (model.query(t) @ model.key(t).t())).sum(dim=1) / math.sqrt(t.shape[1])
    local = torch.softmax(r, dim=0).unsqueeze(1) * model.value(t)
    m = torch.sigmoid(local) * local + (1 - torch.sigmoid(local)) * t
    a = model.attention
    hidden = torch.tanh(a.value(t)) * (torch.sigmoid(a.gate(t)) if a.gate is not None else 1)
    z = a.weight(hidden)[:, 0]
    output = model(bag)
    torch.testing.assert_close(output.extras["neighbor_scores"], r, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.scores[0], z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.embedding, torch.softmax(z, dim=0) @ m, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.logits, model.head(output.embedding))
    torch.testing.assert_close(model.tile_map(output, "neighbors"), torch.softmax(r, dim=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tiles", [1, 3, 8, 23])
def test_official_equals_its_formulas(tiles):
    model, bag = make("official"), bag_of(tiles)
    x = bag.features
    assert model.projection is None
    t = x + plain_nystrom(model.nystrom, x, model.nystrom.residual)
    weights = torch.zeros(tiles, tiles)
    for tile, others in enumerate(nearest_others(bag)):
        near = others[:15]
        distances = 1 - functional.cosine_similarity(x[near], x[tile], dim=1)
        similar = torch.exp(-distances / distances.norm())
        weights[tile, tile] = similar.max() if tiles > 1 else 1.0
        weights[tile, near[:7]] = similar[:7]
    torch.testing.assert_close(dense(model.prepare(bag).extras["adjacency"], tiles), weights)
    r = (weights * (model.query(t) @ model.key(t).t())).sum(dim=1) / 16
    local = torch.softmax(r, dim=0).unsqueeze(1) * model.value(x)
    g = torch.sigmoid(-local)
    m = 2 * local * g**2 + 2 * t * (1 - g**2)
    z = model.attention.weight(torch.tanh(model.attention.value(m)) * torch.sigmoid(model.attention.gate(m)))[:, 0]
    output = model(bag)
    torch.testing.assert_close(output.scores[0], z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.attend(bag), output.scores)
    torch.testing.assert_close(output.logits, model.head(torch.softmax(z, dim=0) @ m), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "kernel"), [(4, 33), (4, 3), (8, 33), (1, 5)])
def test_head_convolution_is_a_grouped_convolution_along_the_heads(heads, kernel):
    layer = HeadConvolution(heads, 16, kernel)
    values = torch.randn(heads, 7, 16)
    weight = layer.weight.permute(2, 1, 0).unsqueeze(3)
    expected = functional.conv2d(
        values.permute(2, 0, 1).unsqueeze(0), weight, padding=((kernel - 1) // 2, 0), groups=heads
    )
    torch.testing.assert_close(layer(values), expected[0].permute(1, 2, 0))
    with pytest.raises(AsmilError, match="3 heads"):
        HeadConvolution(3, 16, 33)


def test_tiles_of_zeros_and_shared_places_are_ordinary_neighbors():
    bag = bag_of(12)
    bag.features[3] = 0
    bag.coords[5] = bag.coords[4]
    weights = dense(make("official").prepare(bag).extras["adjacency"], 12)
    assert torch.isfinite(weights).all()
    assert weights[4, 5] > 0
    assert weights[5, 4] > 0
    # distance 0 to a tile of zeros, so the similarity is 1; such a tile is alike to all, and so to itself
    assert (weights[:, 3][weights[:, 3] > 0] == 1).all()
    assert (weights[3][weights[3] > 0] == 1).all()
    same = Bag(torch.ones(4, 16), torch.zeros(4, 2), id="same")
    torch.testing.assert_close(dense(make("official").prepare(same).extras["adjacency"], 4), torch.ones(4, 4))
    torch.testing.assert_close(dense(make().prepare(same).extras["adjacency"], 4), torch.ones(4, 4))


def test_similarity_normalizes_over_all_listed_neighbors():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    edges, weights = official_similarity(features, torch.tensor([[0, 0], [1, 2]]), keep=1)
    distances = torch.tensor([1.0, 1 - math.sqrt(0.5)])
    expected = torch.exp(-distances / distances.norm())
    assert edges.tolist() == [[0, 1, 2, 0], [0, 1, 2, 1]]
    torch.testing.assert_close(weights, torch.stack([expected[1], torch.tensor(1.0), torch.tensor(1.0), expected[0]]))
    edges, weights = paper_similarity(features.half(), torch.tensor([[2, 0], [0, 1]]))
    assert edges.tolist() == [[0, 1, 2, 0, 2], [0, 1, 2, 1, 0]]
    torch.testing.assert_close(weights[3:], torch.exp(torch.tensor([-1.0, -math.sqrt(0.5)])))


def test_given_weights_are_all_of_the_matrix():
    model = make()
    edges, weights = torch.tensor([[0, 1, 1], [1, 0, 2]]), torch.tensor([0.5, 0.25, 2.0])
    features = bag_of(3).features
    bag = model.prepare(Bag(features, extras={"edges": edges, "edge_weights": weights}))
    expected = torch.tensor([[0.0, 0.5, 0.0], [0.25, 0.0, 2.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(dense(bag.extras["adjacency"], 3), expected)
    assert model(bag).extras["neighbor_scores"][2] == 0
    with pytest.raises(AsmilError, match=r"slide-q: 2 .*3 edges"):
        model.prepare(Bag(features, id="slide-q", extras={"edges": edges, "edge_weights": weights[:2]}))
    with pytest.raises(AsmilError, match="slide-x: CAMIL"):
        model.prepare(Bag(features, id="slide-x"))


def test_slides_of_a_patient_share_no_edge():
    model, whole = make("official"), bag_of(40)
    slides = torch.arange(40) % 2
    joined = Bag(whole.features, whole.coords, slide_index=slides)
    weights = dense(model.prepare(joined).extras["adjacency"], 40)
    assert not weights[slides == 0][:, slides == 1].any()
    alone = dense(model.prepare(whole.subset(torch.arange(0, 40, 2))).extras["adjacency"], 20)
    torch.testing.assert_close(weights[slides == 0][:, slides == 0], alone)


def test_official_starts_like_keras_and_may_project():
    model = build("camil", 16, 2, variant="official", inner=64)
    assert model.projection.weight.shape == (64, 16)
    assert not model.head.bias.any()
    assert not model.value.bias.any()
    assert model.query.weight.abs().max() <= math.sqrt(6 / (64 + 256))
    assert model.nystrom.to_out.weight.shape == (64, 512)
    assert model(bag_of(9)).logits.shape == (2,)


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_every_parameter_is_trained_also_under_autocast(variant):
    model = make(variant).train()
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            output = model(bag_of(30))
        functional.cross_entropy(output.logits.float()[None], torch.tensor([1])).backward()
        for name, parameter in model.named_parameters():
            assert torch.isfinite(parameter.grad).all(), name
            assert parameter.grad.any(), name


def test_a_long_bag_in_chunks_is_the_same(monkeypatch):
    for variant in ("paper", "official"):
        model = make(variant)
        bag = model.prepare(bag_of(50))
        whole = infer(model, bag)
        with monkeypatch.context() as patch:
            patch.setattr("asmil.models.blocks.layers.CHUNK_TILES", 7)
            parts = infer(model, bag)
        torch.testing.assert_close(parts.logits, whole.logits)
        torch.testing.assert_close(parts.extras["neighbor_scores"], whole.extras["neighbor_scores"])


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(AsmilError, match=r"30 .*4 heads"):
        make(inner=30)


@pytest.mark.parametrize("options", [{"mlp": True, "gated": False}, {"inner": 16}])
def test_loads_the_port_with_its_options(options):
    ours = make(heads=2, **options)
    own = dict(ours.state_dict())
    block = "nystrom_transformer_layer"
    names = {
        "projection": "fc1",
        "norm": f"{block}.norm1",
        "nystrom.to_qkv": f"{block}.att_module.qkv_nn",
        "mlp.0": f"{block}.norm2",
        "mlp.1": f"{block}.mlp_module.0",
        "mlp.3": f"{block}.mlp_module.3",
        "value": "camil_self_attention.v_nn",
        "attention.value": "camil_att_pool.fc1",
        "attention.gate": "camil_att_pool.fc_gated",
        "attention.weight": "camil_att_pool.fc2",
        "head": "classifier",
    }
    state = {"camil_self_attention.qk_nn.weight": torch.cat([own.pop("query.weight"), own.pop("key.weight")])}
    for name, tensor in own.items():
        layer, leaf = name.rsplit(".", 1)
        state[f"{names[layer]}.{leaf}"] = tensor
    loaded = official.load(state, {"n_heads": 2, "n_landmarks": 4})
    assert torch.equal(loaded(bag_of(20)).logits, ours(bag_of(20)).logits)
