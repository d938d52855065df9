import math

import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.attention.divergences import negative_entropy
from asmil.attention.normalizers import NSF, Softmax
from asmil.models import official
from asmil.models.inference import infer
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification
from plain_methods.aem import PlainQueryPool

TASK = Classification(["a", "b", "c"])
BASES = ["abmil", "mha", "dsmil"]


def make(base, seed=0, classes=3, **options):
    torch.manual_seed(seed)
    return build("aem", 16, classes, base=base, **options).eval()


def tiles(count=20, seed=0):
    return torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))


def test_negative_entropy_of_uniform_of_one_and_of_no_weight():
    torch.testing.assert_close(negative_entropy(torch.zeros(2, 8).log_softmax(1)), torch.full((2,), -math.log(8)))
    assert negative_entropy(torch.zeros(1, 1).log_softmax(1)).item() == 0
    scores = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    value = negative_entropy(torch.log_softmax(scores, dim=1))
    torch.testing.assert_close(value, torch.tensor([-math.log(2)]))
    value.sum().backward()
    torch.testing.assert_close(scores.grad, torch.zeros(1, 3))


@pytest.mark.parametrize("base", BASES)
def test_loss_is_the_bases_plus_the_weighted_term(base):
    model = make(base, weight=0.3)
    outputs, targets = [model(Bag(tiles(seed=seed))) for seed in (0, 1)], torch.tensor([1, 2])
    loss = model.loss(outputs, targets, TASK)
    entropies = []
    for output in outputs:
        a = torch.softmax(output.scores, dim=1)
        entropies.append((a * a.log()).sum(dim=1).mean())
    torch.testing.assert_close(loss.parts["negative_entropy"], sum(entropies) / 2)
    expected = model.base.loss(outputs, targets, TASK).total + 0.3 * sum(entropies) / 2
    torch.testing.assert_close(loss.total, expected)


def test_rows_are_the_bases():
    rows = {"abmil": 1, "mha": 8, "dsmil": 3}
    for base, count in rows.items():
        assert make(base)(Bag(tiles())).scores.shape == (count, 20)


@pytest.mark.parametrize("base", BASES)
def test_a_step_spreads_attention(base):
    model = make(base, weight=5.0).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = model.negative_entropy(model(Bag(tiles())))
    for _ in range(5):
        optimizer.zero_grad()
        output = model(Bag(tiles()))
        model.loss([output], torch.tensor([0]), TASK).total.backward()
        optimizer.step()
    after = model.negative_entropy(model(Bag(tiles())))
    assert after < before


@pytest.mark.parametrize("base", BASES)
def test_one_tile_has_no_entropy_and_gives_no_gradient(base):
    model = make(base).train()
    loss = model.loss([model(Bag(tiles(1)))], torch.tensor([0]), TASK)
    assert loss.parts["negative_entropy"].item() == 0
    loss.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_annealing_lowers_the_weight_along_a_cosine():
    model = make("abmil", weight=0.4, annealing="cosine")
    weights = []
    for step in (0, 5, 9):
        model.before_step(step, 10)
        weights.append(model.weight)
    assert weights == pytest.approx([0.4, 0.2, 0.4 * (1 + math.cos(0.9 * math.pi)) / 2])
    constant = make("abmil", weight=0.4)
    constant.before_step(9, 10)
    assert constant.weight == 0.4


@pytest.mark.parametrize("heads", [1, 4, 8])
def test_multi_head_base_equals_the_form_with_keys_and_values(heads):
    model = make("mha", heads=heads, init_std=1.0, dropout=0.0).double()
    plain = PlainQueryPool(model.base).double().eval()
    x = tiles().double()
    logits, scores = plain.read(x)
    with torch.no_grad():
        output = model(Bag(x))
    torch.testing.assert_close(output.logits, logits)
    torch.testing.assert_close(output.scores, scores)
    model(Bag(x)).logits[1].backward()
    logits[1].backward()
    torch.testing.assert_close(model.base.embedding.layers[0].weight.grad, plain.embedding.weight.grad)
    torch.testing.assert_close(model.base.query.grad, plain.query.grad)
    torch.testing.assert_close(model.base.block.k_weight.grad[0], plain.k.weight.grad)
    torch.testing.assert_close(model.base.block.v_weight.grad[0], plain.v.weight.grad)


class PlainSoftmax(Softmax):
    """Another type, so that the pool does not take its fused form."""


def test_gradient_of_the_term_passes_through_the_fused_pool():
    fused = make("mha", init_std=1.0, dropout=0.0, weight=1.0).double()
    plain = make("mha", init_std=1.0, dropout=0.0, weight=1.0).double()
    plain.normalizer = PlainSoftmax()
    for model in (fused, plain):
        model.loss([model(Bag(tiles().double()))], torch.tensor([1]), TASK).total.backward()
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_dsmil_base_predicts_by_the_mean():
    output = make("dsmil")(Bag(tiles()))
    both = [torch.softmax(output.extras[name], dim=0) for name in ("bag_logits", "max_logits")]
    torch.testing.assert_close(torch.softmax(output.logits, dim=0), sum(both) / 2)


@pytest.mark.parametrize("base", BASES)
def test_in_chunks_and_with_another_normalizer(base):
    model = make(base)
    whole, parts = infer(model, Bag(tiles(50))), infer(model, Bag(tiles(50)), chunk_tiles=7)
    torch.testing.assert_close(parts.logits, whole.logits)
    torch.testing.assert_close(parts.scores, whole.scores)
    model.normalizer = NSF()
    other = model(Bag(tiles(50)))
    assert not torch.allclose(other.logits, whole.logits)
    attention = torch.sigmoid(other.scores) / torch.sigmoid(other.scores).sum(dim=1, keepdim=True)
    torch.testing.assert_close(model.negative_entropy(other), (attention * attention.log()).sum(dim=1).mean())
    torch.testing.assert_close(model.tile_map(other).sum(), torch.tensor(1.0))


def test_official_tensors_are_aem_where_a_weight_is_given():
    names = ["attention.attention_V.0", "attention.attention_U.0", "attention.attention_weights", "classifier.fc"]
    shapes = [(128, 8), (128, 8), (1, 128), (2, 8)]
    tensors = {"dimreduction.fc1.weight": torch.randn(8, 12)}
    for name, shape in zip(names, shapes, strict=True):
        tensors |= {f"{name}.weight": torch.randn(shape), f"{name}.bias": torch.randn(shape[0])}
    aem, abmil = official.load(tensors, {"lambda_": 0.7}), official.load(tensors)
    assert (type(aem).__name__, type(abmil).__name__) == ("AEM", "ABMIL")
    assert aem.weight == 0.7
    x = torch.randn(5, 12)
    torch.testing.assert_close(aem(Bag(x)).logits, abmil(Bag(x)).logits)


def test_refusals():
    with pytest.raises(AsmilError, match=r"width 10 .*model\.heads = 8"):
        make("mha", inner=10)
    with pytest.raises(AsmilError, match=r"model\.base = dsmil"):
        make("dsmil", mil_dropout=2)


def test_presets():
    assert resolve("aem", "official").training.optimizer == "adamw"
    assert resolve("aem").model.weight == 0.1
