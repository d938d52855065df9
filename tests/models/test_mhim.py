import math

import pytest
import torch
from torch.nn import functional

from asmil import AsmilError, build
from asmil.models.inference import infer
from asmil.runs.config import resolve
from asmil.tasks.classification import Classification
from mhim_parts import BASES, TASK, WIDTH, make, make_bag, step

FORMS = [(version, base) for version in (1, 2) for base in BASES]


def teach_apart(model, seed=2):
    """A teacher that differs from the student, as after some steps."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.teacher.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def test_the_high_ratio_and_the_momentum_follow_their_schedules():
    model = make(
        mask_high=0.4, mask_random=0.0, high_share=1.0, high_decay=True, momentum_schedule="cosine", momentum=0.9
    )
    ranking = torch.arange(100.0).unsqueeze(0)
    masked = []
    for t in range(10):
        model.before_step(t, 10)
        masked.append(len(model.mask(ranking).masked))
        assert model.teacher_momentum() == pytest.approx(1 - 0.1 * (1 + math.cos(math.pi * t / 10)) / 2)
    assert masked == [math.ceil(40 * (1 + math.cos(math.pi * t / 10)) / 2 - 1e-9) for t in range(10)]


# The settings


def test_null_is_the_official_choice_for_version_and_base():
    assert make().mask(torch.rand(1, 1000)).masked.numel() >= 500
    recipe = make(base="transmil").recipe
    assert (recipe.mask_random, recipe.mask_low, recipe.mask_high, recipe.high_share) == (0.0, 0.8, 0.03, 0.5)
    assert recipe.momentum_schedule == "cosine"
    assert make(version=2).recipe.activation == "gelu"
    assert make(version=2, mask_high=0.2, momentum=0.5).recipe.mask_high == 0.2
    assert resolve("mhim", "port").model.pretrain is False
    assert resolve("mhim", "official").training.epochs == 200


def test_refusals():
    with pytest.raises(AsmilError, match="high_share"):
        make(high_share=0.0)
    with pytest.raises(AsmilError, match=r"12 .* 8 heads"):
        build("mhim", WIDTH, 2, base="transmil", inner=12)
    model = make(base="transmil").train()
    with pytest.raises(AsmilError, match="transmil"):
        model.tile_map(model(make_bag()))


# Student and teacher


def test_v1_equals_its_formulas():
    model = teach_apart(make(mask_random=0.0, mask_low=0.2, mask_high=0.1, high_share=1.0, high_decay=False)).eval()
    bag = make_bag()

    def network(part, x):
        weights = part.encoder.attention
        h = torch.relu(functional.linear(x, part.embedding.layers[0].weight, part.embedding.layers[0].bias))
        z = (torch.relu(h @ weights.value.weight.T) @ weights.weight.weight.T)[:, 0]
        return z, torch.softmax(z, 0) @ h

    z, feature = network(model.teacher, bag.features)
    kept = z.argsort()[4:-2].sort().values
    _, student = network(model.network, bag.features[kept])
    output = model.forward_masked(bag)
    assert output.extras["kept"].nonzero().flatten().tolist() == kept.tolist()
    torch.testing.assert_close(output.embedding, student)
    torch.testing.assert_close(output.extras["teacher_feature"][0], feature)
    head = model.network.encoder.head
    logits = head.weight @ student + head.bias
    torch.testing.assert_close(output.logits, logits)
    loss = model.loss([output, output], torch.tensor([2, 2]), TASK)
    consistency = -(torch.softmax(feature / 0.1, 0) * torch.log_softmax(student, 0)).sum()
    torch.testing.assert_close(loss.parts["consistency"], consistency)
    torch.testing.assert_close(loss.total, functional.cross_entropy(logits, torch.tensor(2)) + 0.1 * consistency)


def test_inference_is_the_student_on_the_whole_bag():
    for version, base in FORMS:
        model = make(version=version, base=base).eval()
        before = model(make_bag()).logits
        assert torch.equal(before, teach_apart(model)(make_bag()).logits)


def test_without_weight_there_is_no_consistency_term():
    model = make(consistency_weight=0.0).train()
    assert set(model.loss([model(make_bag())], torch.tensor([0]), TASK).parts) == {"ce"}


@pytest.mark.parametrize(("version", "base"), FORMS)
def test_a_step_trains_the_student_and_moves_the_teacher_a_little(version, base):
    model = make(version=version, base=base, momentum=0.9, momentum_schedule="constant")
    student = {name: value.clone() for name, value in model.network.named_parameters()}
    teacher = {name: value.clone() for name, value in model.teacher.named_parameters()}
    output, loss = step(model)
    assert torch.isfinite(loss.total)
    assert "consistency" in loss.parts
    assert all(parameter.grad is None for parameter in model.teacher.parameters())
    assert model.teacher.training
    for name, now in model.network.named_parameters():
        assert not torch.equal(now, student[name]), name
        torch.testing.assert_close(dict(model.teacher.named_parameters())[name], 0.9 * teacher[name] + 0.1 * now)
    if version == 2:
        expected = torch.lerp(student["merge.query"], output.extras["merged_tokens"], 1 - 0.9999)
        torch.testing.assert_close(model.network.merge.query.data, expected)
    assert {name.split(".")[0] for name in model.state_dict()} == {"network", "teacher"}


def test_the_teacher_judges_with_dropout_while_training():
    model = make(dropout=0.5)
    bag = make_bag()
    first, second = (model.train().teach(bag)[1] for _ in range(2))
    assert not torch.equal(first, second)
    assert not first.requires_grad
    first, second = (model.eval().teach(bag)[1] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("version", "base"), FORMS)
@pytest.mark.parametrize("tiles", [1, 2, 3])
def test_small_bags_can_be_trained_on(version, base, tiles):
    options = {"mask_random": 0.5, "mask_low": 0.5, "mask_high": 0.5} if version == 1 else {"mask_high": 1.0}
    output, loss = step(make(version=version, base=base, **options), make_bag(tiles))
    assert torch.isfinite(loss.total)
    assert output.extras["kept"].any()


def test_scores_in_training_are_those_of_the_whole_bag():
    bag = make_bag()
    for version in (1, 2):
        model = make(version=version, dropout=0.0, mask_random=0.5).train()
        output = model(bag)
        torch.testing.assert_close(output.scores, model.attend(bag))
        masked = ~output.extras["kept"]
        (output.scores[0, masked] ** 2).sum().backward()
        assert model.network.embedding.layers[0].weight.grad.abs().max() > 0
    for base in ("transmil", "dsmil"):
        model = make(base=base).train()
        assert model(bag).scores is None
        assert model.attend(bag).shape == model.eval()(bag).scores.shape


def test_bf16_training():
    for version, base in FORMS:
        with torch.autocast("cpu", torch.bfloat16):
            _, loss = step(make(version=version, base=base))
        assert torch.isfinite(loss.total)


# Stages


@pytest.mark.parametrize("version", [1, 2])
def test_the_network_alone_is_trained_first_and_starts_the_teacher(version):
    model = make(version=version)
    student = {name: value.clone() for name, value in model.network.named_parameters()}
    pure, masked = model.stages()
    assert (pure.name, masked.name) == ("pure", "masked")
    assert masked.model is model
    assert set(pure.model.loss([pure.model.train()(make_bag())], torch.tensor([1]), TASK).parts) == {"ce"}
    assert not torch.equal(pure.model.network.encoder.head.weight, student["encoder.head.weight"])
    masked.start(pure.model.eval(), iter(()))
    trained = pure.model.network.state_dict()
    for name, value in model.network.named_parameters():
        torch.testing.assert_close(value.data, trained[name] if name.startswith("embedding") else student[name].data)
    for name, value in model.teacher.named_parameters():
        torch.testing.assert_close(value.data, trained.get(name, student[name].data))
    assert len(make(pretrain=False).stages()) == 1


def test_without_it_the_teacher_is_a_copy_of_the_student():
    model = make(pretrain=False)
    for mine, theirs in zip(model.teacher.parameters(), model.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert not mine.requires_grad


# The bases


def test_the_transformer_lays_a_small_bag_out_seven_wide():
    position = make(base="transmil").network.encoder.position
    tokens = torch.randn(10, 16)
    # a square of side 4 filled up with the first tiles, then zeros up to 49
    laid = torch.cat([tokens, tokens[:6], torch.zeros(33, 16)])
    grid = laid.t().reshape(1, 16, 7, 7)
    mixed = grid + sum(convolution(grid) for convolution in position.convolutions)
    torch.testing.assert_close(position(tokens), mixed.flatten(2)[0].t()[:10])


def test_both_transformer_layers_see_the_class_token_and_the_tiles():
    encoder = make(base="transmil").eval().network.encoder
    h = torch.randn(10, 16)
    tokens = torch.cat([encoder.class_token, h])
    tokens = tokens + encoder.layer1.attention(encoder.layer1.norm(tokens))
    tokens = torch.cat([tokens[:1], encoder.position(tokens[1:])])
    normed = encoder.layer2.norm(tokens)
    tokens = tokens + encoder.layer2.attention(normed)
    output = encoder(h, None)
    torch.testing.assert_close(output.embedding, encoder.norm(tokens)[0])
    query, key, _ = encoder.layer2.attention.to_qkv(normed).chunk(3, dim=1)
    for head in range(8):
        part = slice(2 * head, 2 * head + 2)
        torch.testing.assert_close(output.scores[head], key[1:, part] @ query[0, part] / math.sqrt(2))
    torch.testing.assert_close(output.extras["class_row"], encoder.class_rows(h)[1])


def test_heat_map_of_the_transformer():
    model = make(base="transmil").eval()
    output = model(make_bag())
    row = output.extras["class_row"].mean(dim=0).clamp(min=0)
    torch.testing.assert_close(model.tile_map(output), row / row.sum())
    output.extras["class_row"] = -output.extras["class_row"].abs()
    torch.testing.assert_close(model.tile_map(output), torch.softmax(output.scores, dim=1).mean(dim=0))


def test_dsmil_base_has_two_streams():
    model = make(base="dsmil", dropout=0.0, mask_random=0.0, mask_low=0.3, mask_high=0.0).train()
    bag = make_bag()
    instance_logits = model.eval()(bag).instance_logits
    output = model.train()(bag)
    assert set((~output.extras["kept"]).nonzero().flatten().tolist()) == set(
        instance_logits.amax(dim=1).argsort()[:6].tolist()
    )
    assert output.extras["teacher_feature"].shape == (3, 16)
    assert output.embedding.shape == (48,)
    target = torch.tensor([1])
    loss = model.loss([output], target, TASK)
    both = [functional.cross_entropy(output.extras[name][None], target) for name in ("bag_logits", "max_logits")]
    teacher = torch.softmax(output.extras["teacher_feature"] / 0.1, dim=1)
    student = torch.log_softmax(output.embedding.view(3, 16), dim=1)
    torch.testing.assert_close(loss.parts["consistency"], -(teacher * student).sum(dim=1).mean())
    torch.testing.assert_close(loss.total, sum(both) / 2 + 0.1 * loss.parts["consistency"])
    probabilities = torch.stack([torch.softmax(output.extras[name], 0) for name in ("bag_logits", "max_logits")])
    torch.testing.assert_close(torch.softmax(output.logits, 0), probabilities.mean(dim=0))


@pytest.mark.parametrize(("version", "base"), FORMS)
def test_one_output(version, base):
    model = make(n_classes=1, version=version, base=base).train()
    task = Classification(["a", "b"], single_output=True)
    loss = model.loss([model(make_bag())], torch.tensor([1]), task)
    loss.total.backward()
    assert torch.isfinite(loss.total)
    assert infer(model, make_bag()).logits.shape == (1,)
