import math

import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.blocks.dual_stream import mean_prediction
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification
from plain_methods.dsmil import PlainDSMIL

TASK = Classification(["a", "b", "c"])


def make(classes=3, seed=0, **options):
    torch.manual_seed(seed)
    return build("dsmil", 16, classes, **options).eval()


def tiles(count=20, seed=0, width=16):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


FORMS = [
    {},
    {"query": "linear", "query_width": 6},
    {"query": "linear", "values": True},
    {"query_hidden": 9, "query_width": 5, "values": True},
]


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 33])
def test_equals_the_form_with_a_query_a_tile_a_sort_and_a_convolution(options, classes, count):
    model = make(classes, **options).double()
    x = tiles(count).double()
    logits, instance_logits, scores = PlainDSMIL(model).double().eval().read(x)
    output = model(Bag(x))
    torch.testing.assert_close(output.logits, logits)
    torch.testing.assert_close(output.instance_logits, instance_logits)
    torch.testing.assert_close(output.scores, scores.t())
    torch.testing.assert_close(output.extras["max_logits"], instance_logits.amax(dim=0))
    assert torch.equal(output.extras["critical_index"], instance_logits.argmax(dim=0))
    assert output.embedding.shape == (classes * 16,)


@pytest.mark.parametrize("options", FORMS)
def test_gradients_equal_those_of_the_plain_form(options):
    model = make(**options).double()
    plain = PlainDSMIL(model).double()
    x, target = tiles().double(), torch.tensor([2])
    model.loss([model(Bag(x))], target, TASK).total.backward()
    logits, instance_logits, _ = plain.read(x)
    loss = 0.5 * functional.cross_entropy(logits[None], target)
    (loss + 0.5 * functional.cross_entropy(instance_logits.amax(dim=0)[None], target)).backward()
    pairs = [(model.streams.instance, plain.instance), (model.head, plain.head)]
    queries = [plain.query] if len(model.streams.query) == 1 else [plain.query[0], plain.query[2]]
    pairs += list(zip(model.streams.query, queries, strict=True))
    if model.streams.value is not None:
        pairs.append((model.streams.value, plain.value[1]))
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad.flatten(start_dim=1))
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)


def test_the_instance_classifier_learns_from_the_critical_tiles_alone():
    model = make().train()
    x = tiles()
    output = model(Bag(x))
    model.loss([output], torch.tensor([0]), TASK).total.backward()
    error = torch.softmax(output.extras["max_logits"], dim=0) - torch.tensor([1.0, 0, 0])
    expected = 0.5 * error.unsqueeze(1) * x[output.extras["critical_index"]]
    torch.testing.assert_close(model.streams.instance.weight.grad, expected.detach())


def test_of_equal_tiles_the_first_is_critical_and_both_weigh_the_same():
    # short fractions, so that scores of equal tiles are equal wherever a matrix product splits its rows
    x = (tiles(5) * 4).round().div(4).repeat(2, 1)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 8).round() / 8)
    output = model(Bag(x))
    assert (output.extras["critical_index"] < 5).all()
    torch.testing.assert_close(output.scores[:, :5], output.scores[:, 5:])


def test_binary_loss_is_one_question_a_class():
    model = make(loss="bce")
    output = model(Bag(tiles()))
    logits, top = output.extras["bag_logits"], output.extras["max_logits"]
    loss = model.loss([output, output], torch.tensor([1, 1]), TASK)
    bce = functional.binary_cross_entropy_with_logits
    wanted = torch.tensor([0.0, 1.0, 0.0])
    torch.testing.assert_close(loss.total, 0.5 * bce(logits, wanted) + 0.5 * bce(top, wanted))
    assert set(loss.parts) == {"bce", "max"}
    # the class beyond the outputs is the negative one
    negative = model.loss([output], torch.tensor([3]), TASK).total
    torch.testing.assert_close(negative, 0.5 * bce(logits, torch.zeros(3)) + 0.5 * bce(top, torch.zeros(3)))


@pytest.mark.parametrize("label", [0, 1])
def test_with_one_output_the_class_is_the_target(label):
    output = make(1)(Bag(tiles()))
    task = Classification(["a", "b"], single_output=True)
    losses = [make(1, loss=kind).loss([output], torch.tensor([label]), task).total for kind in ("bce", "task")]
    torch.testing.assert_close(losses[0], losses[1])


class Durations(Classification):
    def class_index(self, targets):
        return None


def test_binary_loss_needs_classes():
    model = make(5, loss="bce")
    with pytest.raises(AsmilError, match=r"model\.loss = bce.*model\.loss=task"):
        model.loss([model(Bag(tiles()))], torch.tensor([2]), Durations(["early", "late"]))


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_prediction_by_the_mean_of_both_streams(classes):
    output = make(classes, predict="mean")(Bag(tiles()))
    link = torch.sigmoid if classes == 1 else lambda logits: torch.softmax(logits, dim=0)
    both = [link(output.extras[name]) for name in ("bag_logits", "max_logits")]
    torch.testing.assert_close(link(output.logits), sum(both) / 2)
    torch.testing.assert_close(output.extras["bag_logits"], make(classes)(Bag(tiles())).logits)


def test_the_mean_of_extreme_logits_is_finite():
    far = torch.tensor([500.0, -500.0])
    torch.testing.assert_close(mean_prediction(far, -far), torch.full((2,), math.log(0.5)))
    torch.testing.assert_close(mean_prediction(far[:1], far[1:]), torch.zeros(1))


def test_the_heat_map_is_the_row_of_the_predicted_class():
    for seed in range(4):
        model = make(seed=seed)
        output = model(Bag(tiles(seed=seed)))
        expected = torch.softmax(output.scores[output.logits.argmax()], dim=0)
        torch.testing.assert_close(model.tile_map(output), expected)


def test_attend_forms_no_value():
    model = make(values=True)
    scores = model(Bag(tiles())).scores
    model.streams.value = model.head = None
    torch.testing.assert_close(model.attend(Bag(tiles())), scores)


def test_orthogonal_start():
    model = make(init="orthogonal")
    weight = model.streams.query[0].weight
    torch.testing.assert_close(weight.t() @ weight, torch.eye(16))
    torch.testing.assert_close(model.head.weight @ model.head.weight.t(), torch.eye(3))
    assert model.head.bias.abs().max() == 0


def test_dropout_acts_on_learned_values_in_training_only():
    model = make(values=True, dropout=0.5).train()
    first, second = (model(Bag(tiles())) for _ in range(2))
    assert torch.equal(first.scores, second.scores)
    assert not torch.equal(first.logits, second.logits)
    model.eval()
    assert torch.equal(model(Bag(tiles())).logits, model(Bag(tiles())).logits)


def test_official_preset_trains_as_the_authors():
    config = resolve("dsmil", "official")
    assert (config.model.loss, config.model.init) == ("bce", "orthogonal")
    assert (config.training.weight_decay, config.training.early_stopping) == (1e-3, 10)


def test_old_checkpoints_are_refused_by_what_they_lack():
    names = ("i_classifier.fc.0", "b_classifier.q.0", "b_classifier.fcc")
    tensors = {f"{name}.{leaf}": torch.zeros(2, 2) for name in names for leaf in ("weight", "bias")}
    with pytest.raises(AsmilError, match=r"lacks b_classifier\.q\.2\.weight"):
        official.load(tensors)


def test_half_precision_computes_near_the_full_one():
    model, x = make(query="linear"), tiles(200)
    full = model(Bag(x)).scores
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(Bag(x.half()))
        loss = model.loss([output], torch.tensor([1]), TASK).total
    loss.backward()
    assert output.scores.dtype == torch.bfloat16
    torch.testing.assert_close(output.scores.float(), full, rtol=0.1, atol=0.1)
    assert torch.isfinite(model.streams.query[0].weight.grad).all()
