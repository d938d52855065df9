import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.demil import candidate_probabilities, candidate_update
from asmil.models.inference import infer
from asmil.tasks.classification import Classification


def make(outputs=3, **options):
    torch.manual_seed(0)
    return build("demil", 10, outputs, inner=8, **options)


def plain_scores(model, h):
    v = h @ model.value.weight.T + model.value.bias
    u = v if model.gate is None else h @ model.gate.weight.T + model.gate.bias
    gates = torch.tanh(v) * torch.sigmoid(u)
    for layer in model.scorer:
        gates = torch.relu(gates) if isinstance(layer, torch.nn.ReLU) else gates @ layer.weight.T + layer.bias
    return gates[:, 0]


@pytest.mark.parametrize("tie_gates", [False, True])
@pytest.mark.parametrize("score_hidden", [None, 5])
def test_equals_its_formulas(tie_gates, score_hidden):
    model, x = make(tie_gates=tie_gates, score_hidden=score_hidden).eval(), torch.randn(6, 10)
    layer = model.embedding.layers[0]
    h = torch.relu(x @ layer.weight.T + layer.bias)
    s = torch.sigmoid(plain_scores(model, h))
    output = model(Bag(x))
    torch.testing.assert_close(output.extras["attention_unnormalized"][0], s)
    torch.testing.assert_close(model.tile_map(output), s / s.sum())
    torch.testing.assert_close(output.logits, (s / s.sum()) @ h @ model.head.weight.T)


def test_attention_is_bounded_by_the_sigmoid():
    model = make().eval()
    output = model(Bag(torch.randn(20, 10)))
    s, attention = output.extras["attention_unnormalized"][0], model.tile_map(output)
    assert ((s > 0) & (s < 1)).all()
    assert (attention[:, None] / attention <= 1 / s + 1e-4).all()
    equal = model(Bag(torch.ones(4, 10)))
    torch.testing.assert_close(model.tile_map(equal), torch.full((4,), 0.25))


def test_sigmoid_head_is_never_sharper_than_e_to_one():
    model = make(2, head="sigmoid_softmax", entropy_weight=1e-3).eval()
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([-50.0, 50.0]))
    output = model(Bag(torch.randn(5, 10)))
    torch.testing.assert_close(output.logits, torch.tensor([0.0, 1.0]))
    assert float(torch.softmax(output.logits.detach(), dim=0)[1]) == pytest.approx(0.7311, abs=1e-4)
    torch.testing.assert_close(model.train()(Bag(torch.randn(5, 10))).logits, torch.tensor([1e-5, 1 - 1e-5]))
    with pytest.raises(AsmilError, match="head=linear"):
        make(1, head="sigmoid_softmax")


def test_loss_with_entropy_and_candidate_labels():
    model = make(head="sigmoid_softmax", entropy_weight=0.1).eval()
    output = model(Bag(torch.randn(5, 10)))
    s = output.extras["attention_unnormalized"]
    entropy = -(s * s.log()).sum()
    log_p = torch.log_softmax(output.logits, dim=0)
    task = Classification(["a", "b", "c"])
    loss = model.loss([output], torch.tensor([[0.25, 0.75, 0.0]]), task)
    torch.testing.assert_close(loss.total, -(0.25 * log_p[0] + 0.75 * log_p[1]) + 0.1 * entropy)
    torch.testing.assert_close(loss.parts["entropy"], entropy)
    torch.testing.assert_close(model.loss([output], torch.tensor([1]), task).total, -log_p[1] + 0.1 * entropy)
    assert set(make().loss([output], torch.tensor([1]), task).parts) == {"ce"}


def test_entropy_is_a_mean_over_the_bags_of_a_step():
    model, task = make(entropy_weight=0.5), Classification(["a", "b", "c"])
    outputs = [model(Bag(torch.randn(n, 10))) for n in (2, 9)]
    losses = [model.loss([output], torch.tensor([0]), task) for output in outputs]
    both = model.loss(outputs, torch.tensor([0, 0]), task)
    torch.testing.assert_close(both.total, (losses[0].total + losses[1].total) / 2)


def test_candidate_labels():
    t, p = torch.tensor([0.5, 0.0, 0.5]), torch.tensor([0.2, 0.5, 0.3])
    torch.testing.assert_close(candidate_probabilities(t, p), torch.tensor([0.4, 0.0, 0.6]))
    torch.testing.assert_close(candidate_update(t, p, 0.75), torch.tensor([0.475, 0.0, 0.525]))
    assert torch.equal(candidate_update(t, p, 1.0), t)
    one = torch.tensor([0.0, 1.0, 0.0])
    assert torch.equal(candidate_update(one, p, 0.3), one)


def test_detached_denominator_changes_the_gradient_not_the_value():
    x, results = Bag(torch.randn(6, 10)), []
    for detach in (False, True):
        model = make(detach_denominator=detach)
        output = model(x)
        output.logits[0].backward()
        results.append((output.logits.detach(), model.scorer[0].weight.grad))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert not torch.allclose(results[0][1], results[1][1])
    model = make(detach_denominator=True)
    h = model.embed(x.features)
    s = torch.sigmoid(model.score(h))
    (model.head((s / s.sum().detach() @ h)[0]))[0].backward()
    torch.testing.assert_close(results[1][1], model.scorer[0].weight.grad)


def test_streams_like_the_whole_bag():
    for detach in (False, True):
        model, bag = make(detach_denominator=detach), Bag(torch.randn(50, 10))
        torch.testing.assert_close(infer(model, bag, chunk_tiles=7).logits, infer(model, bag).logits)


def test_one_output_has_two_gate_units():
    model = make(1)
    assert model.value.weight.shape == (2, 8)
    assert model(Bag(torch.randn(3, 10))).logits.shape == (1,)


def test_classifier_can_be_left_at_its_start():
    model = make(train_classifier=False)
    model(Bag(torch.randn(3, 10))).logits.sum().backward()
    assert model.head.weight.grad is None
    assert not any(p is model.head.weight for group in model.parameter_groups() for p in group["params"])


def demipl_tensors():
    torch.manual_seed(2)
    shapes = {
        "feature_extractor_part2.0": (8, 10),
        "linear_V": (3, 8),
        "linear_U": (3, 8),
        "attention_weights.0": (5, 3),
        "attention_weights.2": (1, 5),
        "classifier.0": (3, 8),
    }
    weights = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    return weights | {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}


def test_loads_demipl_with_tied_gates_unless_told_otherwise():
    tied = official.load(demipl_tensors(), {"w_entropy": 0.01})
    assert (tied.config.tie_gates, tied.config.score_hidden, tied.config.head) == (True, 5, "sigmoid_softmax")
    assert tied.config.entropy_weight == 0.01
    untied = official.load(demipl_tensors(), {"tie_gates": False})
    assert torch.equal(untied.gate.weight, demipl_tensors()["linear_U.weight"])


def test_loads_the_image_form_of_the_pooling():
    tensors = {name: tensor for name, tensor in demipl_tensors().items() if not name.startswith(("feature", "class"))}
    tensors |= {"linear": torch.randn(8, 3), "fbank": torch.randn(8, 3)}
    model = official.load(tensors, {"pooling": "mha", "detach_denominator": True})
    assert (model.in_features, model.config.embedding_layers, model.config.score_hidden) == (8, 0, 5)
    assert model.config.detach_denominator
    x = torch.randn(4, 8)
    s = torch.sigmoid(plain_scores(model, x))
    torch.testing.assert_close(model(Bag(x)).logits, (s / s.sum()) @ x @ tensors["linear"])
