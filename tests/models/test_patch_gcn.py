import copy

import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.inference import infer


def bag_of(tiles, width=12, seed=0, **fields):
    draw = torch.Generator().manual_seed(seed)
    coords = torch.stack([torch.arange(tiles) % 6, torch.arange(tiles) // 6], dim=1) * 256
    return Bag(torch.randn(tiles, width, generator=draw), coords, id=f"slide-{tiles}", **fields)


def convolved(layer, x, edges):
    """GENConv tile by tile, edge by edge."""
    messages = torch.relu(x) + 1e-7
    rows = []
    for tile in range(len(x)):
        heard = messages[[center for center, neighbor in edges if neighbor == tile]]
        rows.append((torch.softmax(layer.t * heard, dim=0) * heard).sum(dim=0))
    hidden = torch.relu(layer.norm(layer.widen(torch.stack(rows) + x)))
    return layer.narrow(hidden)


@pytest.mark.parametrize(
    ("variant", "layers", "bias"),
    [("official", 3, False), ("official", 1, True), ("vlsa", 4, False), ("vlsa", 2, True)],
)
def test_equals_its_formulas(variant, layers, bias):
    torch.manual_seed(0)
    model = build("patch_gcn", 12, 5, variant=variant, inner=8, layers=layers, conv_bias=bias, neighbors=4).eval()
    with torch.no_grad():
        model.first.t.fill_(0.3)
    bag = bag_of(20)
    squared = (bag.coords[:, None] - bag.coords[None]).square().sum(dim=-1)
    squared.fill_diagonal_(10**9)
    nearest = torch.sort(squared, dim=1, stable=True).indices[:, :4]
    edges = [(center, int(neighbor)) for center in range(20) for neighbor in nearest[center]]
    maps = [torch.relu(model.embedding(bag.features))]
    maps.append(convolved(model.first, maps[0], edges))
    for layer in model.further:
        maps.append(maps[-1] + torch.relu(layer.norm(convolved(layer.conv, maps[-1], edges))))
    h = torch.relu(model.join(torch.cat(maps, dim=1)))
    a = model.attention
    z = a.weight(torch.tanh(a.value(h)) * torch.sigmoid(a.gate(h)))
    g = (torch.softmax(z, dim=0) * h).sum(dim=0)
    g = torch.relu(model.rho(g)) if variant == "official" else g
    output = model(bag)
    torch.testing.assert_close(output.scores, z.t())
    torch.testing.assert_close(output.embedding, g)
    torch.testing.assert_close(output.logits, model.head(g))
    assert len(h[0]) == (8 * (layers + 1) if variant == "official" else 8)


def test_a_lonely_tile_sends_but_hears_nobody():
    torch.manual_seed(0)
    model = build("patch_gcn", 12, 2, inner=8).eval()
    near = bag_of(30)
    coords = torch.cat([near.coords, torch.tensor([[10**6, 10**6]])])
    features = torch.cat([near.features, torch.ones(1, 12)])
    bag = model.prepare(Bag(features, coords))
    matrix = bag.extras["adjacency"]
    assert int(matrix["row_starts"][30]) == len(matrix["columns"])  # nothing reaches it
    assert len(matrix["rows"]) - int(matrix["column_starts"][30]) == 8  # it reaches eight
    x0, x1, *_ = model.graph_maps(bag)
    alone = model.first.narrow(torch.relu(model.first.norm(model.first.widen(x0[30]))))
    torch.testing.assert_close(x1[30], alone)


@pytest.mark.parametrize("tiles", [1, 2, 5, 8, 9])
def test_small_bags_use_the_tiles_there_are(tiles):
    model = build("patch_gcn", 12, 2).eval()
    bag = model.prepare(bag_of(tiles))
    assert len(bag.extras["adjacency"]["rows"]) == tiles * min(8, tiles - 1)
    assert torch.isfinite(model(bag).logits).all()


def test_slides_of_a_patient_are_separate_graphs():
    model = build("patch_gcn", 12, 2, inner=8).eval()
    first, second = bag_of(15), bag_of(20, seed=1)
    joined = Bag(
        torch.cat([first.features, second.features]),
        torch.cat([first.coords, second.coords]),
        slide_index=torch.tensor([0] * 15 + [1] * 20),
    )
    maps = model.graph_maps(joined)
    for whole, *parts in zip(maps, model.graph_maps(first), model.graph_maps(second), strict=True):
        torch.testing.assert_close(whole, torch.cat(parts))


def test_given_edges_are_used_as_they_are():
    model = build("patch_gcn", 12, 2, inner=8).eval()
    bag = Bag(bag_of(10).features, extras={"edges": torch.tensor([[0, 1, 1], [1, 0, 2]])})
    x0, x1, *_ = model.graph_maps(bag)
    torch.testing.assert_close(x1, convolved(model.first, x0, [(0, 1), (1, 0), (1, 2)]))
    with pytest.raises(AsmilError, match="slide-x: Patch-GCN"):
        model(Bag(bag.features, id="slide-x"))


def test_a_long_bag_in_chunks_is_the_same(monkeypatch):
    model = build("patch_gcn", 12, 2).eval()
    bag = model.prepare(bag_of(50))
    whole = infer(model, bag)
    monkeypatch.setattr("asmil.models.blocks.layers.CHUNK_TILES", 7)
    parts = infer(model, bag)
    torch.testing.assert_close(parts.logits, whole.logits)
    torch.testing.assert_close(parts.scores, whole.scores)


def test_trains_under_autocast():
    model = build("patch_gcn", 12, 2).train()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(bag_of(40))
    functional.cross_entropy(output.logits.float()[None], torch.tensor([1])).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert model.first.t.grad.abs() > 0


def test_old_checkpoints_keep_t_on_the_layer_and_have_biases():
    ours = build("patch_gcn", 12, 3, conv_bias=True, inner=8, layers=2).eval()
    state = {}
    outer = {
        "embedding.layers.0": "fc.0",
        "join": "path_phi.0",
        "rho": "path_rho.0",
        "head": "classifier",
        "attention.value": "path_attention_head.attention_a.0",
        "attention.gate": "path_attention_head.attention_b.0",
        "attention.weight": "path_attention_head.attention_c",
        "first.widen": "layers.0.conv.mlp.0",
        "first.norm": "layers.0.conv.mlp.1",
        "first.narrow": "layers.0.conv.mlp.4",
        "further.0.conv.widen": "layers.1.conv.mlp.0",
        "further.0.conv.norm": "layers.1.conv.mlp.1",
        "further.0.conv.narrow": "layers.1.conv.mlp.4",
        "further.0.norm": "layers.1.norm",
    }
    own = copy.deepcopy(ours.state_dict())
    for name, theirs in outer.items():
        for leaf in ("weight", "bias"):
            state[f"{theirs}.{leaf}"] = own.pop(f"{name}.{leaf}")
    state["layers.0.conv.t"], state["layers.1.conv.t"] = own.pop("first.t"), own.pop("further.0.conv.t")
    assert not own
    loaded = official.load(state)
    assert torch.equal(loaded(bag_of(20)).logits, ours(bag_of(20)).logits)
