"""What an executor does not declare, it does not train: every setting, task and method, every executor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asmil import methods
from asmil.models.asmil import ASMIL
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.settings.config import flat
from asmil.tasks.classification import Classification
from asmil.tasks.multilabel import MultiLabel
from asmil.tasks.regression import Regression
from asmil.tasks.survival import Survival
from asmil.training.honored import FUSED, GRAPHED, HONORED, NOT_ABOUT_STEPS, declared
from other_settings import NO_OTHER_VALUE, every_setting, needed_by, nested, other_values

TASK = Classification(["a", "b"])
OTHER_TASKS = {
    "regression": Regression(0.0, 1.0),
    "multilabel": MultiLabel(["a", "b"]),
    "survival": Survival(None, "cox"),
}
HONORED_METHODS = {
    "fused": {"asmil"},
    "graphed": {
        "abmil",
        "acmil",
        "additive_mil",
        "aem",
        "asmil",
        "clam_mb",
        "clam_sb",
        "demil",
        "dsmil",
        "ibmil",
        "linear",
        "max_pooling",
        "mean_pooling",
    },
    "side_by_side": set(methods()) - {"camil", "deepattnmisl", "hdmil", "patch_gcn", "sm_abmil"},
}
"""By their declarations; some turn out not to be stackable when they are tried."""


def reason(executor, config, task=TASK):
    return HONORED[executor].reason(config, build_model(config, 32, 2, 0), task)


@pytest.mark.parametrize("executor", HONORED)
@pytest.mark.parametrize("name", sorted(set(every_setting()) - NO_OTHER_VALUE))
def test_a_changed_setting_is_declared_or_a_reason(executor, name):
    for value in other_values(name):
        changes = nested({"model.inner": 32, "training.lr": 0.02, **needed_by(name), name: value})
        refused = reason(executor, resolve("asmil", changes=changes))
        assert refused is not None or declared(name, (*HONORED[executor].settings, *NOT_ABOUT_STEPS))


@pytest.mark.parametrize("executor", HONORED)
@pytest.mark.parametrize("changes", [{"data": {"covariates": ["age:number"]}}, {"smoothing": {"where": "late"}}])
def test_covariates_and_smoothing_are_left_to_the_plain_loop(executor, changes):
    assert reason(executor, resolve("asmil", changes={"model": {"inner": 32}})) is None
    assert reason(executor, resolve("asmil", changes={"model": {"inner": 32}, **changes})) is not None


@pytest.mark.parametrize("name", sorted(methods()["asmil"].model.config_type.model_fields))
def test_a_changed_setting_of_asmil_is_declared_for_the_kernels_or_a_reason(name):
    others = {
        "inner": 64,
        "tokens": 4,
        "heads": 4,
        "drop_count": 2,
        "projections": "shared",
        "drop": 0.3,
        "dropout": 0.3,
    }
    default = methods()["asmil"].model.config_type.model_fields[name].default
    value = others[name] if name in others else not default if isinstance(default, bool) else default + 1
    refused = reason("fused", resolve("asmil", changes={"model": {"inner": 32, name: value}}))
    assert (refused is None) == declared(f"model.{name}", FUSED.settings)


@pytest.mark.parametrize("executor", HONORED)
@pytest.mark.parametrize("kind", OTHER_TASKS)
def test_a_task_is_declared_or_a_reason(executor, kind):
    config = resolve("asmil", changes={"model": {"inner": 32}})
    assert reason(executor, config) is None
    task, honored = OTHER_TASKS[kind], HONORED[executor]
    assert (reason(executor, config, task) is None) == (kind in honored.tasks and not task.joint)


@pytest.mark.parametrize("executor", HONORED)
@pytest.mark.parametrize("method", sorted(methods()))
def test_a_method_is_declared_or_a_reason(executor, method):
    assert (reason(executor, resolve(method)) is None) == (method in HONORED_METHODS[executor])


def test_a_method_derived_from_asmil_is_not_asmil():
    """It may compute something else than the kernels."""

    class Derived(ASMIL):
        pass

    config = resolve("asmil", changes={"model": {"inner": 32}})
    assert FUSED.reason(config, Derived(32, 2, config.model), TASK) is not None


@pytest.mark.parametrize("honored", [*(honored.settings for honored in HONORED.values()), NOT_ABOUT_STEPS])
def test_declarations_name_settings_that_exist(honored):
    known = list(flat(resolve("asmil").model_dump(mode="json")))
    assert all(any(declared(name, [pattern]) for name in known) for pattern in honored)


def test_a_setting_that_nobody_declared_is_refused():
    config = resolve("abmil", changes={"training": {"clip_norm": 1.0}})
    assert GRAPHED.undeclared(config) is None
    without = replace(GRAPHED, settings=tuple(name for name in GRAPHED.settings if name != "training.clip_norm"))
    assert without.undeclared(config) == "training.clip_norm"
