import numpy as np
import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models import official
from asmil.models.dtfd import _rivals, deal
from asmil.runs.config import TrainingConfig, resolve
from asmil.tasks.classification import Classification
from asmil.training.optimization import build_optimizer, clip_gradients

WIDTH = 24
RULES = ("AFS", "MaxS", "MaxMinS")
TASK = Classification(["a", "b", "c"])


def make(classes: int = 3, **options):
    torch.manual_seed(3)
    return build("dtfd", WIDTH, classes, **options)


def make_bag(tiles: int = 30, groups: list[int] | None = None, seed: int = 0, id: str = "slide") -> Bag:
    features = torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(seed))
    return Bag(features, id=id, extras={} if groups is None else {"pseudo_bags": torch.tensor(groups)})


def gated(network, h):
    hidden = torch.tanh(network.value(h)) * torch.sigmoid(network.gate(h))
    return network.weight(hidden)[:, 0]


def plain(model, bag, ids):
    """The method as it is described, pseudo-bag by pseudo-bag: tier-1 logits, selected tiles, slide logits."""
    h = torch.relu(bag.features @ model.embedding.layers[0].weight.T)
    for block in model.residual:
        h = h + torch.relu(torch.relu(h @ block.first.weight.T) @ block.second.weight.T)
    z = gated(model.attention, h)
    k = model.config.total_instance // model.config.groups
    tier1, distilled, selected = [], [], []
    for group in sorted(set(ids.tolist())):
        tiles = torch.nonzero(ids == group).flatten()
        weighted = torch.softmax(z[tiles], dim=0).unsqueeze(1) * h[tiles]
        feature = weighted.sum(dim=0)
        tier1.append(model.classifier(feature))
        p = torch.softmax((weighted @ model.classifier.weight.T).detach().double(), dim=1)[:, -1]
        ranked = sorted(range(len(tiles)), key=lambda i: -float(p[i]))
        chosen = {"AFS": [], "MaxS": ranked[:k], "MaxMinS": ranked[:k] + ranked[-k:]}[model.config.distill]
        selected += [int(tiles[i]) for i in chosen]
        distilled += [h[tiles[i]] for i in chosen] if chosen else [feature]
    f = torch.stack(distilled)
    pooled = torch.softmax(gated(model.tier2.attention, f), dim=0) @ f
    return torch.stack(tier1), selected, model.tier2.classifier(pooled)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("classes", "blocks"), [(2, 0), (5, 2)])
def test_equals_its_description(rule, classes, blocks):
    model = make(classes, distill=rule, total_instance=11, residual_blocks=blocks, attention=7).eval()
    bag = make_bag(37)
    output = model(bag)
    ids = output.extras["pseudo_bags"]
    tier1, selected, logits = plain(model, bag, ids)
    torch.testing.assert_close(output.extras["tier1_logits"], tier1)
    torch.testing.assert_close(output.logits, logits)
    if rule != "AFS":
        assert output.extras["selected"].tolist() == selected


@pytest.mark.parametrize(("tiles", "groups"), [(10, 4), (12, 4), (3, 3), (7, 1), (50, 6)])
def test_dealt_as_numpy_splits(tiles, groups):
    order = torch.randperm(tiles, generator=torch.Generator().manual_seed(1))
    ids = deal(order, groups)
    for group, part in enumerate(np.array_split(order.numpy(), groups)):
        assert (ids[torch.from_numpy(part)] == group).all()
        assert (ids == group).sum() == len(part)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tiles", [1, 2, 3, 5])
def test_few_tiles_make_fewer_pseudo_bags_and_none_empty(rule, tiles):
    model = make(distill=rule, total_instance=8).eval()
    bag = make_bag(tiles)
    output = model(bag)
    assert len(output.extras["tier1_logits"]) == min(4, tiles)
    _, selected, logits = plain(model, bag, output.extras["pseudo_bags"])
    torch.testing.assert_close(output.logits, logits)
    if rule == "MaxMinS":
        assert output.extras["selected"].tolist() == selected
        assert len(selected) == 2 * tiles  # pseudo-bags of at most 2 = k tiles give each of them twice


def test_equal_tiles_keep_their_order():
    model = make(distill="MaxMinS", groups=2, total_instance=4).eval()
    bag = Bag(torch.zeros(8, WIDTH), extras={"pseudo_bags": torch.tensor([1, 0, 1, 0, 1, 0, 1, 0])})
    assert model(bag).extras["selected"].tolist() == [1, 3, 5, 7, 0, 2, 4, 6]


@pytest.mark.parametrize("classes", [2, 4])
def test_tiles_are_told_apart_where_float32_probabilities_are_not(classes):
    evidence = 1e-9 * torch.randn(50, classes, generator=torch.Generator().manual_seed(0))
    assert len(torch.softmax(evidence, dim=1)[:, -1].unique()) < 5
    exact = torch.softmax(evidence.double(), dim=1)[:, -1]
    assert torch.equal(_rivals(evidence).argsort(), exact.argsort(descending=True))


def test_each_loss_trains_its_own_tier():
    for rule in RULES:
        model = make(distill=rule)
        output = model(make_bag())
        loss = model.loss([output], torch.tensor([1]), TASK)
        torch.testing.assert_close(loss.total, loss.parts["ce"] + loss.parts["tier1"])
        for part, trained in (("ce", True), ("tier1", False)):
            model.zero_grad()
            loss.parts[part].backward(retain_graph=True)
            for name, parameter in model.named_parameters():
                assert (parameter.grad is not None) == (name.startswith("tier2.") == trained), (rule, part, name)


def test_pseudo_bags_count_alike_within_a_slide_and_slides_within_a_step():
    model = make().eval()
    bags, targets = [make_bag(2), make_bag(30, seed=1)], torch.tensor([0, 2])
    together = model.loss([model(bag) for bag in bags], targets, TASK)
    for part in ("ce", "tier1"):
        alone = [model.loss([model(b)], t, TASK).parts[part] for b, t in zip(bags, targets.split(1), strict=True)]
        torch.testing.assert_close(together.parts[part], torch.stack(alone).mean())
    logits = model(bags[0]).extras["tier1_logits"]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 0]))
    torch.testing.assert_close(model.loss([model(bags[0])], targets[:1], TASK).parts["tier1"], expected)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_one_step_is_the_two_official_steps(clip):
    """Officially: two optimizers, tier 1 first; the four modules are clipped one by one."""
    ids = [i % 4 for i in range(30)]
    model, other = make(clip_norm=clip, distill="MaxMinS"), make(distill="MaxMinS")
    optimizer = build_optimizer(model, TrainingConfig(lr=1e-2, weight_decay=1e-2))
    tiers = [[other.embedding, other.attention, other.classifier], [other.tier2]]
    optimizers = [
        torch.optim.Adam([p for m in tier for p in m.parameters()], lr=1e-2, weight_decay=1e-2) for tier in tiers
    ]
    clipped = 0
    for step in range(3):
        bag, target = make_bag(30, ids, seed=step), torch.tensor([step])
        optimizer.zero_grad()
        model.loss([model(bag)], target, TASK).total.backward()
        clip_gradients(optimizer, None)
        optimizer.step()

        tier1, _, logits = plain(other, bag, torch.tensor(ids))
        losses = TASK.loss(tier1, target.expand(4)), TASK.loss(logits.unsqueeze(0), target)
        for loss, tier in zip(losses, tiers, strict=True):
            parameters = [p for module in tier for p in module.parameters()]
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            if clip is not None:
                clipped += sum(
                    float(torch.nn.utils.clip_grad_norm_(module.parameters(), clip)) > clip for module in tier
                )
        for half in optimizers:
            half.step()
    assert clipped > 3 or clip is None
    for ours, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_every_parameter_is_in_one_group_with_its_clip():
    model = make(residual_blocks=1)
    groups = model.parameter_groups()
    assert [group["clip_norm"] for group in groups] == [5.0] * 4
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(listed) == sorted(map(id, model.parameters()))
    assert all("clip_norm" not in group for group in make(clip_norm=None).parameter_groups())


def test_training_deals_anew_and_evaluation_does_not():
    model = make().train()
    model.use_generator(torch.Generator().manual_seed(0))
    first, second = (model(make_bag()).extras["pseudo_bags"] for _ in range(2))
    assert not torch.equal(first, second)
    assert first.bincount().tolist() == second.bincount().tolist() == [8, 8, 7, 7]
    model.eval()
    splits = []
    for _ in range(2):
        torch.manual_seed(torch.seed())
        splits.append(model(make_bag(seed=1)).extras["pseudo_bags"])
    assert torch.equal(*splits)
    assert not torch.equal(splits[0], model(make_bag(id="another")).extras["pseudo_bags"])
    assert splits[0].bincount().tolist() == [8, 8, 7, 7]


@pytest.mark.parametrize("rule", RULES)
def test_several_splits_average_the_probabilities(rule):
    model = make(distill=rule, inference_splits=5).eval()
    bag = make_bag()
    splits = [model.split(bag, repeat).ids for repeat in range(5)]
    assert len({tuple(ids.tolist()) for ids in splits}) == 5
    single = [model(make_bag(groups=ids.tolist())) for ids in splits]
    mean = torch.stack([torch.softmax(output.logits, dim=0) for output in single]).mean(dim=0)
    output = model(bag)
    torch.testing.assert_close(torch.softmax(output.logits, dim=0), mean)
    torch.testing.assert_close(output.logits, mean.log())
    assert torch.equal(output.scores, single[0].scores)
    assert abs(float(model.train()(bag).logits.detach().exp().sum()) - 1) > 0.1  # in training one split, as it is


def test_a_given_split_may_use_any_numbers():
    model = make(distill="MaxS").eval()
    ids = [0, 1, 2] * 10
    named = [[-3, 7, 100][i] for i in ids]
    first, second = model(make_bag(groups=ids)), model(make_bag(groups=named))
    assert torch.equal(first.logits, second.logits)
    assert second.extras["pseudo_bags"].tolist() == ids
    with pytest.raises(AsmilError, match=r"pseudo_bags.*\(3,\).*30"):
        model(make_bag(groups=[0, 1, 2]))


def test_heat_maps():
    model = make().eval()
    output = model(make_bag())
    torch.testing.assert_close(model.tile_map(output), torch.softmax(output.scores[0], dim=0))
    h = model.embed(make_bag().features)
    weighted = output.extras["tier1_attention"].unsqueeze(1) * h
    p = torch.softmax(weighted @ model.classifier.weight.T, dim=1)[:, -1]
    torch.testing.assert_close(model.tile_map(output, "probability"), p)
    assert output.extras["tier1_attention"].sum() == pytest.approx(4, abs=1e-5)


def test_impossible_settings_are_refused():
    with pytest.raises(AsmilError, match="softmax"):
        make(classes=1)
    for rule in ("MaxS", "MaxMinS"):
        with pytest.raises(AsmilError, match=r"total_instance = 4 .*model\.groups = 5"):
            make(distill=rule, groups=5)
    assert make(distill="AFS", groups=5).config.groups == 5


def test_official_settings():
    training = resolve("dtfd", "official").training
    assert (training.epochs, training.lr_drops, training.lr_drop_factor) == (200, [100], 0.2)
    assert build("dtfd", 1024, 2).embedding.width == 512


def test_official_words_for_what_shapes_do_not_tell():
    theirs = {"value": "attention_V.0", "gate": "attention_U.0", "weight": "attention_weights"}
    model = make(residual_blocks=2, attention=5)
    state = {}
    for name, value in model.state_dict().items():
        if name.startswith(("attention.", "tier2.attention.")):
            layer = name.split(".")[-2]
            name = name.replace(f".{layer}.", f".{theirs[layer]}.")
        name = name.replace("embedding.layers.0", "dim_reduction.fc1").replace("classifier.", "classifier.fc.")
        name = name.replace("residual.", "dim_reduction.resBlocks.").replace("tier2.", "att_classifier.")
        state[name.replace(".first.", ".block.0.").replace(".second.", ".block.2.")] = value
    config = {"numGroup": 3, "total_instance": 7, "distill_type": "MaxS", "grad_clipping": 1}
    loaded = official.load(state | {"dim_reduction.bn.weight": torch.ones(16)}, config)
    assert (loaded.config.groups, loaded.config.total_instance, loaded.config.distill) == (3, 7, "MaxS")
    assert loaded.config.clip_norm == 1
    ids = [i % 3 for i in range(30)]
    torch.testing.assert_close(
        loaded(make_bag(groups=ids)).extras["tier1_logits"], model(make_bag(groups=ids)).extras["tier1_logits"]
    )
