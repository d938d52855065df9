"""Passes over tiles as single kernels on a GPU: the numbers of the operations they replace, forward and backward."""

from contextlib import nullcontext

import pytest
import torch

from asmil.models.blocks.layers import TileLinear
from asmil.models.blocks.scoring import ScoreNetwork
from asmil.models.blocks.tile_passes import gate, relu_dropout, single_passes
from asmil.models.blocks.top_tiles import top_tiles

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
TILES = (513, 1000, 5001)


def draws(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("tiles", TILES)
def test_gates_are_those_in_double_precision(tiles, dtype, tolerance):
    torch.manual_seed(0)
    products, weights = draws(tiles, 192, dtype=dtype), draws(tiles, 96, dtype=dtype)
    gated = gate(products, 0.0, None)
    (gradient,) = torch.autograd.grad((gated * weights).sum(), products)
    exact = products.detach().double().requires_grad_()
    expected = torch.tanh(exact[:, :96]) * torch.sigmoid(exact[:, 96:])
    (of_exact,) = torch.autograd.grad((expected * weights.double()).sum(), exact)
    torch.testing.assert_close(gated.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), of_exact, rtol=tolerance, atol=tolerance)


def test_dropped_gates_have_the_share_and_the_gradient_of_their_mask():
    generator = torch.Generator("cuda").manual_seed(1)
    products = draws(5001, 192)
    gated = gate(products, 0.25, generator)
    (gradient,) = torch.autograd.grad(gated.sum(), products)
    value, other = torch.tanh(products[:, :96]), torch.sigmoid(products[:, 96:])
    kept = gated != 0
    assert abs(kept.float().mean().item() - 0.75**2) < 0.01
    scale = kept / 0.75**2
    torch.testing.assert_close(gated, value * other * scale, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient[:, :96], other * (1 - value**2) * scale, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient[:, 96:], value * other * (1 - other) * scale, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tiles", TILES)
def test_a_dropped_relu(tiles):
    generator = torch.Generator("cuda").manual_seed(2)
    rows = draws(tiles, 64)
    kept = relu_dropout(rows, 0.25, generator)
    (gradient,) = torch.autograd.grad(kept.sum(), rows)
    assert abs((kept > 0).sum().item() / (rows > 0).sum().item() - 0.75) < 0.02
    torch.testing.assert_close(kept, torch.where(kept > 0, rows / 0.75, 0.0))
    torch.testing.assert_close(gradient, torch.where(kept > 0, 1 / 0.75, torch.zeros_like(rows)))


def test_the_same_generator_drops_the_same_and_another_draw_others():
    rows = draws(1000, 64)
    first, again = (relu_dropout(rows, 0.5, torch.Generator("cuda").manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    generator = torch.Generator("cuda").manual_seed(3)
    assert not torch.equal(relu_dropout(rows, 0.5, generator), relu_dropout(rows, 0.5, generator))


@pytest.mark.parametrize(("autocast", "tolerance"), [(False, 1e-4), (True, 2e-2)])
def test_a_score_network_has_the_same_gradients(autocast, tolerance):
    torch.manual_seed(4)
    rows, network = draws(3000, 64), ScoreNetwork(64, 32, 2).to("cuda")
    found = []
    for passes in (nullcontext(), single_passes()):
        with passes, torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            scores = network(rows)
        inputs = [rows, *network.parameters()]
        found.append([scores, *torch.autograd.grad(scores.float().square().sum(), inputs)])
    for operations, passed in zip(*found, strict=True):
        assert torch.linalg.vector_norm(passed - operations) <= tolerance * torch.linalg.vector_norm(operations)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_a_layer_over_tiles_under_autocast_are_nearer_to_double_precision(bias):
    torch.manual_seed(5)
    layer = TileLinear(64, 32, bias=bias).to("cuda")
    rows = draws(4000, 64)
    with torch.autocast("cuda", torch.bfloat16):
        out = layer(rows)
    gradients = torch.autograd.grad(out.float().square().sum(), [rows, *layer.parameters()])
    exact = torch.nn.Linear(64, 32, bias=bias, device="cuda", dtype=torch.float64)
    exact.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    inputs = rows.detach().double().requires_grad_()
    expected = torch.autograd.grad(exact(inputs).square().sum(), [inputs, *exact.parameters()])
    for ours, theirs in zip(gradients, expected, strict=True):
        assert torch.linalg.vector_norm(ours - theirs) <= 1e-2 * torch.linalg.vector_norm(theirs)


def test_top_tiles_are_those_of_one_search():
    scores = torch.randn(3, 11_001, device="cuda")
    assert torch.equal(top_tiles(scores, 8), scores.topk(8, dim=1).indices)
