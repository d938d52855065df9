"""What every registered method must be able to do. A method that differs by nature says so in EXCEPTIONS."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from asmil import Anchor, AsmilError, Bag, build, methods
from asmil.explain.color_scale import SIGNED_KINDS
from asmil.models.inference import infer
from asmil.tasks.classification import Classification

WIDTH, CLASSES = 24, 3


@dataclass(frozen=True)
class Exceptions:
    """Where a method may differ, each with its reason.

    no_gradient: parameters that no loss reaches, or reaches only through rounding (name -> reason)
    order_dependent: the reason why the order of the tiles matters
    no_single_output: what the refusal of a model with one output says
    half_differs: the reason why a model in half precision gives other numbers, though it runs
    options: settings under which every parameter gets a gradient (nothing dropped, no dead unit)
    """

    no_gradient: dict[str, str] = field(default_factory=dict)
    order_dependent: str = ""
    no_single_output: str = ""
    half_differs: str = ""
    options: dict[str, object] = field(default_factory=dict)


SHIFT = "a constant added to all scores of a row does not change softmax"
CENTERED = "batch norm subtracts the mean over the tiles, and with it every constant"
EXCEPTIONS = {
    "additive_mil": Exceptions(
        no_gradient={"scorer.0.bias": CENTERED, "scorer.3.bias": CENTERED, "scorer.6.bias": SHIFT}
    ),
    "acmil": Exceptions(no_gradient={"branches.attention.weight.bias": SHIFT}),
    "dgr_mil": Exceptions(
        no_gradient={"attention.key.bias": SHIFT},
        order_dependent="landmarks of the Nystrom attention are means of consecutive tiles",
    ),
    "dtfd": Exceptions(
        no_gradient={"attention.weight.bias": SHIFT, "tier2.attention.weight.bias": SHIFT},
        order_dependent="tiles are dealt into pseudo-bags by their place in the bag",
        no_single_output="dtfd .*single output",
    ),
    "camil": Exceptions(order_dependent="landmarks of the Nystrom attention are means of consecutive tiles"),
    "deepattnmisl": Exceptions(
        no_gradient={"attention.weight.bias": SHIFT}, order_dependent="k-means draws its first centers by place"
    ),
    "transmil": Exceptions(order_dependent="tiles stand on a square in their order, landmarks are means of neighbors"),
    "mamba_mil": Exceptions(
        no_gradient={"attention.weight.bias": SHIFT}, order_dependent="tiles are scanned in the order of the file"
    ),
    "wikg": Exceptions(no_gradient={"attention.weight.bias": SHIFT}),
    "patch_gcn": Exceptions(no_gradient={"attention.weight.bias": SHIFT}),
    "abmil": Exceptions(no_gradient={"attention.weight.bias": SHIFT}),
    "simple_mil": Exceptions(no_gradient={"attention.weight.bias": SHIFT}),
    "clam_mb": Exceptions(no_gradient={"attention.weight.bias": SHIFT}, no_single_output="CLAM .*two"),
    "clam_sb": Exceptions(no_gradient={"attention.weight.bias": SHIFT}, no_single_output="CLAM .*two"),
    "hdmil": Exceptions(
        no_single_output="HDMIL .*two",
        half_differs="a tile is kept by the sign of its score, which rounding changes where it is near 0",
    ),
    "aem": Exceptions(no_gradient={"base.attention.weight.bias": SHIFT}),
    "ibmil": Exceptions(no_gradient={"base.attention.weight.bias": SHIFT, "dictionary.key.bias": SHIFT}),
    "asmil": Exceptions(no_gradient={"token_block.k_bias": SHIFT, "bag_block.k_bias": SHIFT}, options={"drop": 0.0}),
    "psmil": Exceptions(
        no_gradient={
            "attention.weight": "in the first training call all prototypes are equal, and so are all scores",
            "attention.bias": SHIFT,
        },
        options={"embedding_layers": 1, "inner": 8},
    ),
    "ilra": Exceptions(
        no_gradient={
            f"{block}.key.bias": SHIFT
            for block in ("pooling", *(f"blocks.{i}.read_{side}" for i in (0, 1) for side in ("tiles", "latents")))
        },
        # without LayerNorm the scores are nearly flat at the start, and gradients of about 1e-8 reach the keys
        options={"norm": True},
    ),
    "r2t": Exceptions(
        no_gradient={"regional.0.attention.attention.epeg.bias": SHIFT},
        order_dependent="the sequence of tiles is folded into a square, and its windows attend to themselves",
        # with 8 x 8 windows, 30 tiles are a window each, and the attention between windows adds nothing
        options={"region_num": 2, "crmsa_regions": 2},
    ),
}


def make(name: str, **options):
    torch.manual_seed(1)
    return build(name, in_features=WIDTH, n_outputs=CLASSES, **options)


def exceptions(name: str) -> Exceptions:
    return EXCEPTIONS.get(name, Exceptions())


def run(model, bag: Bag):
    return model(model.prepare(bag))


def make_bag(tiles: int = 30, seed: int = 0, **fields) -> Bag:
    draw = np.random.default_rng(seed)
    # a grid with a little unrest, so that no two tiles are equally far from a third
    coords = np.stack([np.arange(tiles) % 7, np.arange(tiles) // 7], axis=1) * 256 + draw.integers(0, 90, (tiles, 2))
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
    assert method.model.__module__.rsplit(".", 1)[-1] in name
    assert all(field.description for field in method.model.config_type.model_fields.values())


@pytest.mark.parametrize("tiles", [1, 2, 30, 300])
def test_shapes_of_the_output(name, tiles):
    model = make(name).eval()
    bag = model.prepare(make_bag(tiles))
    output = model(bag)
    assert output.logits.shape == (CLASSES,)
    assert output.embedding.ndim == 1
    assert torch.isfinite(output.logits).all()
    if model.score_axes:
        assert output.scores.shape[1] == tiles
        torch.testing.assert_close(model.attend(bag), output.scores)
        assert model.map_kinds[0] == "attention"
        torch.testing.assert_close(model.tile_map(output).sum(), torch.tensor(1.0))
    for kind in model.map_kinds:
        heat = model.tile_map(output, kind)
        assert heat.shape == (tiles,)
        assert heat.min() >= 0 or kind in SIGNED_KINDS
    with pytest.raises(AsmilError, match="'nonsense'"):
        model.tile_map(output, kind="nonsense")


def test_one_tile_has_all_the_attention(name):
    model = make(name).eval()
    output = run(model, make_bag(1))
    if model.score_axes:
        torch.testing.assert_close(model.tile_map(output), torch.ones(1))


def test_gradients_reach_every_parameter(name):
    model = make(name, **exceptions(name).options).train()
    model.use_generator(torch.Generator().manual_seed(0))
    loss = model.loss([run(model, make_bag())], torch.tensor([1]), Classification(["a", "b", "c"]))
    assert set(loss.parts) >= {"ce"}
    loss.total.backward()
    excused = exceptions(name).no_gradient
    assert excused.keys() <= dict(model.named_parameters()).keys()
    for parameter_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        reached = parameter.grad is not None and bool(parameter.grad.abs().max() > 1e-7)
        assert reached != (parameter_name in excused), f"{parameter_name}: {excused.get(parameter_name, 'no gradient')}"


def test_order_of_the_tiles(name):
    model, bag = make(name, **exceptions(name).options).eval(), make_bag(150)
    order = torch.randperm(len(bag), generator=torch.Generator().manual_seed(0))
    first, second = run(model, bag), run(model, bag.subset(order))
    if exceptions(name).order_dependent:
        assert not torch.equal(first.logits, second.logits)
        return
    torch.testing.assert_close(first.logits, second.logits, rtol=1e-5, atol=1e-6)
    if first.scores is not None:
        torch.testing.assert_close(first.scores[:, order], second.scores, rtol=1e-5, atol=1e-6)


def test_empty_and_broken_bags_are_refused_by_name(name):
    model = make(name)
    with pytest.raises(AsmilError, match="slide-0"):
        model(make_bag(0))
    features = make_bag().features
    features[3, 5] = float("nan")
    with pytest.raises(AsmilError, match=r"slide-x: 1 of 30 .*tile 3"):
        model(Bag(features, id="slide-x"))
    with pytest.raises(AsmilError, match=r"slide-w: .*7 features.*24"):
        model(Bag(torch.zeros(4, 7), id="slide-w"))
    with pytest.raises(AsmilError, match="takes a Bag"):
        model(features)


def test_half_precision_features_give_nearly_the_same(name):
    model, bag = make(name).eval(), make_bag()
    half = Bag(bag.features.half(), bag.coords, id=bag.id)
    torch.testing.assert_close(run(model, half).logits, run(model, bag).logits, rtol=1e-2, atol=1e-2)


CPU_CANNOT = ("mkldnn", "not implemented for")
"""How torch begins or ends the refusal of a product or convolution that this CPU has no half-precision form of."""


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 multiplies in another way
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_runs_whole_and_in_chunks(name, dtype):
    exact = make(name).eval()
    half = make(name).eval().to(dtype)
    bag = half.prepare(make_bag())
    expected = exact(bag).logits
    try:
        found = [half(bag).logits, infer(half, bag, chunk_tiles=7).logits]
    except RuntimeError as error:
        if any(word in str(error) for word in CPU_CANNOT):
            pytest.skip(str(error).splitlines()[0])
        raise
    for logits in found:
        assert logits.dtype == dtype
        assert torch.isfinite(logits).all()
        if exceptions(name).half_differs:
            continue
        torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.1)


def test_saved_and_loaded_is_the_same(name, tmp_path):
    model = make(name)
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    torch.manual_seed(99)
    other = build(name, in_features=WIDTH, n_outputs=CLASSES)
    other.load_state_dict(load_file(tmp_path / "m.safetensors"))
    assert torch.equal(run(model.eval(), make_bag()).logits, run(other.eval(), make_bag()).logits)


def test_deterministic_under_a_seed(name):
    results, has_drawn = [], []
    for seed in (5, 5, 6):
        model = make(name).train()
        generator = torch.Generator().manual_seed(seed)
        started = generator.get_state()
        model.use_generator(generator)
        torch.manual_seed(torch.seed())  # randomness may only come from the generator
        results.append(torch.stack([run(model, make_bag()).logits.detach() for _ in range(4)]))
        has_drawn.append(not torch.equal(generator.get_state(), started))
    assert torch.equal(results[0], results[1])
    assert has_drawn == [not torch.equal(results[0], results[2])] * 3, "another seed must show where anything is drawn"


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_any_number_of_outputs(name, outputs):
    refusal = exceptions(name).no_single_output
    if outputs == 1 and refusal:
        with pytest.raises(AsmilError, match=refusal):
            build(name, in_features=WIDTH, n_outputs=1)
        return
    model = build(name, in_features=WIDTH, n_outputs=outputs)
    assert run(model, make_bag()).logits.shape == (outputs,)


@pytest.mark.parametrize("chunk", [1, 7, 64, 299, 300])
def test_in_chunks_as_whole(name, chunk):
    model = make(name)
    bag = model.prepare(make_bag(300))
    whole, parts = infer(model, bag), infer(model, bag, chunk_tiles=chunk)
    torch.testing.assert_close(parts.logits, whole.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.embedding, whole.embedding, rtol=1e-5, atol=1e-6)
    if whole.scores is not None:
        torch.testing.assert_close(parts.scores, whole.scores, rtol=1e-5, atol=1e-6)


def test_unknown_options_are_answered_with_the_nearest(name):
    with pytest.raises(AsmilError, match=r"unknown setting 'model\.nonsense'"):
        make(name, nonsense=1)


class Durations:
    """A task whose targets are no classes: five time bins, targets (bin, whether the event was seen)."""

    loss_name = "nll"
    n_outputs = 5

    def loss(self, logits, targets):
        log_p = torch.log_softmax(logits, dim=-1)
        seen, later = log_p.gather(1, targets[:, :1]), log_p.flip(1).logcumsumexp(1).flip(1).gather(1, targets[:, :1])
        return -torch.where(targets[:, 1:] == 1, seen, later).mean()

    def class_index(self, targets):
        return None


def test_trains_on_a_task_without_classes(name):
    model = build(name, in_features=WIDTH, n_outputs=5).train()
    bag = model.prepare(make_bag())
    output, target = model(bag), torch.tensor([[2, 1]])
    loss = model.loss([output], target, Durations())
    assert torch.isfinite(loss.total)
    assert "nll" in loss.parts
    loss.total.backward()
    model.after_step(bag, output, target)
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak memory as Linux tells it")
def test_a_large_bag_needs_no_matrix_of_all_pairs(name):
    tiles = 16_000
    model = make(name)
    bag = model.prepare(make_bag(tiles))
    infer(model, make_bag(100))
    held = _kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    output = infer(model, bag)
    assert torch.isfinite(output.logits).all()
    all_pairs = 4 * tiles**2 / 2**10
    assert _kilobytes("VmHWM") - held < 0.7 * all_pairs


def test_an_anchor_holds_its_attention(name):
    model = make(name).train()
    if not model.score_axes:
        return
    bag = model.prepare(make_bag())
    anchor = Anchor(model, momentum=0.5)
    for _ in range(2):  # the second bag meets an anchor that has let go what its scores do not need
        output = model(bag)
        scores = model.attend(bag) if output.scores is None else output.scores
        loss = anchor.loss(bag, scores)
        assert torch.isfinite(loss)
        assert float(loss.detach()) > -1e-6
        anchor.update(model)
    kept = {parameter for parameter, _ in anchor.copy.named_parameters()}
    assert kept
    assert kept <= {parameter for parameter, _ in model.named_parameters()}
    assert not any("head" in parameter.split(".")[0] for parameter in kept)


def test_an_anchor_pulls_its_attention_in_training(name):
    model = make(name, **exceptions(name).options).train()
    if not model.score_axes:
        return
    bag = model.prepare(make_bag())
    anchor = Anchor(model, normalizer="softmax", update="never")
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():  # the model has moved away from its anchor; what a method remembers is no longer all equal
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.add_(0.3 * tensor.std(unbiased=False).clamp_min(0.1) * torch.randn(tensor.shape, generator=draw))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        output = model(bag)
        loss = anchor.loss(bag, model.attend(bag) if output.scores is None else output.scores)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1e-6
    assert np.mean(losses[-5:]) < 0.7 * losses[0]


@pytest.mark.parametrize("tiles", [1, 2, 3])
@pytest.mark.parametrize("alike", [False, True])
def test_small_bags_and_equal_tiles_can_be_trained_on(name, tiles, alike):
    model = make(name).train()
    model.use_generator(torch.Generator().manual_seed(0))
    bag = make_bag(tiles)
    if alike:
        bag = Bag(bag.features[:1].repeat(tiles, 1), bag.coords[:1].repeat(tiles, 1), id=bag.id)
    bag = model.prepare(bag)
    output, target = model(bag), torch.tensor([1])
    loss = model.loss([output], target, Classification(["a", "b", "c"]))
    loss.total.backward()
    model.after_step(bag, output, target)
    assert torch.isfinite(loss.total)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert torch.isfinite(model.eval()(bag).logits).all()
