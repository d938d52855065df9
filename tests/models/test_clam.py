import math

import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.blocks.instance_loss import is_decisive, smooth_svm
from asmil.models.clam import percentiles
from asmil.models.inference import infer
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification

SMALL = {"inner": 12, "attention": 7}


def task(classes):
    return Classification([str(c) for c in range(classes)])


def plain_forward(model, x):
    """h, scores and logits, tile by tile as the formulas say."""
    h = torch.relu(x @ model.embedding.layers[0].weight.T + model.embedding.layers[0].bias)
    network = model.attention
    hidden = torch.tanh(h @ network.value.weight.T + network.value.bias)
    if network.gate is not None:
        hidden = hidden * torch.sigmoid(h @ network.gate.weight.T + network.gate.bias)
    z = (hidden @ network.weight.weight.T + network.weight.bias).T
    pooled = torch.softmax(z, dim=1) @ h
    if len(z) == 1:
        return h, z, model.head.weight @ pooled[0] + model.head.bias
    logits = [model.head.weight[c] @ pooled[c] + model.head.bias[c] for c in range(len(z))]
    return h, z, torch.stack(logits)


def plain_cluster_loss(model, h, z, label, k, subtyping, loss):
    """The clustering loss in a loop over the classes, from a full sort."""
    total = 0.0
    for c, head in enumerate(model.cluster_heads):
        order = z[c if len(z) > 1 else 0].argsort(descending=True)
        top, bottom = order[:k], order.flip(0)[:k]
        if c == label:
            targets = torch.tensor([1] * k + [0] * k)
            total = total + loss(head(h[torch.cat([top, bottom])]), targets)
        elif subtyping:
            total = total + loss(head(h[top]), torch.zeros(k, dtype=torch.int64))
    return total / len(model.cluster_heads) if subtyping else total


@pytest.mark.parametrize("name", ["clam_sb", "clam_mb"])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("classes", "subtyping"), [(2, False), (2, True), (4, "auto")])
@pytest.mark.parametrize("kind", ["ce", "svm"])
def test_equals_its_formulas(name, gated, classes, subtyping, kind):
    torch.manual_seed(0)
    x = torch.randn(23, 9)
    model = build(name, 9, classes, gated=gated, subtyping=subtyping, instance_loss=kind, k_sample=5, **SMALL).eval()
    output = model(Bag(x))
    h, z, logits = plain_forward(model, x)
    torch.testing.assert_close(output.scores, z)
    torch.testing.assert_close(output.logits, logits)
    loss = functional.cross_entropy if kind == "ce" else lambda u, t: smooth_svm(u, t).mean()
    for label in range(classes):
        found = model.loss([output], torch.tensor([label]), task(classes))
        cluster = plain_cluster_loss(model, h, z, label, 5, classes > 2 or subtyping is True, loss)
        torch.testing.assert_close(found.parts["cluster"], cluster)
        bag = functional.cross_entropy(logits.unsqueeze(0), torch.tensor([label]))
        torch.testing.assert_close(found.total, 0.7 * bag + 0.3 * cluster)


def test_bag_loss_may_be_the_smooth_svm():
    model = build("clam_mb", 9, 3, bag_loss="svm", bag_weight=0.4, **SMALL).eval()
    output = model(Bag(torch.randn(30, 9)))
    loss = model.loss([output], torch.tensor([2]), task(3))
    svm = smooth_svm(output.logits.unsqueeze(0), torch.tensor([2]))[0]
    torch.testing.assert_close(loss.total, 0.4 * svm + 0.6 * loss.parts["cluster"])
    assert set(loss.parts) == {"ce", "svm", "cluster"}


def test_losses_are_means_over_the_bags_of_a_step():
    model = build("clam_sb", 9, 2, **SMALL).eval()
    outputs = [model(Bag(torch.randn(n, 9))) for n in (5, 30)]
    both = model.loss(outputs, torch.tensor([0, 1]), task(2)).total
    each = [model.loss([output], torch.tensor([y]), task(2)).total for y, output in enumerate(outputs)]
    torch.testing.assert_close(both, torch.stack(each).mean())


@pytest.mark.parametrize(
    ("rule", "tiles", "k"), [("official", 5, 5), ("official", 10, 8), ("half", 10, 5), ("half", 1, 1)]
)
def test_small_bags(rule, tiles, k):
    model = build("clam_mb", 9, 2, k_rule=rule, **SMALL)
    output = model(Bag(torch.randn(tiles, 9)))
    assert output.extras["cluster_logits_1"].shape == (2 * k, 2)
    assert torch.isfinite(model.loss([output], torch.tensor([1]), task(2)).total)


def test_one_tile_is_positive_and_negative_at_once():
    model = build("clam_sb", 9, 2, **SMALL).eval()
    logits = model(Bag(torch.randn(1, 9))).extras["cluster_logits_0"]
    torch.testing.assert_close(logits[0], logits[1])


@pytest.mark.parametrize(("subtyping", "trained"), [(False, [False, True, False]), (True, [True, True, True])])
def test_only_the_heads_of_the_loss_are_trained(subtyping, trained):
    model = build("clam_sb", 9, 3, subtyping=subtyping, **SMALL).train()
    model.loss([model(Bag(torch.randn(30, 9)))], torch.tensor([1]), task(3)).total.backward()
    assert [head.weight.grad is not None for head in model.cluster_heads] == trained


def test_the_clustering_does_not_reach_the_attention():
    model = build("clam_mb", 9, 2, bag_weight=0.0, **SMALL).train()
    model.loss([model(Bag(torch.randn(30, 9)))], torch.tensor([1]), task(2)).total.backward()
    assert model.embedding.layers[0].weight.grad.abs().sum() > 0
    assert all(not p.grad.any() for p in model.attention.parameters() if p.grad is not None)


@pytest.mark.parametrize(("dropout", "inside"), [(0.25, 0.25), (0.6, 0.25), (0.0, 0.0)])
def test_dropout_in_the_attention_network(dropout, inside):
    model = build("clam_sb", 9, 2, dropout=dropout, **SMALL)
    assert (model.embedding.dropout.p, model.attention.dropout.p) == (dropout, inside)


def test_percentiles_share_ranks():
    ranks = percentiles(torch.tensor([0.3, -1.0, 0.3, 5.0]))
    torch.testing.assert_close(ranks, torch.tensor([62.5, 25.0, 62.5, 100.0]))


def test_heat_maps_show_the_row_of_the_predicted_class():
    model = build("clam_mb", 9, 3, **SMALL).eval()
    output = model(Bag(torch.randn(14, 9)))
    row = output.scores[int(output.logits.argmax())]
    torch.testing.assert_close(model.tile_map(output), torch.softmax(row, dim=0))
    assert torch.equal(model.tile_map(output, "percentile").argsort(), row.argsort())
    assert float(model.tile_map(output, "percentile").max()) == 100
    single = build("clam_sb", 9, 3, **SMALL).eval()
    output = single(Bag(torch.randn(14, 9)))
    torch.testing.assert_close(single.tile_map(output), torch.softmax(output.scores[0], dim=0))


def test_streamed_output_draws_the_same_maps():
    model, bag = build("clam_mb", 9, 3, **SMALL), Bag(torch.randn(50, 9))
    whole, parts = infer(model, bag), infer(model, bag, chunk_tiles=7)
    for kind in model.map_kinds:
        torch.testing.assert_close(model.tile_map(parts, kind), model.tile_map(whole, kind))


def test_one_output_is_refused():
    with pytest.raises(AsmilError, match="class"):
        build("clam_sb", 9, 1)


def test_official_preset():
    config = resolve("clam_mb", "official")
    assert config.model.instance_loss == "svm"
    assert (config.training.lr, config.training.epochs) == (2e-4, 200)


# The smooth SVM


def plain_svm(u, t, alpha, tau):
    ordered = sorted(u, reverse=True)
    excess = [value + alpha * (j != t) - u[t] for j, value in enumerate(u)]
    if ordered[0] - ordered[1] >= tau * math.log(1000):
        return max(excess)
    return tau * math.log(sum(math.exp(value / tau) for value in excess))


@pytest.mark.parametrize(("alpha", "tau"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.3)])
def test_smooth_svm_equals_its_formula(alpha, tau):
    torch.manual_seed(0)
    scores, targets = 6 * tau * torch.randn(40, 4, dtype=torch.float64), torch.arange(40) % 4
    expected = [plain_svm(u.tolist(), int(t), alpha, tau) for u, t in zip(scores, targets, strict=True)]
    torch.testing.assert_close(smooth_svm(scores, targets, alpha, tau), torch.tensor(expected, dtype=torch.float64))
    assert 0 < is_decisive(scores, tau).sum() < 40


def test_smooth_svm_of_huge_scores_is_finite_with_its_gradient():
    scores = torch.tensor([[500.0, -500.0], [-500.0, 500.0]], requires_grad=True)
    losses = smooth_svm(scores, torch.tensor([0, 0]))
    torch.testing.assert_close(losses, torch.tensor([0.0, 1001.0]))
    losses.sum().backward()
    torch.testing.assert_close(scores.grad, torch.tensor([[0.0, 0.0], [-1.0, 1.0]]))


# Official checkpoints


def official_state(branches, entry=3, last=None, hidden=6, size=4, classes=3, width=9):
    rows = classes if branches else 1
    shapes = {"attention_net.0": (hidden, width)}
    network = f"attention_net.{entry}"
    if last is None:
        shapes |= {f"{network}.attention_{x}.0": (size, hidden) for x in "ab"}
        shapes |= {f"{network}.attention_c": (rows, size)}
    else:
        shapes |= {f"{network}.module.0": (size, hidden), f"{network}.module.{last}": (rows, size)}
    shapes |= (
        {f"classifiers.{c}": (1, hidden) for c in range(classes)} if branches else {"classifiers": (classes, hidden)}
    )
    shapes |= {f"instance_classifiers.{c}": (2, hidden) for c in range(classes)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    return state | {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("entry", [2, 3])
@pytest.mark.parametrize("last", [None, 2, 3])
def test_old_and_new_checkpoints_are_read(branches, entry, last):
    state = official_state(branches, entry, last)
    model = official.load(state, {"k_sample": 3, "subtyping": False, "bag_weight": 0.5, "inst_loss": "svm"})
    assert type(model).__name__ == ("CLAMMB" if branches else "CLAMSB")
    assert (model.config.inner, model.config.attention, model.config.gated) == (6, 4, last is None)
    assert (model.config.k_sample, model.config.bag_weight, model.config.instance_loss) == (3, 0.5, "svm")
    x = torch.randn(8, 9)
    torch.testing.assert_close(model(Bag(x)).logits, plain_forward(model, x)[2])
    torch.testing.assert_close(model.embedding.layers[0].weight, state["attention_net.0.weight"])
    name = f"attention_net.{entry}." + ("attention_c" if last is None else f"module.{last}")
    torch.testing.assert_close(model.attention.weight.weight, state[f"{name}.weight"])
    theirs = (
        torch.cat([state[f"classifiers.{c}.weight"] for c in range(3)]) if branches else state["classifiers.weight"]
    )
    torch.testing.assert_close(model.head.weight, theirs)


def test_branches_with_a_shared_head_are_refused():
    state = official_state(branches=True)
    shared = {name: value for name, value in state.items() if not name.startswith("classifiers.")}
    shared |= {"classifiers.weight": torch.randn(3, 6), "classifiers.bias": torch.randn(3)}
    with pytest.raises(AsmilError, match="does not fit"):
        official.load(shared)


@pytest.mark.parametrize("branches", [False, True])
def test_a_missing_tensor_is_named(branches):
    for name in ("instance_classifiers.0.weight", "instance_classifiers.2.weight"):
        state = official_state(branches)
        del state[name]
        with pytest.raises(AsmilError, match=f"lacks {name}"):
            official.load(state)
