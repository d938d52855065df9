import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification
from plain_methods.ilra import PlainILRA

WIDTH = 20


def make(**options):
    torch.manual_seed(3)
    options = {"inner": 16, "heads": 4, **options}
    model = build("ilra", WIDTH, 3, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def make_bag(tiles: int = 23) -> Bag:
    return Bag(torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(tiles)))


def official_state(model) -> dict[str, torch.Tensor]:
    """The model's weights under the names of the official code."""
    names = {
        "blocks": "gab_blocks",
        "latents": "latent",
        "read_tiles": "project_forward",
        "read_latents": "project_backward",
        "query": "fc_q",
        "key": "fc_k",
        "value": "fc_v",
        "feed": "fc_o",
        "norm_attention": "ln0",
        "norm_feed": "ln1",
        "gate": "gate.0",
        "out": "multihead_attn.out_proj",
        "in_weight": "multihead_attn.in_proj_weight",
        "in_bias": "multihead_attn.in_proj_bias",
        "pooling": "pooling.mha",
        "seed": "pooling.S",
        "head": "classifier",
    }
    state = {}
    for name, tensor in model.state_dict().items():
        theirs = ".".join(names.get(part, part) for part in name.split("."))
        if theirs.endswith(("in_proj_weight", "in_proj_bias")):
            tensor = tensor.flatten(0, 1)
        state[theirs] = tensor.unsqueeze(0) if theirs.endswith((".latent", ".S")) else tensor
    return state


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("rank", "heads", "blocks"), [(1, 4, 1), (2, 4, 2), (3, 8, 3), (7, 4, 2), (40, 2, 2)])
def test_folded_equals_the_plain_formulas(rank, heads, blocks, norm):
    model = make(rank=rank, heads=heads, blocks=blocks, norm=norm).double()
    plain, bag = PlainILRA(model), Bag(make_bag().features.double())
    output = model(bag)
    torch.testing.assert_close(output.logits, plain(bag.features), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(output.scores, plain.scores(bag.features), rtol=1e-9, atol=1e-9)


def test_gradients_equal_those_of_the_plain_formulas():
    model = make(rank=3, norm=True).double()
    plain, features = PlainILRA(model), make_bag().features.double()
    target = torch.tensor([2])
    functional.cross_entropy(model(Bag(features)).logits.unsqueeze(0), target).backward()
    functional.cross_entropy(plain(features).unsqueeze(0), target).backward()
    pairs = [
        (model.blocks[0].latents, plain.blocks[0].latents),
        (model.blocks[0].read_tiles.key.weight, plain.blocks[0].read_tiles.key.weight),
        (model.blocks[0].read_tiles.value.weight, plain.blocks[0].read_tiles.value.weight),
        (model.blocks[1].read_latents.query.weight, plain.blocks[1].read_latents.query.weight),
        (model.blocks[1].read_latents.in_weight, plain.blocks[1].read_latents.attention.in_proj_weight),
        (model.pooling.in_weight, plain.pooling.attention.in_proj_weight),
        (model.pooling.out.weight, plain.pooling.attention.out_proj.weight),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.grad.view_as(theirs), theirs.grad, rtol=1e-8, atol=1e-10)


def test_one_latent_adds_the_same_vector_to_every_tile():
    model, features = make(rank=1), make_bag().features
    block = model.blocks[0].read_latents
    latents = torch.randn(1, 16)
    before = model.blocks[0](features)
    with torch.no_grad():
        block.key.weight.mul_(-3)
        block.in_weight[:2].mul_(5)
    assert torch.equal(model.blocks[0](features), before)
    added = block.out(block.second_map(2, block.value(latents)).flatten(1))
    expected = block.finish(features, block.query(features), added.expand(len(features), -1))
    torch.testing.assert_close(block(features, latents), expected)


def test_heatmap_is_the_mean_of_the_heads_attention():
    model = make()
    output = model(make_bag())
    assert output.scores.shape == (4, 23)
    expected = torch.softmax(output.scores, dim=1).mean(dim=0)
    torch.testing.assert_close(model.tile_map(output), expected)
    averaged_first = torch.softmax(output.scores.mean(dim=0), dim=0)
    assert (expected - averaged_first).abs().max() > 1e-4


def test_more_latents_than_tiles():
    output = make(rank=9)(make_bag(2))
    assert torch.isfinite(output.logits).all()


def test_inference_and_training_mode_agree():
    model, bag = make(), make_bag()
    assert torch.equal(model.train()(bag).logits, model.eval()(bag).logits)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_bfloat16_products_give_nearly_the_same(rank):
    model, bag = make(rank=rank, norm=True).train(), make_bag()
    expected = model(bag).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(bag).logits
    torch.testing.assert_close(logits.float(), expected, rtol=0.05, atol=0.05)
    logits.sum().backward()
    assert model.blocks[0].latents.grad.isfinite().all()


def test_start_of_the_weights():
    torch.manual_seed(0)
    model = build("ilra", 64, 2, inner=128, rank=4)
    block = model.blocks[0]
    assert block.latents.shape == (4, 128)
    bound = (6 / (4 * 128 + 128)) ** 0.5
    assert 0.9 * bound < block.latents.abs().max() <= bound
    torch.testing.assert_close(block.read_tiles.key.weight.std().item(), (2 / (64 + 128)) ** 0.5, rtol=0.03, atol=0)
    torch.testing.assert_close(block.read_tiles.out.weight.std().item(), (2 / 256) ** 0.5, rtol=0.03, atol=0)
    in_bound = (6 / (128 + 3 * 128)) ** 0.5
    assert 0.99 * in_bound < block.read_tiles.in_weight.abs().max() <= in_bound
    assert not block.read_tiles.in_bias.any()
    assert not block.read_tiles.out.bias.any()
    assert block.read_tiles.query.bias.abs().min() > 0


def test_width_must_fit_the_heads():
    with pytest.raises(AsmilError, match=r"width 10 .*model\.heads = 4"):
        build("ilra", WIDTH, 2, inner=10, heads=4)


@pytest.mark.parametrize("norm", [True, False])
def test_official_state_dicts_load(norm):
    model = make(rank=3, heads=2, blocks=3, norm=norm)
    state = official_state(model)
    loaded = official.load(state, {"num_heads": 2})
    assert loaded.config == model.config
    assert torch.equal(loaded(make_bag()).logits, model(make_bag()).logits)
    in_mil_lab = {f"model.{name.replace('multihead_attn', 'multihead_attention')}": t for name, t in state.items()}
    assert torch.equal(official.load(in_mil_lab, {"num_heads": 2})(make_bag()).logits, loaded(make_bag()).logits)


def test_several_pooling_seeds_and_missing_layers_are_refused():
    state = official_state(make())
    with pytest.raises(AsmilError, match=r"ilra .*seed \(2, 16\)"):
        official.load({**state, "pooling.S": torch.zeros(1, 2, 16)}, {"num_heads": 4})
    del state["gab_blocks.1.project_backward.fc_o.weight"]
    with pytest.raises(AsmilError, match=r"gab_blocks\.1\.project_backward\.fc_o\.weight"):
        official.load(state, {"num_heads": 4})


def test_a_step_lowers_the_loss():
    model, bag, target = make(norm=True).train(), make_bag(), torch.tensor([1])
    task = Classification(["a", "b", "c"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model.loss([model(bag)], target, task)
        loss.total.backward()
        optimizer.step()
        losses.append(loss.total.item())
    assert losses[-1] < losses[0]


def test_official_preset_is_the_published_configuration():
    config = resolve("ilra", "official")
    assert (config.model.rank, config.model.norm, config.training.weight_decay) == (1, True, 0.0)
    assert (config.training.epochs, config.training.select) == (100, "last")
