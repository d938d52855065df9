import pytest

from asmil.errors import AsmilError
from asmil.runs.config import parse_run_config, preset_changes, resolve
from asmil.settings.config import parse_assignments


def test_defaults_are_the_papers():
    config = resolve("asmil")
    assert (config.training.epochs, config.training.lr, config.training.weight_decay) == (50, 1e-4, 1e-4)
    assert (config.training.optimizer, config.training.schedule) == ("adam", "cosine")
    assert (config.model.tokens, config.model.drop, config.model.projections) == (8, 0.5, "per_token")
    assert (config.anchor.normalizer, config.anchor.momentum, config.anchor.weight) == ("nsf", 0.999, 1.0)
    assert config.anchor.update == "step"
    assert resolve("abmil").anchor.normalizer == "none"


def test_no_anchor_is_what_the_preset_study_decided():
    paper, ours = resolve("asmil"), resolve("asmil", "no_anchor")
    assert (ours.model.init_std, ours.model.drop, ours.anchor.normalizer) == (1.0, 0.0, "none")
    assert ours.training == paper.training
    assert ours.model.model_copy(update={"init_std": paper.model.init_std, "drop": 0.5}) == paper.model
    assert ours.anchor.model_copy(update={"normalizer": "nsf"}) == paper.anchor


def test_released_preset_is_what_the_released_scripts_do():
    config = resolve("asmil", "released")
    assert (config.training.optimizer, config.training.weight_decay, config.training.epochs) == ("adamw", 1e-5, 100)
    assert config.training.clip_norm == 5
    assert (config.anchor.update, config.anchor.start, config.anchor.temperature) == ("never", "random", 0.5)
    assert (config.anchor.divergence, config.anchor.reduction) == ("cross_entropy", "mean")
    assert (config.model.drop_count, config.model.init_std, config.model.cls_zero) == (4, 1e-6, True)


def test_settings_survive_the_way_through_plain_values():
    config = resolve("asmil", "released", parse_assignments(["training.lr=3e-4", "model.tokens=6"]))
    assert config.training.lr == 3e-4
    assert parse_run_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("trainig.lr=1", "'trainig' .*'training'"),
        ("training.lrr=1", "'training.lrr' .*'lr'"),
        ("model.token=4", "'model.token' .*'tokens'"),
        ("training.lr=-1", "'training.lr' = -1: .*greater than 0"),
        ("training.epochs=many", "'training.epochs' = 'many': .*integer"),
        ("anchor.normalizer=nfs", "'anchor.normalizer' = 'nfs': .*'none', 'softmax', 'nsf'"),
        ("training.lr", "section.key=value"),
        ("model=4", "'model' = 4: .*section"),
    ],
)
def test_a_wrong_setting_is_named_with_the_nearest(assignment, message):
    with pytest.raises(AsmilError, match=message):
        resolve("asmil", changes=parse_assignments([assignment]))


def test_method_and_preset_are_no_settings():
    with pytest.raises(AsmilError, match="--method"):
        resolve("asmil", changes={"method": "abmil"})


def test_unknown_methods_and_presets_are_named_with_the_nearest():
    with pytest.raises(AsmilError, match=r"'asml'.*'asmil'"):
        resolve("asml")
    with pytest.raises(AsmilError, match=r"'relased'.*'released'"):
        resolve("asmil", "relased")


def test_a_preset_tells_what_it_changes():
    assert preset_changes(resolve("asmil")) == {}
    changes = preset_changes(resolve("asmil", "no_anchor", {"model": {"drop": 0.5}}))
    assert changes == {"model.init_std": (1.0, 0.02), "anchor.normalizer": ("none", "nsf")}
