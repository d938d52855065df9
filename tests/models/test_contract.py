"""What every registered method must be able to do. A method that differs by nature says so in EXCEPTIONS."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from asmil import AsmilError, Bag, build, methods
from asmil.models.inference import infer
from asmil.tasks.classification import Classification

WIDTH, CLASSES = 24, 3


@dataclass(frozen=True)
class Exceptions:
    """Where a method may differ, each with its reason.

    no_gradient: parameters that no loss reaches, or reaches only through rounding (name part -> reason)
    order_dependent: the reason why the order of the tiles matters
    """

    no_gradient: dict[str, str] = field(default_factory=dict)
    order_dependent: str = ""


SHIFT = "a constant added to all scores of a row does not change softmax"
EXCEPTIONS = {
    "abmil": Exceptions(no_gradient={"attention.weight.bias": SHIFT}),
    "asmil": Exceptions(no_gradient={"token_block.k_bias": SHIFT, "bag_block.k_bias": SHIFT}),
}


def make(name: str, **options):
    torch.manual_seed(1)
    return build(name, in_features=WIDTH, n_classes=CLASSES, **options)


def make_bag(tiles: int = 30, seed: int = 0, **fields) -> Bag:
    draw = np.random.default_rng(seed)
    coords = np.stack([np.arange(tiles) % 7, np.arange(tiles) // 7], axis=1) * 256
    return Bag(draw.normal(size=(tiles, WIDTH)).astype(np.float32), coords, id=f"slide-{tiles}", **fields)


@pytest.fixture(params=sorted(methods()))
def name(request):
    return request.param


def test_every_exception_names_a_method():
    assert EXCEPTIONS.keys() <= methods().keys()


def test_is_registered_with_its_source(name):
    method = methods()[name]
    assert method.summary
    assert method.paper
    assert 1990 < method.year <= 2026
    assert method.model.__module__.rsplit(".", 1)[-1] == name
    assert all(field.description for field in method.model.config_type.model_fields.values())


@pytest.mark.parametrize("tiles", [1, 2, 30, 300])
def test_shapes_of_the_output(name, tiles):
    model, bag = make(name).eval(), make_bag(tiles)
    output = model(model.prepare(bag))
    assert output.logits.shape == (CLASSES,)
    assert output.embedding.ndim == 1
    assert torch.isfinite(output.logits).all()
    if model.score_axes:
        assert output.scores.shape[1] == tiles
        torch.testing.assert_close(model.attend(bag), output.scores)
        heat = model.heatmap(output)
        assert heat.shape == (tiles,)
        assert heat.min() >= 0
        torch.testing.assert_close(heat.sum(), torch.tensor(1.0))
    with pytest.raises(AsmilError, match="heat map"):
        model.heatmap(output, kind="nonsense")


def test_one_tile_has_all_the_attention(name):
    model = make(name).eval()
    output = model(make_bag(1))
    if model.score_axes:
        torch.testing.assert_close(model.heatmap(output), torch.ones(1))


def test_gradients_reach_every_parameter(name):
    model = make(name, **({"drop": 0.0} if name == "asmil" else {}))
    model.train()
    bag = make_bag()
    loss = model.loss([model(bag)], torch.tensor([1]), Classification(["a", "b", "c"]))
    assert set(loss.parts) >= {"ce"}
    loss.total.backward()
    excused = EXCEPTIONS.get(name, Exceptions()).no_gradient
    for parameter_name, parameter in model.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.abs().max() > 1e-7)
        assert reached != (parameter_name in excused), f"{parameter_name}: {excused.get(parameter_name, 'no gradient')}"


def test_order_of_the_tiles(name):
    model, bag = make(name).eval(), make_bag()
    order = torch.randperm(len(bag), generator=torch.Generator().manual_seed(0))
    first, second = model(bag), model(bag.subset(order))
    if EXCEPTIONS.get(name, Exceptions()).order_dependent:
        return
    torch.testing.assert_close(first.logits, second.logits, rtol=1e-5, atol=1e-6)
    if first.scores is not None:
        torch.testing.assert_close(first.scores[:, order], second.scores, rtol=1e-5, atol=1e-6)


def test_empty_and_broken_bags_are_refused_by_name(name):
    model = make(name)
    with pytest.raises(AsmilError, match="slide-0: the bag has no tiles"):
        model(make_bag(0))
    features = make_bag().features
    features[3, 5] = float("nan")
    with pytest.raises(AsmilError, match=r"slide-x: 1 of 30 tiles hold NaN.*tile 3"):
        model(Bag(features, id="slide-x"))
    with pytest.raises(AsmilError, match="slide-w: its tiles have 7 features, the model was built for 24"):
        model(Bag(torch.zeros(4, 7), id="slide-w"))
    with pytest.raises(AsmilError, match="takes a Bag"):
        model(features)


def test_half_precision_features_give_nearly_the_same(name):
    model, bag = make(name).eval(), make_bag()
    half = Bag(bag.features.half())
    torch.testing.assert_close(model(half).logits, model(bag).logits, rtol=1e-2, atol=1e-2)


def test_saved_and_loaded_is_the_same(name, tmp_path):
    model = make(name)
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    torch.manual_seed(99)
    other = build(name, in_features=WIDTH, n_classes=CLASSES)
    other.load_state_dict(load_file(tmp_path / "m.safetensors"))
    assert torch.equal(model.eval()(make_bag()).logits, other.eval()(make_bag()).logits)


def test_deterministic_under_a_seed(name):
    results = []
    for seed in (5, 5, 6):
        model = make(name).train()
        model.use_generator(torch.Generator().manual_seed(seed))
        torch.manual_seed(torch.seed())  # randomness may only come from the generator
        results.append([model(make_bag()).logits.detach() for _ in range(4)])
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[1], strict=True))


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_any_number_of_outputs(name, outputs):
    model = build(name, in_features=WIDTH, n_classes=outputs)
    assert model(make_bag()).logits.shape == (outputs,)


@pytest.mark.parametrize("chunk", [1, 7, 64, 299, 300])
def test_in_chunks_as_whole(name, chunk):
    model, bag = make(name), make_bag(300)
    whole, parts = infer(model, bag), infer(model, bag, chunk_tiles=chunk)
    torch.testing.assert_close(parts.logits, whole.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.embedding, whole.embedding, rtol=1e-5, atol=1e-6)
    if whole.scores is not None:
        torch.testing.assert_close(parts.scores, whole.scores, rtol=1e-5, atol=1e-6)


def test_unknown_options_are_answered_with_the_nearest(name):
    with pytest.raises(AsmilError, match=r"unknown setting 'model\.nonsense'"):
        make(name, nonsense=1)
