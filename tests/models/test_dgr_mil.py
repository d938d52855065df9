import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.models.blocks.randomness import TileDropout
from asmil.models.dgr_mil import diversity_loss, moved_centers, triplet_loss
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification
from asmil.tasks.regression import Regression
from asmil.training.optimization import build_optimizer
from plain_methods.dgr_mil import PlainDGRMIL

WIDTH = 20
TASK = Classification(["normal", "tumor", "other"])


def make(**options):
    torch.manual_seed(3)
    return build("dgr_mil", WIDTH, 3, **{"inner": 16, "heads": 4, "lesions": 5, **options})


def make_bag(tiles: int = 23) -> Bag:
    return Bag(torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(tiles)))


@pytest.mark.parametrize("tiles", [1, 23, 64])
def test_folded_equals_the_plain_formulas(tiles):
    model, bag = make().double().eval(), make_bag(tiles)
    plain, features = PlainDGRMIL(model), bag.features.double()
    output = model(bag)
    torch.testing.assert_close(output.logits, plain(features))
    weights, _ = plain.attention(features)
    torch.testing.assert_close(model.normalizer(output.scores), weights[:, 0])
    maps = torch.stack([model.tile_map(output, kind) for kind in model.map_kinds])
    torch.testing.assert_close(maps, weights.mean(dim=0))
    model.loss([output], torch.tensor([1]), TASK).total.backward()
    TASK.loss(plain(features)[None], torch.tensor([1])).backward()
    torch.testing.assert_close(model.lesions.grad, plain.lesions.grad)
    torch.testing.assert_close(model.attention.value.bias.grad, plain.value.bias.grad)


def test_dropped_weights_scale_the_bias_of_the_values():
    attention, tiles = make().attention, torch.randn(7, 16)
    weights = torch.rand(4, 7)
    values = attention.value(tiles).view(7, 4, 4).transpose(0, 1)
    expected = attention.out((weights.unsqueeze(1) @ values).flatten())
    torch.testing.assert_close(attention.pool(weights, tiles), expected)


def test_dropout_takes_whole_tiles():
    dropped = TileDropout(0.5).train()(torch.ones(200, 3))
    assert (dropped == dropped[:, :1]).all()
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_diversity_is_least_for_orthogonal_vectors_and_finite_for_equal_ones():
    assert float(diversity_loss(3 * torch.eye(4))) == pytest.approx(0.0, abs=1e-6)
    equal = torch.ones(3, 2, requires_grad=True)
    loss = diversity_loss(equal)
    loss.backward()
    assert 40 < loss.item() < 60
    assert equal.grad.isfinite().all()
    assert float(diversity_loss(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))) == pytest.approx(23.03, abs=0.01)


def test_triplet_by_hand():
    centers = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    lesions = torch.tensor([[0.0, 2.0], [5.0, 0.0]])
    assert float(triplet_loss(lesions, centers)) == pytest.approx((0.0 + 2.0) / 2)


@pytest.mark.parametrize(("label", "row"), [(0, 0), (1, 1), (2, 1)])
def test_a_step_moves_the_center_of_the_class_that_its_loss_used(label, row):
    model, bag, target = make().train(), make_bag(), torch.tensor([label])
    before = model.centers.clone()
    output = model(bag)
    loss = model.loss([output], target, TASK)
    assert torch.equal(model.centers, before)
    model.after_step(bag, output, target)
    mean = model.project(bag).mean(dim=0)
    torch.testing.assert_close(model.centers[row], 0.4 * before[row] + 0.6 * mean)
    assert torch.equal(model.centers[1 - row], before[1 - row])
    torch.testing.assert_close(loss.parts["triplet"], triplet_loss(output.extras["lesions"], model.centers))
    torch.testing.assert_close(moved_centers(before, mean, target[0]), model.centers)


def test_the_further_losses_count_from_their_share_of_the_steps_on():
    model, target = make(losses_from=0.5).train(), torch.tensor([1])
    output = model(make_bag())
    totals = {}
    for step in (4, 5):
        model.before_step(step, 10)
        loss = model.loss([output], target, TASK)
        totals[step] = float(loss.total)
        assert loss.parts.keys() == {"ce", "diversity", "triplet"}
    parts = {name: float(value) for name, value in loss.parts.items()}
    assert totals[4] == pytest.approx(parts["ce"])
    assert totals[5] == pytest.approx(parts["ce"] + 0.1 * parts["diversity"] + 0.1 * parts["triplet"])


def test_a_task_without_classes_keeps_the_diversity_alone():
    model = make().train()
    output = model(make_bag())
    task, target = Regression(), torch.tensor([0.5])
    output.logits = output.logits[:1]
    before = model.centers.clone()
    assert "triplet" not in model.loss([output], target, task).parts
    model.after_step(make_bag(), output, target)
    assert torch.equal(model.centers, before)


def test_official_preset_trains_with_momentum():
    config = resolve("dgr_mil", "official")
    optimizer = build_optimizer(make(), config.training)
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    assert config.model.losses_from * config.training.epochs == 10


def test_lesion_maps_need_eval_mode_and_widths_must_fit():
    model = make().train()
    with pytest.raises(AsmilError, match="eval"):
        model.tile_map(model(make_bag()), "lesion_1")
    with pytest.raises(AsmilError, match="heads"):
        make(inner=18)
