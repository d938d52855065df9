import math

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from asmil import AsmilError, Bag, Output
from asmil.models import official
from asmil.models.blocks.landmark_attention import gather
from asmil.models.blocks.nystrom import NystromAttention, TokenConvolution, pseudo_inverse
from asmil.models.blocks.position import PyramidPosition, repeats_to_square, square_side
from asmil.models.transmil import LAYERS, TransMIL, TransMILConfig
from plain_methods.transmil import PlainAttention, PlainTransMIL

WIDTH = 12


def make(outputs: int = 3, dtype: torch.dtype = torch.float64, **options) -> TransMIL:
    torch.manual_seed(0)
    options = {"inner": 16, "heads": 2, "dropout": 0.0, **options}
    model = TransMIL(WIDTH, outputs, TransMILConfig(**options)).to(dtype).eval()
    with torch.no_grad():  # away from flat attention
        for layer in (model.layer1, model.layer2):
            layer.attention.to_qkv.weight.mul_(3)
    return model


def make_bag(tiles: int, dtype: torch.dtype = torch.float64) -> Bag:
    return Bag(torch.randn(tiles, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(tiles)), id="slide")


# tokens and landmarks: most landmarks are pads, landmarks of one token, exact multiples, long runs
@pytest.mark.parametrize(
    ("tokens", "landmarks"), [(2, 8), (10, 4), (8, 8), (9, 8), (16, 8), (37, 64), (100, 7), (3, 1)]
)
def test_nystrom_equals_the_official_order_of_products(tokens, landmarks):
    torch.manual_seed(0)
    attention = NystromAttention(12, 3, landmarks, dropout=0.0).double().eval()
    with torch.no_grad():
        attention.to_qkv.weight.mul_(4)
    x = torch.randn(tokens, 12, dtype=torch.float64)
    plain = PlainAttention(attention)
    expected = plain(x)
    f1, z, f3, _ = plain.factors(x)
    matrix = (f1 @ z @ f3)[:, -tokens:, -tokens:]
    torch.testing.assert_close(attention(x), expected)
    for row in {0, tokens // 2, tokens - 1}:
        torch.testing.assert_close(attention.row(x, row), expected[row])
        torch.testing.assert_close(attention.row_weights(x, row), matrix[:, row])
        update, weights = attention.row_and_weights(x, row)
        torch.testing.assert_close(update, expected[row])
        torch.testing.assert_close(weights, matrix[:, row])
        updates, weights = attention.with_row_weights(x, row)
        torch.testing.assert_close(updates, expected)
        torch.testing.assert_close(weights, matrix[:, row])
        q, k, _ = attention.to_qkv(x).chunk(3, dim=1)
        exact = torch.stack([k[:, h : h + 4] @ q[row, h : h + 4] / 2 for h in (0, 4, 8)])
        torch.testing.assert_close(attention.row_scores(x, row), exact)


def test_nystrom_without_residual_and_output_layer():
    attention = NystromAttention(8, 2, 4, head_width=3, residual_kernel=None, out_projection=False, dropout=0.0)
    assert [name for name, _ in attention.named_parameters()] == ["to_qkv.weight"]
    assert attention(torch.randn(9, 8)).shape == (9, 6)


def test_pseudo_inverse_inverts_a_well_conditioned_kernel():
    torch.manual_seed(0)
    kernel = torch.softmax(6 * torch.eye(5).double() + torch.randn(2, 5, 5).double(), dim=-1)
    inverse = pseudo_inverse(kernel, torch.ones(5).double(), iterations=8)
    torch.testing.assert_close(inverse @ kernel, torch.eye(5).double().expand(2, 5, 5), rtol=0, atol=1e-6)


def test_pseudo_inverse_has_its_gradient():
    torch.manual_seed(0)
    scores = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    counts = torch.tensor([3.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: pseudo_inverse(torch.softmax(z, dim=-1), counts, 3), scores)


@pytest.mark.parametrize("run", [4, 300])
def test_gather_over_blocks_is_attention(run):
    torch.manual_seed(0)
    tokens = 4 * 300  # several blocks, with ever larger scores
    rising = torch.linspace(0, 40, tokens, dtype=torch.float64).unsqueeze(1)
    keys, values = torch.randn(2, tokens, 3).double() * rising, torch.randn(2, tokens, 3).double()
    inputs = [torch.randn(2, 5, 3).double().requires_grad_(), keys.requires_grad_(), values.requires_grad_()]
    ours, theirs = gather(*inputs, run), functional.scaled_dot_product_attention(*inputs)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad(out, inputs, upstream) for out in (ours, theirs)))


@pytest.mark.parametrize("kernel", [1, 3, 33, 41])
@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 100])
def test_token_convolution_is_a_depth_wise_convolution(kernel, tokens):
    torch.manual_seed(0)
    convolution = TokenConvolution(3, kernel).double()
    values = torch.randn(3, tokens, 4, dtype=torch.float64, requires_grad=True)
    expected = functional.conv2d(values[None], convolution.weight, padding=(kernel // 2, 0), groups=3)[0]
    torch.testing.assert_close(convolution(values), expected)
    upstream = torch.randn_like(expected)
    inputs = (values, convolution.weight)
    ours, theirs = (torch.autograd.grad(out, inputs, upstream) for out in (convolution(values), expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("tiles", [1, 2, 9, 10, 48, 49, 50])
@pytest.mark.parametrize("at_least", [1, 7])
def test_position_is_the_sum_of_three_convolutions_and_the_identity(tiles, at_least):
    torch.manual_seed(0)
    position = PyramidPosition(5, at_least).double()
    tokens = torch.randn(tiles, 5, dtype=torch.float64)
    side = math.ceil(math.sqrt(tiles))
    laid = torch.cat([tokens, tokens[: side**2 - tiles]])
    if side < at_least:
        side = at_least
        laid = torch.cat([laid, torch.zeros(side**2 - len(laid), 5, dtype=torch.float64)])
    grid = laid.t().reshape(1, 5, side, side)
    expected = grid + sum(convolution(grid) for convolution in position.convolutions)
    torch.testing.assert_close(position(tokens), expected.flatten(2)[0].t()[:tiles])


def test_squares():
    sides = {1: (1, 0), 2: (2, 2), 4: (2, 0), 5: (3, 4), 300: (18, 24), 10**6: (1000, 0), 10**6 + 1: (1001, 2000)}
    assert {n: (square_side(n), repeats_to_square(n)) for n in sides} == sides


@pytest.mark.parametrize("tiles", [1, 2, 9, 17, 60])
@pytest.mark.parametrize(
    "options", [{}, {"landmarks": 5, "heads": 4, "iterations": 3}, {"embedding_layers": 0, "heads": 3}]
)
def test_equals_the_official_formulation(tiles, options):
    if options.get("embedding_layers") == 0:
        options = {**options, "inner": WIDTH}
    model, bag = make(**options), make_bag(tiles)
    plain = PlainTransMIL(model)
    output = model(bag)
    torch.testing.assert_close(output.logits, plain(bag.features))
    torch.testing.assert_close(model.train()(bag).logits, output.logits)
    for (scores, row), layer, x in zip(
        model.class_rows(bag), (plain.layer1, plain.layer2), plain.tokens(bag.features), strict=True
    ):
        f1, z, f3, _ = layer.attention.factors(layer.norm(x))
        torch.testing.assert_close(row, (f1 @ z @ f3)[:, -len(x), -len(x) :])
        assert scores.shape == row.shape
    torch.testing.assert_close(scores[:, 1 : 1 + tiles], output.scores)
    torch.testing.assert_close(row, output.extras["class_row"])


@pytest.mark.parametrize("tiles", [3, 50, 300])
def test_gradients_are_those_of_the_official_formulation(tiles):
    model, bag = make().train(), make_bag(tiles)
    plain = PlainTransMIL(model)
    model(bag).logits.square().sum().backward()
    plain(bag.features).square().sum().backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        name = name.replace("attention.residual", "attention.convolution").replace("position.", "")
        torch.testing.assert_close(parameter.grad, theirs[name].grad, msg=name)


def test_float32_stays_close_to_float64():
    exact, bag = make()(make_bag(300)), make_bag(300, torch.float32)
    # the bags differ: both types draw their own numbers
    bag.features.copy_(make_bag(300).features)
    torch.testing.assert_close(make(dtype=torch.float32)(bag).logits.double(), exact.logits, rtol=1e-4, atol=1e-5)


def test_autocast_keeps_the_inverse_in_full_precision():
    model, bag = make(dtype=torch.float32, inner=32, heads=4).train(), make_bag(200, torch.float32)
    expected = model(bag)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(bag)
        model.zero_grad()
        output.logits.sum().backward()
    torch.testing.assert_close(output.logits.float(), expected.logits, rtol=0.1, atol=0.1)
    assert output.scores.dtype == torch.float32
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation gives."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize("training", [True, False])
def test_no_tokens_by_landmarks_matrix_is_stored(training):
    model = make(dtype=torch.float32, inner=16, heads=8, landmarks=64).train(training)
    with Largest() as largest:
        output = model(make_bag(2000, torch.float32))
        if training:
            output.logits.sum().backward()
    tokens = 64 * math.ceil((1 + square_side(2000) ** 2) / 64)
    assert largest.numbers <= tokens * 64  # one head of F3; F1 or F3 of all heads has eight times as many


def with_row(row: list[list[float]], tiles: int) -> Output:
    scores = torch.arange(len(row) * tiles, dtype=torch.float64).view(len(row), tiles)
    return Output(torch.zeros(3), scores, torch.zeros(1), extras={"class_row": torch.tensor(row, dtype=torch.float64)})


def test_heatmap_folds_repeats_and_clips():
    # class token, three tiles, one repeat of the first
    output = with_row([[0.9, 0.1, 0.4, -0.4, 0.3], [0.1, 0.1, 0.0, -0.2, 0.1]], tiles=3)
    expected = torch.tensor([0.3, 0.2, 0.0], dtype=torch.float64) / 0.5
    torch.testing.assert_close(make().tile_map(output), expected)
    assert output.extras["class_row"][0, 1] == 0.1  # left as it was


def test_heatmap_without_a_positive_weight_falls_back_to_the_scores():
    model, output = make(), with_row([[1.0, -0.1, -0.2, -0.4, 0.0]], tiles=3)
    torch.testing.assert_close(model.tile_map(output), model.tile_map(output, "scores"))
    torch.testing.assert_close(model.tile_map(output, "scores"), torch.softmax(output.scores, dim=-1)[0])


def test_heatmap_of_a_training_pass_is_refused():
    model = make().train()
    output = model(make_bag(5))
    assert output.extras == {}
    assert model.tile_map(output, "scores").shape == (5,)
    with pytest.raises(AsmilError, match=r"model\.eval\(\)"):
        model.tile_map(output)


def test_dropout_is_active_in_training_only():
    model, bag = make(dropout=0.5), make_bag(30)
    assert torch.equal(model(bag).logits, model(bag).logits)
    model.train()
    assert not torch.equal(model(bag).logits, model(bag).logits)


def test_widths_that_do_not_fit_are_refused():
    with pytest.raises(AsmilError, match=r"width 20 .*model\.heads = 8"):
        TransMIL(WIDTH, 2, TransMILConfig(inner=20))
    with pytest.raises(AsmilError, match=r"width 9 .*model\.landmarks"):
        TransMIL(WIDTH, 2, TransMILConfig(inner=9, heads=3))
    assert TransMIL(WIDTH, 2, TransMILConfig(inner=9, heads=3, landmarks=4))(make_bag(4)).logits.shape == (2,)
    with pytest.raises(AsmilError, match=r"10 .*4 heads"):
        NystromAttention(10, 4, 8)
    with pytest.raises(AsmilError, match="landmarks = 0"):
        NystromAttention(8, 4, 0)
    with pytest.raises(AsmilError, match="residual_kernel = 4"):
        NystromAttention(8, 4, 8, residual_kernel=4)


def test_official_width_by_default():
    model = TransMIL(WIDTH, 2, TransMILConfig())
    attention = model.layer2.attention
    assert (model.class_token.shape, attention.heads, attention.landmarks) == ((1, 512), 8, 256)


@pytest.mark.parametrize(("config", "landmarks"), [({}, 8), ({"n_landmarks": 5}, 5), ({"num_landmarks": 4}, 4)])
def test_official_tensors(config, landmarks):
    model, bag = make(outputs=2, dtype=torch.float32, landmarks=landmarks), make_bag(20, torch.float32)
    state = model.state_dict()
    tensors = {"cls_token": state["class_token"][None]}
    for ours, theirs in LAYERS.items():
        tensors |= {
            f"{theirs}.{leaf}": state[f"{ours}.{leaf}"] for leaf in ("weight", "bias") if f"{ours}.{leaf}" in state
        }
    loaded = official.load(tensors, config)
    assert isinstance(loaded, TransMIL)
    assert loaded.layer1.attention.heads == 2
    torch.testing.assert_close(loaded(bag).logits, model(bag).logits)
    del tensors["layer2.norm.weight"]
    with pytest.raises(AsmilError, match=r"layer2\.norm\.weight"):
        official.load(tensors)


@pytest.mark.parametrize("tiles", [1, 2, 10, 15, 16])
def test_a_bag_padded_to_its_square_gives_the_same(tiles):
    model = TransMIL(6, 2, TransMILConfig(inner=8, heads=2, landmarks=4)).eval()
    features = torch.randn(model.padded_rows(tiles), 6)
    mask = torch.arange(len(features)) < tiles
    padded, alone = model(Bag(features, mask=mask)), model(Bag(features[:tiles]))
    torch.testing.assert_close(padded.logits, alone.logits)
    torch.testing.assert_close(padded.scores[:, :tiles], alone.scores)
    assert padded.scores[:, tiles:].isneginf().all()
