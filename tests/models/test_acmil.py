from itertools import combinations

import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.acmil import TopMask, branch_similarity
from asmil.models.inference import infer
from asmil.runs.config import TrainingConfig, resolve
from asmil.tasks.classification import Classification
from asmil.training.optimization import build_optimizer
from plain_methods.acmil import plain_form

WIDTH = 24
TASK = Classification(["a", "b", "c"])
ARCHS = ("ga", "mha")


def make(**options):
    torch.manual_seed(2)
    return build("acmil", WIDTH, 3, **options)


def make_bag(tiles: int = 40, seed: int = 0) -> Bag:
    return Bag(torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(seed)), id="slide")


def test_ga_equals_its_formulas():
    model = make(branches=3, attention=7).eval()
    bag = make_bag()
    h = torch.relu(bag.features @ model.embedding.layers[0].weight.T)
    network = model.branches.attention
    z = network.weight(torch.tanh(network.value(h)) * torch.sigmoid(network.gate(h))).T
    attention = torch.softmax(z, dim=1)
    output = model(bag)
    torch.testing.assert_close(output.scores, z)
    torch.testing.assert_close(output.logits, model.head(attention.mean(dim=0) @ h))
    for branch, head in enumerate(model.branch_heads):
        torch.testing.assert_close(output.extras["branch_logits"][branch], head(attention[branch] @ h))
    torch.testing.assert_close(model.tile_map(output), attention.mean(dim=0))


@pytest.mark.parametrize(("branches", "heads"), [(1, 8), (4, 8), (3, 2), (2, 1)])
def test_mha_equals_the_form_with_keys_and_values(branches, heads):
    model = make(arch="mha", branches=branches, heads=heads, init_std=1.0).double().eval()
    features = make_bag().features.double()
    logits, branch_logits, scores = plain_form(model).double().eval().read(features)
    output = model(Bag(features))
    torch.testing.assert_close(output.logits, logits)
    torch.testing.assert_close(output.extras["branch_logits"], branch_logits)
    torch.testing.assert_close(output.scores, scores.flatten(0, 1))
    torch.testing.assert_close(model.tile_map(output), torch.softmax(scores, dim=-1).mean(dim=(0, 1)))


def test_mha_has_the_gradients_of_the_form_with_keys_and_values():
    model = make(arch="mha", branches=2, init_std=1.0, mask_drop=0.0, block_dropout=0.0).double().train()
    plain = plain_form(model).double()
    features = make_bag().features.double()
    output = model(Bag(features))
    model.loss([output], torch.tensor([1]), TASK).total.backward()
    logits, branch_logits, scores = plain.read(features)
    attention = torch.softmax(scores, dim=-1)
    alike = functional.cosine_similarity(attention[:, 0], attention[:, 1], dim=-1).mean()
    target = torch.tensor([1])
    total = functional.cross_entropy(logits[None], target) + functional.cross_entropy(branch_logits, target.expand(2))
    (total + alike).backward()
    torch.testing.assert_close(model.embedding.layers[0].weight.grad, plain.embedding.weight.grad)
    torch.testing.assert_close(model.branches.queries.grad, plain.queries.grad)
    for branch in range(2):
        for name in ("q", "k", "v", "out", "norm"):
            expected = plain.blocks[branch].layers[name].weight.grad
            torch.testing.assert_close(getattr(model.branches.block, f"{name}_weight").grad[branch], expected)


def test_one_branch_without_masking_is_abmil():
    model = make(branches=1, mask_top=0).train()
    abmil = build("abmil", WIDTH, 3)
    state = {name.removeprefix("branches."): value for name, value in model.state_dict().items()}
    abmil.load_state_dict({name: value for name, value in state.items() if not name.startswith("branch_heads")})
    bag = make_bag()
    output = model(bag)
    torch.testing.assert_close(output.logits, abmil(bag).logits)
    loss = model.loss([output], torch.tensor([1]), TASK)
    assert set(loss.parts) == {"ce"}
    torch.testing.assert_close(loss.total, TASK.loss(output.logits[None], torch.tensor([1])))
    loss.total.backward()
    assert model.branch_heads[0].weight.grad is None
    assert model.head.weight.grad.abs().max() > 0


@pytest.mark.parametrize("arch", ARCHS)
def test_masks_a_part_of_the_top_tiles_of_every_row(arch):
    model = make(arch=arch, init_std=1.0).train()
    model.use_generator(torch.Generator().manual_seed(0))
    output = model(make_bag())
    masked = output.extras["branch_attention"] == 0
    assert (masked.sum(dim=1) == 6).all()
    top = torch.zeros_like(masked).scatter(1, output.scores.topk(10, dim=1).indices, True)
    assert not (masked & ~top).any()
    assert len({tuple(row.tolist()) for row in torch.nonzero(masked)[:, 1].view(-1, 6)}) > 1
    torch.testing.assert_close(output.scores, model.attend(make_bag()))
    again = model(make_bag()).extras["branch_attention"] == 0
    assert not torch.equal(masked, again)
    assert "branch_attention" not in model.eval()(make_bag()).extras


def test_the_masked_scores_pool_and_enter_the_diversity_loss():
    model = make(branches=3, mask_drop=1.0, mask_top=7)
    model.masking.train()
    bag = make_bag()
    output = model(bag)
    scores = output.scores.detach().clone()
    for row in scores:
        row[row.argsort(descending=True)[:7]] = -1e9
    attention = torch.softmax(scores, dim=1)
    torch.testing.assert_close(output.extras["branch_attention"], attention)
    torch.testing.assert_close(output.embedding, attention.mean(dim=0) @ model.embed(bag.features))
    pairs = [functional.cosine_similarity(attention[i], attention[j], dim=0) for i, j in combinations(range(3), 2)]
    loss = model.loss([output], torch.tensor([2]), TASK)
    torch.testing.assert_close(loss.parts["diversity"], torch.stack(pairs).mean())
    torch.testing.assert_close(loss.total, loss.parts["ce"] + loss.parts["branch"] + loss.parts["diversity"])


@pytest.mark.parametrize(
    ("tiles", "top", "share", "masked"),
    [
        (200, 100, 0.29, 29),  # 28.999999999999996 in binary
        (200, 10, 0.6, 6),
        (200, 7, 0.5, 3),
        (200, 10, 1.0, 10),
        (200, 10, 0.0, 0),
        (200, 0, 1.0, 0),
        (5, 10, 0.6, 3),
        (10, 10, 1.0, 9),
        (4, 10, 1.0, 3),
        (1, 10, 0.6, 0),
        (1, 10, 1.0, 0),
    ],
)
def test_how_many_are_masked(tiles, top, share, masked):
    scores = torch.randn(3, tiles, generator=torch.Generator().manual_seed(0))
    before = scores.clone()
    masking = TopMask(top, share).train()
    masking.generator = torch.Generator().manual_seed(1)
    result = masking(scores)
    assert torch.isneginf(result).sum(dim=1).tolist() == [masked] * 3
    assert torch.equal(scores, before)
    kept = ~torch.isneginf(result)
    assert torch.equal(result[kept], scores[kept])
    # with padding, the same numbers choose the same tiles
    padded = functional.pad(scores, (0, 7), value=-torch.inf).requires_grad_()
    numbers = torch.rand(3, min(top, tiles), generator=torch.Generator().manual_seed(1))
    masking.uniform = lambda shape, like: functional.pad(numbers, (0, shape[1] - numbers.shape[1]))
    found = masking(padded, torch.arange(tiles + 7) < tiles)
    assert torch.equal(found[:, :tiles], result)
    torch.softmax(found, dim=1).square().sum().backward()
    assert torch.isfinite(padded.grad).all()
    assert not padded.grad[torch.isneginf(found)].any()


def test_each_top_tile_is_masked_equally_often():
    mask = TopMask(5, 0.4).train()
    mask.generator = torch.Generator().manual_seed(0)
    result = mask(torch.arange(12.0).expand(20_000, 12))
    often = torch.isneginf(result).float().mean(dim=0)
    assert (often[:7] == 0).all()
    torch.testing.assert_close(often[7:], torch.full((5,), 0.4), rtol=0, atol=0.02)


def test_diversity_is_the_mean_over_pairs_and_heads():
    attention = torch.softmax(3 * torch.randn(4 * 3, 17, generator=torch.Generator().manual_seed(0)), dim=1)
    by_head = attention.view(4, 3, 17)
    pairs = [functional.cosine_similarity(by_head[:, i], by_head[:, j], dim=-1) for i, j in combinations(range(3), 2)]
    torch.testing.assert_close(branch_similarity(attention, 3), torch.stack(pairs).mean())
    torch.testing.assert_close(branch_similarity(torch.eye(3), 3), torch.tensor(0.0))
    torch.testing.assert_close(branch_similarity(attention[:1].expand(3, -1), 3), torch.tensor(1.0))


@pytest.mark.parametrize("arch", ARCHS)
def test_losses_are_means_over_branches_and_slides(arch):
    model = make(arch=arch, init_std=1.0).eval()
    bags, targets = [make_bag(3), make_bag(50, seed=1)], torch.tensor([0, 2])
    together = model.loss([model(bag) for bag in bags], targets, TASK)
    assert set(together.parts) == {"ce", "branch", "diversity"}
    for part in together.parts:
        alone = [model.loss([model(b)], t, TASK).parts[part] for b, t in zip(bags, targets.split(1), strict=True)]
        torch.testing.assert_close(together.parts[part], torch.stack(alone).mean())
    by_branch = [functional.cross_entropy(row, targets[0]) for row in model(bags[0]).extras["branch_logits"]]
    alone = model.loss([model(bags[0])], targets[:1], TASK)
    torch.testing.assert_close(alone.parts["branch"], torch.stack(by_branch).mean())


@pytest.mark.parametrize("arch", ARCHS)
def test_a_streamed_output_has_the_same_losses(arch):
    model = make(arch=arch, init_std=1.0)
    outputs = [infer(model, make_bag(), chunk_tiles=chunk) for chunk in (40, 7)]
    first, second = (model.loss([output], torch.tensor([1]), TASK).parts for output in outputs)
    for part in first:
        torch.testing.assert_close(first[part], second[part])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("tiles", [1, 2, 40])
def test_training_lowers_the_loss(arch, tiles):
    model = make(arch=arch, mask_drop=1.0, block_dropout=0.0).train()
    model.use_generator(torch.Generator().manual_seed(0))
    optimizer = build_optimizer(model, TrainingConfig(lr=3e-3))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model.loss([model(make_bag(tiles))], torch.tensor([1]), TASK)
        loss.total.backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.total.detach()))
    assert losses[-1] < losses[0] - 0.3


def test_heads_must_share_the_width_out():
    with pytest.raises(AsmilError, match=r"width 20 .*model\.heads = 8"):
        make(arch="mha", inner=20)
    assert make(arch="ga", inner=20).embedding.width == 20


def test_official_settings():
    training = resolve("acmil", "official").training
    assert (training.optimizer, training.weight_decay, training.schedule) == ("adamw", 1e-5, "cosine")


def test_official_words_for_what_shapes_do_not_tell():
    model = make(branches=1, attention=7)
    theirs = {
        "embedding.layers.0": "dimreduction.fc1",
        "branches.attention.value": "attention.attention_V.0",
        "branches.attention.gate": "attention.attention_U.0",
        "branches.attention.weight": "attention.attention_weights",
        "branch_heads.0": "classifier.0.fc",
        "head": "Slide_classifier.fc",
    }
    layers = {name: name.rsplit(".", 1) for name in model.state_dict()}
    state = {f"{theirs[layers[name][0]]}.{layers[name][1]}": value for name, value in model.state_dict().items()}
    loaded = official.load(state, {"n_masked_patch": 3, "mask_drop": 0.5})
    assert (loaded.config.branches, loaded.config.mask_top, loaded.config.mask_drop) == (1, 3, 0.5)
    assert torch.equal(loaded(make_bag()).logits, model.eval()(make_bag()).logits)
