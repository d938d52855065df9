import numpy as np
import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.blocks.kmeans import cluster
from asmil.models.ibmil import find_prototypes
from asmil.models.inference import infer
from asmil.models.transmil import LAYERS
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer

TASK = Classification(["a", "b", "c"])
BASES = ["gated", "plain", "dsmil", "transmil"]
WIDTHS = {"gated": 8, "plain": 16, "dsmil": 16, "transmil": 24}


def make(base="gated", seed=0, classes=3, **options):
    torch.manual_seed(seed)
    if base == "transmil":
        options = {"inner": 24, **options}
    return build("ibmil", 16, classes, base=base, **options).eval()


def tiles(count=20, seed=0):
    return torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))


def bags(count, size=12):
    return [Bag(tiles(size, seed), id=f"slide-{seed}") for seed in range(count)]


# k-means


def blobs(per_cluster=30, seed=0):
    draw = np.random.default_rng(seed)
    truth = np.arange(4 * per_cluster) % 4
    return np.eye(5)[truth] * 10 + draw.normal(size=(len(truth), 5)), truth


def same_partition(labels, truth):
    pairs = {(int(a), int(b)) for a, b in zip(labels, truth, strict=True)}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


@pytest.mark.parametrize("fit_rows", [None, 40])
def test_clusters_are_found_from_arrays_and_tensors(fit_rows):
    rows, truth = blobs()
    for values in (rows, torch.from_numpy(rows), torch.from_numpy(rows).half(), torch.from_numpy(rows).bfloat16()):
        labels = cluster(values, 4, fit_rows=fit_rows)
        assert labels.dtype == torch.long
        assert same_partition(labels, truth)


def test_the_same_seed_gives_the_same_clusters():
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(cluster(rows, 6, seed=3), cluster(rows, 6, seed=3))


def test_fewer_rows_than_clusters():
    assert sorted(cluster(torch.eye(3), 8).tolist()) == [0, 1, 2]
    assert cluster(torch.ones(1, 4), 8).tolist() == [0]
    assert len(cluster(torch.ones(5, 4), 3).unique()) == 1


# the dictionary


def test_prototypes_cluster_directions_and_average_the_rows_themselves():
    rows, truth = blobs()
    lengths = torch.rand(len(rows), 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 9 + 0.5
    rows = torch.from_numpy(rows) * lengths
    expected = torch.stack([rows[truth == label].mean(dim=0) for label in range(4)])
    found = find_prototypes(rows, 4)
    order = functional.normalize(found).argmax(dim=1).argsort()
    torch.testing.assert_close(found[order], expected)


def test_prototypes_of_few_equal_and_zero_rows():
    assert find_prototypes(torch.eye(3), 8).shape == (3, 3)
    torch.testing.assert_close(find_prototypes(torch.ones(6, 4), 8), torch.ones(1, 4))
    assert torch.isfinite(find_prototypes(torch.zeros(4, 2), 2)).all()


def test_rows_that_hold_no_prototype_take_no_part():
    large, small = make(prototypes=8), make(prototypes=3)
    weights = {name: tensor for name, tensor in large.state_dict().items() if "prototypes" not in name}
    small.load_state_dict({k: v[:3] if k == "dictionary.used" else v for k, v in weights.items()}, strict=False)
    prototypes = torch.randn(3, 8)
    large.dictionary.fill(prototypes)
    small.dictionary.fill(prototypes)
    first, second = large(Bag(tiles())), small(Bag(tiles()))
    torch.testing.assert_close(first.logits, second.logits)
    assert first.extras["confounder_attention"][0, 3:].abs().max() == 0


# the forward pass


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("merge", ["cat", "add", "sub"])
@pytest.mark.parametrize("count", [1, 25])
def test_head_reads_the_bag_and_a_mixture_of_prototypes(base, merge, count):
    model = make(base, merge=merge, joint=6, prototypes=5)
    output = model(Bag(tiles(count)))
    m, book = output.embedding.view(-1, WIDTHS[base]), model.dictionary
    keys = book.prototypes @ book.key.weight.T + book.key.bias
    u = torch.softmax((m @ book.query.weight.T + book.query.bias) @ keys.T / 6**0.5, dim=1)
    c = u @ book.prototypes
    merged = {"cat": torch.cat([m, c], dim=1), "add": m + c, "sub": m - c}[merge]
    torch.testing.assert_close(output.extras["confounder_attention"], u)
    torch.testing.assert_close(output.extras["merged_feature"], merged)
    torch.testing.assert_close(output.logits, model.head(merged.flatten()))


def test_plain_base_scores_the_features_themselves():
    model, x = make("plain"), tiles()
    value, weight = model.base.attention.value, model.base.attention.weight
    z = torch.tanh(x @ value.weight.T + value.bias) @ weight.weight.T + weight.bias
    assert value.weight.shape == (16, 16)
    output = model(Bag(x))
    torch.testing.assert_close(output.scores, z.t())
    torch.testing.assert_close(output.embedding, (torch.softmax(z, dim=0) * x).sum(dim=0))


def test_bases_alone_equal_the_methods():
    alike = {"gated": ("abmil", {}), "dsmil": ("dsmil", {"query": "linear"}), "transmil": ("transmil", {"inner": 24})}
    for base, (method, options) in alike.items():
        model = make(base, prototypes=0)
        other = build(method, 16, 3, **options).eval()
        other.load_state_dict({name.removeprefix("base."): tensor for name, tensor in model.state_dict().items()})
        torch.testing.assert_close(model(Bag(tiles())).logits, other(Bag(tiles())).logits)


def test_key_dropout_acts_in_training_and_by_default_with_dsmil_only():
    for base, random in (("gated", False), ("plain", False), ("dsmil", True)):
        model = make(base).train()
        first, second = (model(Bag(tiles())).extras["confounder_attention"] for _ in range(2))
        assert torch.equal(first, second) != random
    model = make("dsmil", key_dropout=0.0).train()
    assert torch.equal(model(Bag(tiles())).logits, model(Bag(tiles())).logits)


@pytest.mark.parametrize("base", BASES)
def test_in_chunks_as_whole(base):
    model = make(base)
    whole, parts = infer(model, Bag(tiles(50))), infer(model, Bag(tiles(50)), chunk_tiles=7)
    torch.testing.assert_close(parts.logits, whole.logits)
    torch.testing.assert_close(parts.scores, whole.scores)
    torch.testing.assert_close(model.attend(Bag(tiles(50))), whole.scores)
    torch.testing.assert_close(model.tile_map(whole).sum(), torch.tensor(1.0))


def test_losses():
    outputs, target = [make()(Bag(tiles()))], torch.tensor([2])
    wanted = torch.tensor([0.0, 0.0, 1.0])
    loss = make(loss="bce").loss(outputs, target, TASK)
    expected = functional.binary_cross_entropy_with_logits(outputs[0].logits, wanted)
    torch.testing.assert_close(loss.total, expected)
    assert set(loss.parts) == {"bce"}
    assert set(make("dsmil").loss([make("dsmil")(Bag(tiles()))], target, TASK).parts) == {"ce", "max"}


# the stages


@pytest.mark.parametrize("base", BASES)
def test_the_second_stage_takes_prototypes_of_the_first_ones_bag_vectors(base):
    model = make(base, prototypes=3)
    first, second = model.stages()
    assert (first.name, second.name) == ("base", "intervention")
    assert second.model is model
    assert first.model.dictionary is None
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training = bags(9)
    second.start(first.model.eval(), iter(training))
    rows = torch.cat([first.model(bag).embedding.view(-1, WIDTHS[base]) for bag in training])
    torch.testing.assert_close(model.dictionary.prototypes, find_prototypes(rows.detach(), 3))
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"dictionary.prototypes"}


class InMemory:
    def __init__(self, bags):
        self.bags = bags

    def __len__(self):
        return len(self.bags)

    def stream(self, order):
        return (self.bags[index] for index in order)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("base", BASES)
def test_the_loop_trains_both_stages(base, monkeypatch):
    monkeypatch.setattr("asmil.machine.bf16.cpu_has_bf16", lambda: True)  # without the instructions torch emulates it
    model = make(base, classes=2, prototypes=3)
    started = model.dictionary.prototypes.clone()
    changes = {"training": {"epochs": 2, "precision": "bf16"}}
    records = []
    trainer = Trainer(
        model, Classification(["a", "b"]), resolve("ibmil", changes=changes), seed=0, on_epoch=records.append
    )
    trainer.fit(LabeledBags(InMemory(bags(6)), np.arange(6) % 2), None)
    assert [record["stage"] for record in records] == ["base"] * 2 + ["intervention"] * 2
    assert not torch.equal(model.dictionary.prototypes, started)
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())


def test_fewer_training_slides_than_prototypes():
    model = make(prototypes=8)
    first, second = model.stages()
    second.start(first.model, bags(3))
    assert model.dictionary.used.sum() == 3
    assert torch.isfinite(model(Bag(tiles())).logits).all()


def test_without_prototypes_there_is_one_stage():
    (stage,) = (model := make(prototypes=0)).stages()
    assert stage.model is model
    assert "confounder_attention" not in model(Bag(tiles())).extras


def test_learned_prototypes_start_from_the_clustering_and_get_a_gradient():
    model = make(prototypes=2, learn_prototypes=True)
    first, second = model.stages()
    second.start(first.model, bags(6))
    assert model.dictionary.prototypes.requires_grad
    model.loss([model(Bag(tiles()))], torch.tensor([0]), TASK).total.backward()
    assert model.dictionary.prototypes.grad.abs().max() > 0
    assert not make().dictionary.prototypes.requires_grad


# official layouts


def layers(**shapes):
    tensors = {}
    for name, shape in shapes.items():
        name = name.replace("__", ".")
        tensors |= {f"{name}.weight": torch.randn(shape), f"{name}.bias": torch.randn(shape[0])}
    return tensors


def test_layouts_with_and_without_a_dictionary():
    plain = layers(attention__0=(16, 16), attention__2=(1, 16), classifier=(2, 16))
    alone = official.load(plain)
    assert (alone.config.base, alone.config.prototypes) == ("plain", 0)
    book = layers(W_q=(6, 16), W_k=(6, 16)) | {"confounder_feat": torch.randn(4, 16)}
    added = official.load(plain | book, {"merge": "sub"})
    assert (added.config.prototypes, added.config.joint, added.config.merge) == (4, 6, "sub")
    with pytest.raises(AsmilError, match=r"classifier\.weight.*\(2.*16\)"):
        official.load(plain | book)
    assert official.load(plain, {"num_confounders": 0, "num_classes": 2}).config.base == "plain"
    streams = layers(i_classifier__fc__0=(2, 16), b_classifier__q=(9, 16)) | {
        "b_classifier.fcc.weight": torch.randn(2, 2, 16),
        "b_classifier.fcc.bias": torch.randn(2),
    }
    assert type(official.load(streams)).__name__ == "DSMIL"
    first = official.load(streams, {"stage": 1})
    assert (first.config.base, first.config.query_width, first.config.prototypes) == ("dsmil", 9, 0)


@pytest.mark.parametrize("prototypes", [0, 4])
def test_transmil_layout(prototypes):
    model = make("transmil", prototypes=prototypes, joint=6)
    names = {f"base.{ours}." if ours != "head" else "head.": f"{theirs}." for ours, theirs in LAYERS.items()}
    names |= {"dictionary.query.": "confounder_W_q.", "dictionary.key.": "confounder_W_k."}
    names |= {"dictionary.prototypes": "confounder_feat", "base.class_token": "cls_token"}
    tensors = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in names.items():
            if name.startswith(ours):
                tensors[name.replace(ours, theirs, 1)] = tensor
    tensors["cls_token"] = tensors["cls_token"].unsqueeze(0)
    loaded = official.load(tensors, {"stage": 2 if prototypes else 1})
    assert (loaded.config.base, loaded.config.prototypes) == ("transmil", prototypes)
    torch.testing.assert_close(loaded(Bag(tiles())).logits, model(Bag(tiles())).logits)


def test_refusals_and_presets():
    with pytest.raises(AsmilError, match=r"model\.base = plain.*model\.base=gated"):
        make("plain", inner=8)
    config = resolve("ibmil", "official")
    assert (config.model.base, config.model.loss) == ("plain", "bce")
