import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.runs import checkpoint
from asmil.runs.checkpoint import save_checkpoint
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer
from asmil.training.run import train_run


class Bags:
    """Bags in memory that note in which order they were asked for."""

    def __init__(self, bags: list[Bag]) -> None:
        self.bags, self.asked = bags, []

    def __len__(self) -> int:
        return len(self.bags)

    def stream(self, order) -> Iterator[Bag]:
        self.asked.append(list(order))
        return iter([self.bags[i] for i in order])


def labeled(n=12, seed=0, width=16) -> LabeledBags:
    draw = np.random.default_rng(seed)
    targets = np.arange(n) % 2
    bags = []
    for i, target in enumerate(targets):
        features = draw.normal(size=(draw.integers(8, 20), width)).astype(np.float32)
        features[:4] += 2.0 * target
        bags.append(Bag(features, id=f"s{i}"))
    return LabeledBags(Bags(bags), targets.astype(np.int64))


def trainer(method="abmil", folder=None, seed=0, task=None, **training) -> Trainer:
    config = resolve(method, changes={"training": {"epochs": 3, "lr": 1e-3, **training}})
    model = build_model(config, 16, 2, seed)
    return Trainer(model, task or Classification(["a", "b"]), config, seed=seed, folder=folder)


def weights(one: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in one.model.parameters()])


@pytest.mark.parametrize("method", ["abmil", "asmil"])
def test_learns_and_two_runs_with_one_seed_have_the_same_bits(method):
    results = []
    for seed in (0, 0, 1):
        one = trainer(method, seed=seed, epochs=15, lr=3e-3, select="last")
        one.fit(labeled(), None)
        results.append(weights(one))
        if seed == 0:
            assert one.validate(labeled(seed=1))["macro_auc"] > 0.9
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_global_random_state_neither_matters_nor_moves():
    torch.manual_seed(1)
    first = trainer("asmil")
    first.fit(labeled(), None)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = trainer("asmil")
    second.fit(labeled(), None)
    assert torch.equal(weights(first), weights(second))
    assert torch.equal(torch.get_rng_state(), state)


def test_every_slide_is_seen_once_an_epoch_in_a_new_order():
    train = labeled()
    trainer(epochs=3).fit(train, None)
    orders = train.bags.asked
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert orders[0] != orders[1]


def test_balanced_sampling_draws_classes_equally():
    train = labeled(200)
    rare = LabeledBags(train.bags, (np.arange(200) < 10).astype(np.int64))
    trainer(epochs=5, sampling="balanced").fit(rare, None)
    drawn = np.concatenate(rare.bags.asked)
    assert 0.4 < np.mean(drawn < 10) < 0.6


def test_accumulation_is_the_mean_gradient_of_its_bags():
    train = labeled(4)
    one = trainer(epochs=1, accumulate=4, schedule="constant", select="last")
    start = build_model(one.config, 16, 2, 0)
    logits = torch.stack([start(bag).logits for bag in train.bags.bags])
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(train.targets))
    loss.backward()
    gradients = {}
    one.optimizer.register_step_pre_hook(
        lambda optimizer, *_: gradients.update({n: p.grad.clone() for n, p in one.model.named_parameters()})
    )
    one.fit(train, None)
    for name, parameter in start.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped():
    norms = []
    one = trainer(epochs=1, clip_norm=1e-3)
    one.optimizer.register_step_pre_hook(
        lambda *_: norms.append(math.sqrt(sum(float((p.grad**2).sum()) for p in one.model.parameters())))
    )
    one.fit(labeled(), None)
    assert max(norms) <= 1e-3 * 1.001


def test_the_cap_on_tiles_draws_anew_every_epoch_and_keeps_the_order():
    config = resolve("abmil", changes={"training": {"epochs": 2}, "data": {"max_tiles": 5}})
    model = build_model(config, 16, 2, 0)
    seen = []
    model.prepare = lambda bag: seen.append(bag.features[:, 0].clone()) or bag
    one = Trainer(model, Classification(["a", "b"]), config, seed=0)
    train = labeled(2)
    one.fit(train, None)
    assert {len(tiles) for tiles in seen} == {5}
    assert len(seen) == 4
    assert not any(torch.equal(seen[i], seen[j]) for i in (0, 1) for j in (2, 3))
    for tiles in seen:
        places = [bag.features[:, 0].tolist() for bag in train.bags.bags]
        source = next(column for column in places if set(tiles.tolist()) <= set(column))
        assert [source.index(value) for value in tiles.tolist()] == sorted(map(source.index, tiles.tolist()))


def test_the_epoch_is_chosen_on_validation_data(tmp_path):
    one = trainer(folder=tmp_path, epochs=8, lr=0.02)
    chosen = one.fit(labeled(), labeled(seed=1))
    from asmil.runs.epochs import read_epochs

    records = read_epochs(tmp_path / "metrics.jsonl")
    ranks = [(-one.task.selection_score(record["val"]), record["val"]["loss"]) for record in records]
    assert chosen == ranks.index(min(ranks)) + 1
    assert one.validate(labeled(seed=1))["loss"] == pytest.approx(records[chosen - 1]["val"]["loss"])
    assert [record["epoch"] for record in records] == list(range(1, 9))


def test_the_best_weights_are_written_with_the_state_that_refers_to_them(tmp_path, monkeypatch):
    written = []

    def save(path, tensors, state):
        written.append((path.name, state.get("best", state)["epoch"]))
        save_checkpoint(path, tensors, state)

    monkeypatch.setattr(checkpoint, "save_checkpoint", save)
    model = trainer(folder=tmp_path, epochs=8, lr=0.01)
    improved = []
    keep_best = model.checkpoints.keep_best
    monkeypatch.setattr(model.checkpoints, "keep_best", lambda *best: (improved.append(best), keep_best(*best)))
    chosen = model.fit(labeled(), labeled(seed=1))
    assert len(improved) > 1
    assert written == [("best.safetensors", chosen), ("last.safetensors", chosen)]


def test_validation_runs_in_eval_mode_and_leaves_the_training_alone():
    with_val, without = trainer("asmil", select="last"), trainer("asmil", select="last")
    with_val.fit(labeled(), labeled(seed=1))
    without.fit(labeled(), None)
    assert torch.equal(weights(with_val), weights(without))


def test_early_stopping_ends_after_epochs_without_gain():
    one = trainer(epochs=50, early_stopping=2, lr=1e-30)
    one.fit(labeled(), labeled(seed=1))
    assert one.progress.epoch == 3


def test_early_stopping_without_validation_is_refused():
    with pytest.raises(AsmilError, match="early_stopping"):
        trainer(early_stopping=2).fit(labeled(), None)
    with pytest.raises(AsmilError, match=r"early_stopping .*select"):
        trainer(early_stopping=2, select="last")


def test_class_weights_scale_the_loss_of_a_slide():
    task = Classification(["a", "b"], class_weights=[1.0, 3.0])
    plain = Classification(["a", "b"])
    logits, targets = torch.randn(2, 2), torch.tensor([0, 1])
    expected = (plain.loss(logits[:1], targets[:1]) + 3 * plain.loss(logits[1:], targets[1:])) / 2
    torch.testing.assert_close(task.loss(logits, targets), expected)


def test_a_loss_that_is_not_finite_names_the_slide():
    with pytest.raises(AsmilError, match=r"epoch 1, slide s\d+.*training.lr"):
        trainer(epochs=2, lr=1e30).fit(labeled(), None)


def test_anchor_parts_are_logged_and_after_step_is_called(tmp_path):
    calls = []
    config = resolve("asmil", changes={"training": {"epochs": 1}, "anchor": {"rows": "kept", "update": "epoch"}})
    model = build_model(config, 16, 2, 0)
    model.after_step = lambda bag, output, target: calls.append((bag.id, int(target)))
    records = []
    one = Trainer(model, Classification(["a", "b"]), config, seed=0, folder=tmp_path, on_epoch=records.append)
    one.fit(labeled(), None)
    assert set(records[0]["train"]) == {"loss", "ce", "anchor"}
    parts = records[0]["train"]
    assert parts["loss"] == pytest.approx(parts["ce"] + parts["anchor"])
    assert len(calls) == 12


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bf16_trains_on_the_cpu_too(monkeypatch):
    monkeypatch.setattr("asmil.machine.bf16.cpu_has_bf16", lambda: True)  # without the instructions torch emulates it
    one = trainer("asmil", precision="bf16", epochs=2)
    one.fit(labeled(), labeled(seed=1))
    assert torch.isfinite(weights(one)).all()


def test_bf16_is_refused_where_the_cpu_has_none(monkeypatch, small_cohort, tmp_path):
    monkeypatch.setattr("asmil.machine.bf16.cpu_has_bf16", lambda: False)
    with pytest.raises(AsmilError, match=r"training\.precision = bf16.*fp32"):
        trainer("abmil", precision="bf16")
    config = resolve("abmil", changes={"training": {"precision": "bf16", "device": "cpu"}})
    with pytest.raises(AsmilError, match=r"training\.precision = bf16.*fp32"):
        train_run(small_cohort, tmp_path / "run", config)
    assert not (tmp_path / "run").exists()
    assert not trainer("abmil", precision="auto").autocast


def test_methods_may_bring_parameter_groups_of_their_own():
    model = build("abmil", 16, 2)
    model.parameter_groups = lambda: [
        {"params": list(model.head.parameters()), "lr": 1.0},
        {"params": list(model.embedding.parameters()) + list(model.attention.parameters())},
    ]
    config = resolve("abmil", changes={"training": {"epochs": 1}})
    one = Trainer(model, Classification(["a", "b"]), config, seed=0)
    assert [group["base_lr"] for group in one.optimizer.param_groups] == [1.0, 1e-4]
