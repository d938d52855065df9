import math

import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.r2t_regional import BLOCK_TOKENS, Folding, SelfAttention
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification
from plain_methods.r2t import PlainR2T, PlainSelfAttention

WIDTH = 12


def make(**options):
    torch.manual_seed(5)
    options = {"inner": 16, "heads": 4, "crmsa_heads": 2, "epeg_k": 5, "attention": 6, **options}
    model = build("r2t", WIDTH, 3, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def make_bag(tiles: int = 150, dtype=torch.float32) -> Bag:
    return Bag(torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(tiles)).to(dtype), id=f"slide-{tiles}")


def official_state(model) -> dict[str, torch.Tensor]:
    """The model's weights under the names of the official code."""
    names = {
        "embedding.layers.0": "patch_to_emb.0",
        "head": "predictor",
        "norm": "online_encoder.norm",
        "regional": "online_encoder.layers",
        "cross": "online_encoder.cr_msa",
        "attention.value": "pool_fn.attention.attention_a.0",
        "attention.gate": "pool_fn.attention.attention_b.0",
        "attention.weight": "pool_fn.attention.attention_c",
    }
    if not model.config.gated:
        names |= {
            "attention.value": "pool_fn.attention.attention.0",
            "attention.weight": "pool_fn.attention.attention.2",
        }
    parts = {".attention": ".attn", ".epeg": ".pe", ".out": ".proj", ".norm_feed": ".norm2", ".feed": ".mlp"}
    parts |= {".widen": ".fc1", ".narrow": ".fc2"}
    state = {}
    for name, tensor in model.state_dict().items():
        ours = next(prefix for prefix in names if name.startswith(prefix + "."))
        rest = name.removeprefix(ours)
        for part, theirs in parts.items():
            rest = rest.replace(part, theirs)
        state[names[ours] + rest] = tensor
    return state


@pytest.mark.parametrize(
    ("tiles", "options"),
    [
        (1, {}),
        (3, {"all_shortcut": True}),
        (64, {"region_num": 2}),
        (65, {"crmsa_k": 1}),
        (70, {"region_num": 4, "layers": 3}),
        (150, {"crmsa_mlp": True, "gated": True, "attention_bias": True, "attention_activation": "relu"}),
        (150, {"ffn": True, "epeg_k": 9, "crmsa_heads": 1, "activation": "gelu"}),
        (200, {"region_num": 3, "crmsa_regions": 5, "attention_activation": "gelu", "epeg_k": 0}),
        (90, {"layers": 1, "all_shortcut": True}),
    ],
)
def test_equals_the_plain_formulas(tiles, options):
    model = make(**options).double()
    plain, bag = PlainR2T(model).eval(), make_bag(tiles, torch.float64)
    output, expected = model(bag), plain.reembed(bag.features)
    torch.testing.assert_close(model.reembed(bag), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(output.scores, plain.pooling(expected), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(output.logits, plain(bag.features), rtol=1e-9, atol=1e-9)


def test_gradients_equal_those_of_the_plain_formulas():
    model = make(crmsa_k=2).double()
    plain, features = PlainR2T(model).eval(), make_bag(dtype=torch.float64).features
    target = torch.tensor([2])
    functional.cross_entropy(model(Bag(features)).logits.unsqueeze(0), target).backward()
    functional.cross_entropy(plain(features).unsqueeze(0), target).backward()
    region, cross = plain.layers[0].attention, plain.layers[1].attention
    pairs = [
        (model.embedding.layers[0].weight, plain.embedding.layers[0].weight),
        (model.regional[0].attention.attention.qkv.weight, region.attention.qkv.weight),
        (model.regional[0].attention.attention.epeg.weight, region.attention.epeg.weight),
        (model.cross.attention.phi, cross.phi),
        (model.cross.attention.attention.qkv.weight, cross.attention.qkv.weight),
    ]
    for ours, theirs in pairs:
        assert theirs.grad.abs().max() > 1e-8
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-11)
    assert model.regional[0].attention.attention.epeg.bias.grad is None
    assert region.attention.epeg.bias.grad.abs().max() < 1e-15


@pytest.mark.parametrize(("tokens", "kernel"), [(1, 15), (4, 15), (9, 3), (25, 7)])
def test_epeg_of_the_queries_is_epeg_of_the_logits(tokens, kernel):
    torch.manual_seed(0)
    attention = SelfAttention(12, 3, 0.0, kernel).double()
    torch.nn.init.normal_(attention.epeg.weight)
    torch.nn.init.normal_(attention.epeg.bias)
    x = torch.randn(2, tokens, 12, dtype=torch.float64)
    torch.testing.assert_close(attention(x), PlainSelfAttention(attention)(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("tokens", "folding", "per_side", "size"),
    [
        (1, Folding(8), 8, 1),
        (64, Folding(8), 8, 1),
        (65, Folding(8), 8, 2),
        (150, Folding(4), 4, 4),
        (100_000, Folding(8), 8, 40),
        (150, Folding(8, size=5), 3, 5),
        (150, Folding(4, min_tokens=150), 4, 4),
        (149, Folding(4, min_tokens=150), 1, 14),
        (150, Folding(4, padding_ratio=1.4), 4, 4),
        (150, Folding(4, padding_ratio=1.5), 1, 14),
    ],
)
def test_how_a_sequence_is_cut(tokens, folding, per_side, size):
    windows = folding.windows(tokens)
    assert (windows.per_side, windows.size) == (per_side, size)


def test_tokens_lie_in_windows_row_by_row():
    windows = Folding(3).windows(40)
    assert windows.size == 3
    assert windows.filled == 6  # the third row of windows would be padding alone
    sequence = torch.arange(1, 41).float().unsqueeze(1)
    folded = windows.fold(sequence)
    for window in range(6):
        for place in range(9):
            row, column = window // 3 * 3 + place // 3, window % 3 * 3 + place % 3
            index = row * 9 + column
            assert folded[window, place, 0] == (index + 1 if index < 40 else 0)
    assert torch.equal(windows.unfold(folded), sequence)


def test_window_options_reach_the_encoder():
    bag = make_bag(60)
    whole = make(region_num=1)
    assert torch.equal(make(region_num=4, min_region_num=61)(bag).logits, whole(bag).logits)
    assert not torch.allclose(make(region_num=4)(bag).logits, whole(bag).logits)
    by_number, by_size = make(region_num=4), make(region_num=7, region_size=2)
    assert torch.equal(by_number(bag).logits, by_size(bag).logits)


def test_few_tiles_have_no_context():
    model, bag = make(), make_bag(64)
    together = model.reembed(bag)
    alone = torch.cat([model.reembed(bag.subset(torch.tensor([tile]))) for tile in range(64)])
    torch.testing.assert_close(together, alone)
    larger = make_bag(65)
    assert not torch.allclose(model.reembed(larger)[:1], model.reembed(larger.subset(torch.tensor([0]))), atol=1e-3)


def test_few_tiles_train_without_wild_gradients():
    model = make().train()
    model(make_bag(20)).logits.sum().backward()
    assert all(parameter.grad is None for parameter in model.cross.attention.parameters())
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_order_matters_beyond_64_tiles():
    model, bag = make(), make_bag()
    assert (model(bag).logits - model(bag.subset(torch.arange(149, -1, -1))).logits).abs().max() > 1e-3


def test_inference_in_blocks_of_windows_is_the_same():
    model, bag = make(inner=8), make_bag(BLOCK_TOKENS + 4_000)
    whole = model(bag)
    with torch.inference_mode():
        blocks = model(bag)
    torch.testing.assert_close(blocks.scores, whole.scores, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(blocks.logits, whole.logits, rtol=1e-5, atol=1e-5)


def test_other_widths_and_heads():
    assert build("r2t", WIDTH, 2).embedding.width == 512
    with pytest.raises(AsmilError, match=r"width 20 .*model\.heads = 8"):
        build("r2t", WIDTH, 2, inner=20)
    with pytest.raises(AsmilError, match=r"width 16 .*model\.crmsa_heads = 3"):
        make(crmsa_heads=3)


def test_even_kernels_are_refused():
    with pytest.raises(AsmilError, match=r"model\.epeg_k = 14.*13 or 15"):
        make(epeg_k=14)


def test_start_of_the_weights():
    torch.manual_seed(0)
    model = build("r2t", 64, 2, inner=128, crmsa_k=4)
    phi = model.cross.attention.phi
    assert phi.shape == (128, 4)
    assert 0.95 / math.sqrt(4) < phi.abs().max() <= 1 / math.sqrt(4)
    qkv = model.regional[0].attention.attention.qkv
    torch.testing.assert_close(qkv.weight.std().item(), (2 / (4 * 128)) ** 0.5, rtol=0.03, atol=0)
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    assert not any(bias.any() for bias in biases)


@pytest.mark.parametrize(
    "options",
    [
        {"all_shortcut": True, "region_num": 4, "crmsa_k": 2},
        {"crmsa_mlp": True, "gated": True, "attention_bias": True, "layers": 3, "ffn": True},
        {"epeg_k": 0, "region_size": 3, "activation": "gelu", "attention_activation": "relu"},
        {"layers": 1, "min_region_num": 200},
    ],
)
def test_official_state_dicts_load(options):
    model, bag = make(**options), make_bag()
    words = {"activation": "act", "attention_activation": "da_act", "heads": "n_heads"}
    given = {words.get(name, name): value for name, value in model.config.model_dump().items()}
    loaded = official.load(official_state(model), given)
    assert torch.equal(loaded(bag).logits, model(bag).logits)
    assert {name: getattr(loaded.config, name) for name in options} == options


def test_absent_words_mean_the_defaults_of_the_official_class():
    loaded = official.load(official_state(make(heads=8, crmsa_heads=8)), {})
    assert loaded.config.attention_activation == "relu"
    assert (loaded.config.crmsa_heads, loaded.config.region_num, loaded.config.all_shortcut) == (8, 8, False)


def test_a_missing_layer_is_named():
    state = official_state(make())
    del state["online_encoder.cr_msa.attn.attn.qkv.weight"]
    with pytest.raises(AsmilError, match=r"r2t.*online_encoder\.cr_msa\.attn\.attn\.qkv\.weight"):
        official.load(state, {})


def test_a_step_lowers_the_loss():
    model, bag, target = make(dropout=0.0, layer_dropout=0.0).train(), make_bag(), torch.tensor([1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model.loss([model(bag)], target, Classification(["a", "b", "c"]))
        loss.total.backward()
        optimizer.step()
        losses.append(loss.total.item())
    assert losses[-1] < losses[0]


def test_official_preset_is_the_published_command():
    config = resolve("r2t", "official")
    assert (config.model.crmsa_k, config.model.all_shortcut, config.model.epeg_k) == (1, True, 15)
    assert config.model.attention_activation == "tanh"
    assert (config.training.lr, config.training.weight_decay, config.training.epochs) == (2e-4, 1e-5, 200)
