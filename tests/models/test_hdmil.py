import math

import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.hdmil import ChebyshevKAN, mask_rate
from asmil.models.hdmil_lipn import TILES_AT_ONCE, GumbelMask, TinyMobileNet, harden
from asmil.models.inference import infer
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification

SMALL = {"inner": 12, "attention": 7, "degree": 4, "k_sample": 3}


def make(classes=2, **options):
    torch.manual_seed(0)
    return build("hdmil", 9, classes, **(SMALL | options))


def task(classes=2):
    return Classification([str(c) for c in range(classes)])


def lowres(tiles, pixels=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {"lowres": {"tiles": torch.randint(0, 256, (tiles, pixels, pixels, 3), generator=generator).to(torch.uint8)}}


def lowres_bag(tiles=20, **fields):
    return Bag(torch.randn(tiles, 9), extras=lowres(tiles), **fields)


# The layers


@pytest.mark.parametrize("degree", [0, 1, 2, 7])
def test_chebyshev_layer_equals_its_formula(degree):
    layer, x = ChebyshevKAN(5, 3, degree), torch.randn(4, 5)
    u = torch.tanh(x)
    # T_k(cos a) = cos(k a)
    basis = torch.cos(torch.arange(degree + 1) * torch.acos(u).unsqueeze(-1))
    expected = (basis.unsqueeze(2) * layer.coefficients).sum(dim=(1, 3))
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_chebyshev_coefficients_start_as_xavier_counts_them():
    layer = ChebyshevKAN(512, 2, 12)
    assert float(layer.coefficients.detach().std()) == pytest.approx(math.sqrt(2 / (13 * (512 + 2))), rel=0.05)


def test_hard_values_with_the_gradient_of_the_soft_ones():
    z = torch.tensor([-2.0, 0.0, 0.3], requires_grad=True)
    mask = harden(torch.sigmoid(z))
    assert mask.tolist() == [0.0, 0.0, 1.0]
    mask.sum().backward()
    soft = torch.sigmoid(z.detach())
    torch.testing.assert_close(z.grad, soft * (1 - soft))


def test_noise_of_the_mask_is_logistic_and_only_in_training():
    module = GumbelMask(0.7)
    module.generator = torch.Generator().manual_seed(0)
    scores = torch.full((40_000,), 0.5)
    # the difference of two Gumbel variables exceeds -z with probability sigmoid(z); the temperature does not matter
    assert float(module(scores).mean()) == pytest.approx(float(torch.sigmoid(torch.tensor(0.5))), abs=0.01)
    assert module.eval()(scores).mean() == 1


# DMIN


@pytest.mark.parametrize(("classes", "gated"), [(2, True), (3, False)])
def test_inference_equals_its_formulas(classes, gated):
    model = make(classes, gated=gated).eval()
    x = torch.randn(25, 9)
    output = model(Bag(x))
    h = torch.relu(x @ model.embedding.layers[0].weight.T + model.embedding.layers[0].bias)
    hidden = torch.tanh(model.attention.value(h))
    hidden = hidden * torch.sigmoid(model.attention.gate(h)) if gated else hidden
    z = model.attention.weight(hidden).T
    torch.testing.assert_close(output.scores, z)
    for c, head in enumerate(model.heads):
        full = torch.softmax(z[c], dim=0) @ h
        torch.testing.assert_close(output.extras["logits_full"][c], head(full)[0])
        kept = z[c] > 0
        weights = torch.exp(z[c][kept])
        torch.testing.assert_close(output.logits[c], head(weights / weights.sum() @ h[kept])[0])


def test_training_normalizes_over_all_classes_together():
    model = make(3)
    h, z = torch.randn(10, 12).relu(), torch.randn(3, 10, requires_grad=True)
    pooled = model.distill(h, z, harden(torch.sigmoid(z)), jointly=True).extras["pooled"]
    direction = torch.randn(3, 12)
    (gradient,) = torch.autograd.grad((pooled * direction).sum(), z)
    soft = torch.sigmoid(z)
    weights = torch.exp(z) * ((z > 0).float() + soft - soft.detach())
    weights = weights / weights.sum()
    torch.testing.assert_close(pooled, weights @ h)
    torch.testing.assert_close(gradient, torch.autograd.grad((weights @ h * direction).sum(), z)[0])
    assert weights[0].sum().item() < 1


def test_loss_terms_equal_their_formulas():
    model = make(3, mask_ratio=0.3, bag_weight=0.6).eval()
    output = model(Bag(torch.randn(25, 9)))
    extras = output.extras
    loss = model.loss([output], torch.tensor([2]), task(3))
    full, kept = torch.softmax(extras["logits_full"], dim=0), torch.softmax(output.logits, dim=0)
    parts = {
        "ce": -full[2].log(),
        "kl": (full * (full.log() - kept.log())).sum(),
        "features": ((extras["pooled"] - extras["pooled_full"]) ** 2).mean(),
        "rate": (((output.scores[:2] > 0).any(dim=0).float().mean()) - 0.3) ** 2,
    }
    for name, expected in parts.items():
        torch.testing.assert_close(loss.parts[name], expected)
    weighted = 0.6 * parts["ce"] + 0.4 * loss.parts["cluster"] + 0.5 * parts["kl"] + 0.5 * parts["features"]
    torch.testing.assert_close(loss.total, weighted + 2 * parts["rate"])


def test_the_rate_looks_at_two_classes_with_a_gradient_through_both():
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], requires_grad=True)
    rate = mask_rate(mask)
    assert rate.item() == 0.5
    rate.backward()
    assert mask.grad.tolist() == [[0.25] * 4, [0.25] * 4, [0.0] * 4]


@pytest.mark.parametrize("shift", [-50.0, 500.0])
def test_nothing_or_everything_kept_stays_finite(shift):
    model = make(dropout=0.0)
    with torch.no_grad():
        model.attention.weight.bias.fill_(shift)
    bag = Bag(torch.randn(10, 9))
    output = model.train()(bag)
    assert output.extras["mask_rate"].item() == (shift > 0)
    model.loss([output], torch.tensor([0]), task()).total.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    output = model.eval()(bag)
    if shift < 0:
        assert not output.embedding.any()
        torch.testing.assert_close(output.logits, model.read(torch.zeros(2, 12)))
        assert not model.tile_map(output, "kept").any()
    else:
        torch.testing.assert_close(output.logits, output.extras["logits_full"])


def test_the_only_tile_may_be_dropped():
    model = make().eval()
    h, z = torch.randn(1, 12).relu(), torch.tensor([[0.4], [-0.4]])
    output = model.distill(h, z, harden(torch.sigmoid(z)), jointly=False)
    assert output.embedding[:12].tolist() == pytest.approx(h[0].tolist())
    assert not output.embedding[12:].any()


@pytest.mark.parametrize("shift", [0.0, -50.0])
def test_in_chunks_as_whole(shift):
    model, bag = make(3), Bag(torch.randn(40, 9))
    with torch.no_grad():
        model.attention.weight.bias[1].fill_(shift)
    whole = infer(model, bag)
    for chunk in (1, 7, 39):
        parts = infer(model, bag, chunk_tiles=chunk)
        torch.testing.assert_close(parts.logits, whole.logits)
        torch.testing.assert_close(parts.embedding, whole.embedding)
        for kind in model.map_kinds:
            torch.testing.assert_close(model.tile_map(parts, kind), model.tile_map(whole, kind))


def test_heat_map_of_kept_tiles():
    model = make(3).eval()
    output = model(Bag(torch.randn(25, 9)))
    row = output.scores[int(output.logits.argmax())]
    kept = model.tile_map(output, "kept")
    assert torch.equal(kept > 0, row > 0)
    torch.testing.assert_close(kept.sum(), torch.tensor(1.0))
    torch.testing.assert_close(model.tile_map(output), torch.softmax(row, dim=0))


def test_one_output_is_refused():
    with pytest.raises(AsmilError, match="class"):
        build("hdmil", 9, 1)


# LIPN


def test_network_equals_its_layers():
    torch.manual_seed(0)
    network = TinyMobileNet(3).eval()
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name.endswith(("running_mean", "norm.bias")):
                value.normal_(std=0.1)
    tiles = lowres(5)["lowres"]["tiles"]

    def step(x, part, stride=1, groups=1, relu=True):
        norm, weight = part.norm, part.conv.weight
        x = functional.conv2d(x, weight, stride=stride, padding=(weight.shape[-1] - 1) // 2, groups=groups)
        x = (x - norm.running_mean[:, None, None]) / (norm.running_var + 1e-5).sqrt()[:, None, None]
        x = x * norm.weight[:, None, None] + norm.bias[:, None, None]
        return x.relu() if relu else x

    x = tiles.permute(0, 3, 1, 2).float() / 255 - 0.5
    for part, stride in zip(network.features[:5], (2, 2, 1, 2, 1), strict=True):
        x = step(x, part, stride)
    for part in network.features[5:]:
        x = step(x, part.start, groups=x.shape[1], relu=False)
        x = step(x, part.expand)
        x = step(x, part.middle, stride=2, groups=x.shape[1])
        x = step(x, part.project, relu=False)
    x = step(x.mean(dim=(2, 3), keepdim=True), network.neck).flatten(1)
    torch.testing.assert_close(network(tiles), network.head(x))


def test_network_in_parts_as_whole():
    network = TinyMobileNet(2).eval()
    tiles = lowres(TILES_AT_ONCE + 3, pixels=4)["lowres"]["tiles"]
    with torch.no_grad():
        torch.testing.assert_close(network(tiles)[-5:], network(tiles[-5:]))


def test_network_trains_on_a_single_tile():
    network = TinyMobileNet(2).train()
    network(lowres(1)["lowres"]["tiles"]).sum().backward()
    assert network.head.weight.grad.isfinite().all()


def test_lipn_mask_decides_in_inference():
    model = make(lipn=True).eval()
    with torch.no_grad():
        model.lipn.head.weight.mul_(300)
    bag = lowres_bag()
    output = model(bag)
    kept = torch.sigmoid(model.lipn(bag.extras["lowres"]["tiles"]).t()) > 0.5
    assert 0 < kept.sum() < kept.numel()
    assert torch.equal(output.extras["mask"] == 1, kept)
    h = torch.relu(model.embedding(bag.features))
    for c in range(2):
        weights = torch.exp(output.scores[c][kept[c]])
        pooled = weights / (weights.sum() + 1e-16) @ h[kept[c]]
        torch.testing.assert_close(output.logits[c], model.heads[c](pooled)[0])
    assert model.attend(bag).shape == (2, 20)
    torch.testing.assert_close(infer(model, bag).logits, output.logits)


def test_lipn_is_trained_in_a_second_stage_with_dmin_frozen():
    model = make(lipn=True, lipn_lr=0.01)
    dmin, last = model.stages()
    assert (dmin.name, last.name) == ("dmin", "lipn")
    assert last.model is model
    assert dmin.model.lipn is None
    assert torch.equal(dmin.model.embedding.layers[0].weight, model.embedding.layers[0].weight)
    with torch.no_grad():
        dmin.model.embedding.layers[0].weight.add_(1)
    last.start(dmin.model.eval(), [])
    assert torch.equal(model.embedding.layers[0].weight, dmin.model.embedding.layers[0].weight)

    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameter_groups())
    assert optimizer.param_groups[0]["lr"] == 0.01
    output = model.train()(lowres_bag())
    loss = model.loss([output], torch.tensor([1]), task())
    assert set(loss.parts) == {"ce", "mask", "rate"}
    mask, target = output.extras["mask"], output.extras["target_mask"]
    torch.testing.assert_close(loss.parts["mask"], (mask != target).float().mean())
    torch.testing.assert_close(loss.total, loss.parts["mask"] + loss.parts["rate"])
    loss.total.backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("lipn.") for name in changed)


def test_without_lipn_there_is_one_stage():
    (stage,) = make().stages()
    assert stage.model.lipn is None


def test_missing_and_misshapen_lowres_tiles_are_refused_by_name():
    model = make(lipn=True)
    with pytest.raises(AsmilError, match=r"slide-1: .*'lowres'.*'tiles'.*model\.lipn"):
        model(Bag(torch.randn(4, 9), id="slide-1"))
    with pytest.raises(AsmilError, match=r"slide-2.*lowres/tiles.*\(5.*16.*16.*3\).*4.*3"):
        model(Bag(torch.randn(4, 9), id="slide-2", extras=lowres(5)))


# Official checkpoints


def dmin_state(model):
    layers = {"embedding.layers.0": "attention_net.0", "attention.weight": "attention_net.3.attention_c"}
    layers |= {"attention.value": "attention_net.3.attention_a.0", "attention.gate": "attention_net.3.attention_b.0"}
    own = model.state_dict()
    state = {
        f"{theirs}.{leaf}": own[f"{ours}.{leaf}"] for ours, theirs in layers.items() for leaf in ("weight", "bias")
    }
    for c in range(model.n_outputs):
        state[f"classifiers.{c}.act_fun.0.cheby_coeffs"] = own[f"heads.{c}.coefficients"]
        state[f"instance_classifiers.{c}.act_fun.0.cheby_coeffs"] = own[f"cluster_heads.{c}.coefficients"]
    return state


def lipn_official_state(network):
    state = {}
    for name, value in network.state_dict().items():
        for ours, theirs in (("start.", "start_dw_"), ("expand.", "expand_"), ("middle.", "middle_dw_")):
            name = name.replace(ours, theirs)
        name = name.replace("project.", "proj_").replace("neck.", "conv.").replace("head.", "classifier.")
        if "_conv" not in name and "_norm" not in name:
            name = name.replace(".conv.weight", ".block.0.weight").replace(".norm.", ".block.1.")
        state[f"extractor.{name}"] = value
    return state


def test_official_dmin_and_lipn_load_alone_and_together():
    both = make(3, lipn=True).eval()
    dmin, lipn, bag = dmin_state(both), lipn_official_state(both.lipn), lowres_bag()
    loaded = official.load({**dmin, **lipn}, {"mask_ratio": 0.7, "k_sample": 5})
    assert (loaded.config.mask_ratio, loaded.config.k_sample, loaded.config.degree) == (0.7, 5, 4)
    torch.testing.assert_close(loaded(bag).logits, both(bag).logits)
    alone = official.load(dmin)
    assert alone.lipn is None
    torch.testing.assert_close(alone.attend(bag), both.attend(bag))
    screen = official.load(lipn)
    output = screen(bag)
    torch.testing.assert_close(output.scores, both.lipn(bag.extras["lowres"]["tiles"]).t())
    assert torch.equal(output.extras["mask"], both(bag).extras["mask"])
    with pytest.raises(AsmilError, match="low-magnification"):
        screen(Bag(torch.randn(4, 9)))
    with pytest.raises(AsmilError, match="takes a Bag"):
        screen(torch.randn(4, 9))


def test_official_preset():
    config = resolve("hdmil", "official")
    assert (config.training.lr, config.model.k_sample, config.model.mask_ratio) == (3e-4, 32, 0.6)
    assert config.model.lipn_lr == 1e-4
