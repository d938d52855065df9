"""Trainings that start from pretrained weights, `--init`."""

import hashlib
import json

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from asmil import AsmilError
from asmil.models import official
from asmil.runs.model import build_model
from asmil.training.initial_weights import initialize, read_initial_weights, resolve_with_init

WIDTH, INNER, HIDDEN = 24, 16, 8
SHORT = ("--set", "training.epochs=1", "--set", "record.attention=none", "-q", "--json")


def feather(classes=None, width=WIDTH, prefix="model."):
    """Tensors named as MIL-Lab names those of its ABMIL; pretrained ones come without a classifier."""
    draw = torch.Generator().manual_seed(5)
    sizes = {
        "patch_embed.0": (INNER, width),
        "global_attn.attention_a.0": (HIDDEN, INNER),
        "global_attn.attention_b.0": (HIDDEN, INNER),
        "global_attn.attention_c": (1, HIDDEN),
    }
    if classes:
        sizes["classifier"] = (classes, INNER)
    state = {}
    for name, size in sizes.items():
        state[f"{prefix}{name}.weight"] = torch.randn(size, generator=draw)
        state[f"{prefix}{name}.bias"] = torch.randn(size[0], generator=draw)
    return state


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "feather" / "model.safetensors"
    path.parent.mkdir()
    save_file(feather(), path)
    return path


def test_the_layout_of_mil_lab_computes_what_its_code_computes():
    state = feather(classes=3)
    model = official.load(state)
    tiles = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1))
    part = {name.removeprefix("model."): tensor for name, tensor in state.items()}

    def linear(name, values):
        return values @ part[f"{name}.weight"].T + part[f"{name}.bias"]

    embedded = linear("patch_embed.0", tiles).relu()
    gated = (
        linear("global_attn.attention_a.0", embedded).tanh() * linear("global_attn.attention_b.0", embedded).sigmoid()
    )
    attention = linear("global_attn.attention_c", gated).softmax(dim=0)
    from asmil.cohort.bag import Bag

    with torch.no_grad():
        found = model(Bag(tiles, id="s")).logits
    torch.testing.assert_close(found, linear("classifier", (attention * embedded).sum(0)), rtol=1e-5, atol=1e-5)
    with pytest.raises(AsmilError, match="head"):
        official.load(feather())


def test_folds_and_seeds_start_from_the_weights_and_resume_without_them(weights, small_cohort, tmp_path, asmil_here):
    out = tmp_path / "run"
    command = ("train", small_cohort, "--init", weights.parent, "--folds", 2, "--seeds", 2, "-o", out)
    plan = asmil_here(*command, *SHORT[:4], "--dry-run")
    assert plan.returncode == 0, plan.stderr
    assert "embedding.layers.0.weight" in plan.stdout
    assert "head.weight" in plan.stdout
    assert not out.exists()
    frozen = (*command, *SHORT, "--set", "training.lr=1e-12")
    done = asmil_here(*frozen)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["method"] == "abmil"
    assert config["model"]["inner"] == INNER
    assert config["init"]["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    heads = []
    for fold in (0, 1):
        for seed in (0, 1):
            tensors = load_file(out / f"fold-{fold}" / f"seed-{seed}" / "checkpoints" / "best.safetensors")
            torch.testing.assert_close(
                tensors["embedding.layers.0.weight"], feather()["model.patch_embed.0.weight"], rtol=0, atol=1e-6
            )
            heads.append(tensors["head.weight"])
    assert not torch.allclose(heads[0], heads[1])  # what the weights do not have is drawn by the seed

    weights.parent.rename(tmp_path / "gone")
    (out / "fold-1" / "seed-1" / "predictions.parquet").unlink()
    again = asmil_here(*frozen)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(done.stdout)


def test_a_head_of_another_size_is_left_out_and_named(tmp_path, weights, small_cohort, asmil_here):
    path = tmp_path / "five.pt"
    torch.save({"state_dict": feather(classes=5, prefix="")}, path)
    config = resolve_with_init(None, "paper", {"init": {"weights": str(path)}})
    done = initialize(build_model(config, WIDTH, 2, 0), read_initial_weights(path).tensors)
    assert set(done.skipped) == {"head.weight", "head.bias"}
    assert "5 x 16" in done.skipped["head.weight"]
    assert len(done.loaded) == 8
    told = asmil_here("train", small_cohort, "--init", path, "--dry-run", "-o", tmp_path / "run")
    assert "5 x 16" in told.stdout


def test_weights_of_mil_lab_bring_its_dropout_and_initialization(weights):
    config = resolve_with_init(None, "paper", {"init": {"weights": str(weights)}})
    model = build_model(config, WIDTH, 2, 0)
    assert (config.model.attention_dropout, config.model.dropout, config.model.bias) == (0.25, 0.0, True)
    done = initialize(model, read_initial_weights(weights).tensors)
    assert set(done.missing) == {"head.weight", "head.bias"}
    assert not model.head.bias.any()
    bound = (6 / INNER) ** 0.5
    assert 1 / INNER**0.5 < model.head.weight.abs().max() <= bound, "Kaiming uniform, which is wider than the default"
    changes = {"init": {"weights": str(weights)}, "model": {"attention_dropout": 0.1, "init": "default"}}
    own = resolve_with_init(None, "paper", changes).model
    assert (own.attention_dropout, own.init, own.inner) == (0.1, "default", INNER)
    drops = build_model(resolve_with_init(None, "paper", changes | {"model": {"dropout": 0.5}}), WIDTH, 2, 0).train()
    x = torch.ones(1, WIDTH)
    assert not torch.equal(drops.embed(x), drops.embed(x)), "the dropout that was asked for acts"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
def test_weights_that_are_not_finite_in_float32_are_refused_by_name(value, tmp_path):
    state = feather(classes=2)
    state["model.patch_embed.0.bias"] = torch.full((INNER,), value, dtype=torch.float64)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(AsmilError, match=r"w\.safetensors.*embedding\.layers\.0\.bias"):
        read_initial_weights(tmp_path / "w.safetensors")


def test_tensors_that_the_method_does_not_have_are_named(tmp_path, small_cohort, asmil_here):
    path = tmp_path / "more.safetensors"
    save_file({**feather(classes=2), "model.mixer.0.weight": torch.zeros(INNER, INNER)}, path)
    told = asmil_here("train", small_cohort, "--init", path, "--dry-run", "-o", tmp_path / "run")
    assert told.returncode == 1
    assert "more.safetensors" in told.stderr
    assert "mixer.0.weight" in told.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_and_its_bundle_are_taken_over(small_cohort, tmp_path, asmil_here):
    first = tmp_path / "first"
    trained = asmil_here("train", small_cohort, "-m", "abmil", "--set", "model.inner=12", *SHORT, "-o", first)
    assert trained.returncode == 0, trained.stderr
    assert asmil_here("export", first, "-o", tmp_path / "bundle").returncode == 0
    best = first / "fold-0" / "seed-0" / "checkpoints" / "best.safetensors"
    for source in (first, best, tmp_path / "bundle"):
        config = resolve_with_init(None, "paper", {"init": {"weights": str(source)}})
        assert (config.method, config.model.model_dump()["inner"]) == ("abmil", 12)
        found = read_initial_weights(source)
        done = initialize(build_model(config, WIDTH, 2, 7), found.tensors)
        assert not done.skipped
        assert not done.missing
    with pytest.raises(AsmilError, match=r"best\.safetensors"):
        read_initial_weights(best.with_name("last.safetensors"))


def test_what_cannot_be_a_start_is_refused_in_one_sentence(weights, small_cohort, tmp_path, asmil_here):
    wide, unknown, nothing = (tmp_path / name for name in ("wide.safetensors", "unknown.safetensors", "missing.pt"))
    save_file(feather(width=9), wide)
    save_file({"a.weight": torch.ones(2)}, unknown)
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"not weights at all")
    cases = [
        ((wide,), ("9", str(WIDTH))),
        ((unknown,), (unknown.name,)),
        ((nothing,), (nothing.name,)),
        ((broken,), (broken.name,)),
        ((weights, "--method", "clam_sb"), ("abmil", "clam_sb")),
        ((weights, "--set", "init.sha256=00"), ("init.sha256",)),
        ((weights, "--set", "model.inner=5", "--set", "model.attention=3", "--set", "model.bias=false"), ()),
    ]
    for options, words in cases:
        out = tmp_path / "run"
        done = asmil_here("train", small_cohort, "--init", *options, *SHORT[:4], "--dry-run", "-o", out)
        if words:
            assert done.returncode == 1, options
            assert done.stderr.count("\n") == 1
            assert all(word in done.stderr for word in words)
        assert not out.exists()


def test_weights_that_changed_are_another_run(weights, small_cohort, tmp_path, asmil_here):
    out = tmp_path / "run"
    assert asmil_here("train", small_cohort, "--init", weights, *SHORT, "-o", out).returncode == 0
    save_file({name: tensor + 1 for name, tensor in feather().items()}, weights)
    again = asmil_here("train", small_cohort, "--init", weights, *SHORT, "-o", out)
    assert again.returncode == 1
    assert "init.sha256" in again.stderr
