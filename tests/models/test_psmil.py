import copy

import pytest
import torch
from torch.nn.functional import normalize

from asmil import Anchor, AsmilError, Bag, build
from asmil.models import official
from asmil.tasks.classification import Classification


def make(outputs=3, **options):
    torch.manual_seed(0)
    return build("psmil", 6, outputs, **options)


def started(outputs=3, **options):
    """A model whose prototypes differ, as after some training."""
    model = make(outputs, **options)
    model.prototypes.copy_(normalize(torch.randn_like(model.prototypes), dim=0))
    model.initialized.fill_(True)
    return model


def test_equals_its_formulas():
    model, x = started().eval(), torch.randn(8, 6)
    p = torch.softmax(x @ model.prototypes, dim=1)
    attention = torch.softmax(p @ model.attention.weight[0] + model.attention.bias, dim=0)
    output = model(Bag(x))
    torch.testing.assert_close(output.extras["prototype_probs"], p)
    torch.testing.assert_close(model.tile_map(output), attention)
    torch.testing.assert_close(output.logits, attention @ x @ model.head.weight.T)
    torch.testing.assert_close(output.instance_logits, x @ model.head.weight.T)


def test_hard_branch_is_averaged_with_the_soft_one():
    model, x = started(hard_branch=True).eval(), torch.randn(8, 6)
    p = torch.softmax(x @ model.prototypes, dim=1)
    w, bias = model.attention.weight[0], model.attention.bias
    soft = torch.softmax(p @ w + bias, dim=0)
    hard = torch.softmax(w[p.argmax(dim=1)] + bias, dim=0)
    output = model(Bag(x))
    assert output.scores.shape == (2, 8)
    torch.testing.assert_close(model.tile_map(output), (soft + hard) / 2)
    torch.testing.assert_close(output.embedding, (soft + hard) / 2 @ x)


def test_first_training_call_starts_from_the_mean_of_the_bag():
    model, x = make().train(), torch.randn(8, 6)
    output = model(Bag(x))
    assert bool(model.initialized)
    torch.testing.assert_close(model.prototypes, x.mean(dim=0)[:, None].expand(6, 3))
    assert torch.equal(output.extras["prototype_probs"], torch.full((8, 3), 1 / 3))
    torch.testing.assert_close(output.embedding, x.mean(dim=0))
    before = model.prototypes.clone()
    model.after_step(Bag(x), output, torch.tensor([2]))
    torch.testing.assert_close(model.prototypes[:, 2], normalize(0.99 * before[:, 2] + 0.01 * x[0], dim=0))
    assert torch.equal(model.prototypes[:, :2], before[:, :2])
    model(Bag(torch.randn(8, 6)))
    assert torch.equal(model.prototypes[:, :2], before[:, :2]), "only the first call starts them"


def test_inference_starts_and_moves_nothing():
    model, bag = make().eval(), Bag(torch.randn(8, 6))
    output = model(bag)
    torch.testing.assert_close(model.tile_map(output), torch.full((8,), 1 / 8))
    model.after_step(bag, output, torch.tensor([1]))
    assert not bool(model.initialized)
    assert not model.prototypes.any()


@pytest.mark.parametrize("momentum", [0.99, 0.5, 0.0])
def test_top1_moves_the_prototype_of_the_class_to_its_likeliest_tile(momentum):
    model, x = started(momentum=momentum).train(), torch.randn(8, 6)
    before = model.prototypes.clone()
    output = model(Bag(x))
    model.after_step(Bag(x), output, torch.tensor([1]))
    best = torch.softmax(x @ before, dim=1)[:, 1].argmax()
    torch.testing.assert_close(
        model.prototypes[:, 1], normalize(momentum * before[:, 1] + (1 - momentum) * x[best], dim=0)
    )
    torch.testing.assert_close(model.prototypes.norm(dim=0), torch.ones(3))
    assert torch.equal(model.prototypes[:, [0, 2]], before[:, [0, 2]])


def test_mean_of_predicted_falls_back_to_the_bag_feature():
    model = started(2, update="mean_of_predicted", momentum=0.5)
    model.train()
    before = model.prototypes.clone()
    x = torch.randn(8, 6)
    labels = (x @ before).argmax(dim=1)
    x = x[labels == labels[0]]
    there, absent = int(labels[0]), 1 - int(labels[0])
    output = model(Bag(x))
    model.after_step(Bag(x), output, torch.tensor([there]))
    model.after_step(Bag(x), output, torch.tensor([absent]))
    torch.testing.assert_close(
        model.prototypes[:, there], normalize(0.5 * before[:, there] + 0.5 * x.mean(dim=0), dim=0)
    )
    torch.testing.assert_close(
        model.prototypes[:, absent], normalize(0.5 * before[:, absent] + 0.5 * output.embedding.detach(), dim=0)
    )


def test_tasks_without_classes_move_no_prototype():
    model, bag = started().train(), Bag(torch.randn(8, 6))
    before = model.prototypes.clone()
    output = model(bag)
    for target in (torch.tensor([[2, 1]]), torch.tensor([0.5])):
        model.after_step(bag, output, target)
    assert torch.equal(model.prototypes, before)


def test_gradients_reach_the_embedding_through_the_bag_feature_alone():
    model = started(2, embedding_layers=2, inner=4, momentum=0.9).train()
    output = model(Bag(torch.randn(5, 6)))
    assert not output.extras["prototype_probs"].requires_grad
    model.loss([output], torch.tensor([0]), Classification(["a", "b"])).total.backward()
    assert model.embedding.layers[0].weight.grad.abs().max() > 0
    assert model.attention.weight.grad.abs().max() > 0
    assert model.head.weight.grad.abs().max() > 0


def test_candidates_are_those_of_the_forward_pass():
    model = started(2, embedding_layers=1, inner=4, momentum=0.0).train()
    x = torch.randn(5, 6)
    output = model(Bag(x))
    with torch.no_grad():
        h = model.embed(x)
        best = h[torch.softmax(h @ model.prototypes, dim=1)[:, 0].argmax()]
        model.embedding.layers[0].weight.zero_()
    model.after_step(Bag(x), output, torch.tensor([0]))
    torch.testing.assert_close(model.prototypes[:, 0], normalize(best, dim=0))


def test_one_output_has_a_prototype_for_each_of_two_classes():
    model, bag = make(1).train(), Bag(torch.randn(5, 6))
    output = model(bag)
    assert output.logits.shape == (1,)
    for y in (0, 1):
        model.after_step(bag, output, torch.tensor([y]))
    torch.testing.assert_close(model.prototypes.norm(dim=0), torch.ones(2))


def test_a_loaded_state_decides_whether_prototypes_start():
    fresh = make().state_dict()
    trained = started().state_dict()
    model = make().train()
    model(Bag(torch.randn(4, 6)))
    model.load_state_dict(fresh)
    x = torch.randn(4, 6)
    model(Bag(x))
    torch.testing.assert_close(model.prototypes[:, 0], x.mean(dim=0))
    model.load_state_dict(trained)
    model(Bag(x))
    assert torch.equal(model.prototypes, trained["prototypes"])


def test_an_anchor_follows_the_prototypes():
    model, bag = make().train(), Bag(torch.randn(8, 6))
    anchor = Anchor(model)
    output = model(bag)
    assert torch.isfinite(anchor.loss(bag, output.scores))
    model.after_step(bag, output, torch.tensor([1]))
    anchor.update(model)
    assert torch.equal(anchor.copy.prototypes, model.prototypes)
    assert torch.isfinite(anchor.loss(bag, model(bag).scores))


def test_copies_keep_their_own_prototypes():
    model = make().train()
    other = copy.deepcopy(model)
    model(Bag(torch.randn(4, 6)))
    assert not other.prototypes.any()
    x = torch.randn(4, 6)
    other(Bag(x))
    torch.testing.assert_close(other.prototypes[:, 0], x.mean(dim=0))


def official_tensors(width=6, classes=2):
    torch.manual_seed(3)
    return {
        "fbank": torch.randn(width, classes),
        "linear": torch.randn(width, classes),
        "ps_attention.0.weight": torch.randn(1, classes),
        "ps_attention.0.bias": torch.randn(1),
        "linear_V.weight": torch.randn(classes, width),
        "linear_V.bias": torch.randn(classes),
        "linear_U.weight": torch.randn(classes, width),
        "linear_U.bias": torch.randn(classes),
    }


def test_loads_slides_and_small_bags_by_their_names():
    tensors = official_tensors()
    model = official.load(tensors)
    assert (model.config.embedding_layers, model.config.update, model.config.momentum) == (0, "top1", 0.99)
    torch.testing.assert_close(model.prototypes.norm(dim=0), torch.ones(2))
    for place, width in ((0, 9), (2, 6)):
        tensors |= {f"stem.{place}.weight": torch.randn(6, width), f"stem.{place}.bias": torch.randn(6)}
    model = official.load(tensors, {"pooling": "psa"})
    assert (model.in_features, model.config.embedding_layers, model.config.update) == (9, 2, "mean_of_predicted")
    assert type(official.load(tensors, {"pooling": "mha"})).__name__ == "DEMIL"
    first = official.load(official_tensors(), {"prototypes": "bag mean (first call)"})
    assert not bool(first.initialized)


def test_embedding_width_must_fit_when_there_is_no_embedding():
    with pytest.raises(AsmilError, match=r"6 .*4 .*embedding_layers=1"):
        make(inner=4)
