"""What an executor does not declare, it does not train: every setting, every executor."""

from __future__ import annotations

import pytest

from asmil import methods
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.settings.config import flat
from asmil.tasks.classification import Classification
from asmil.training.executor_limits import fused_settings_reason, graphed_settings_reason
from asmil.training.honored_settings import FUSED, GRAPHED, LOCKSTEP, NOT_ABOUT_STEPS, declared, undeclared
from other_settings import NO_OTHER_VALUE, every_setting, needed_by, nested, other_values

REASONS = {"graphed": (graphed_settings_reason, GRAPHED), "fused": (fused_settings_reason, FUSED)}


@pytest.mark.parametrize("executor", REASONS)
@pytest.mark.parametrize("name", sorted(set(every_setting()) - NO_OTHER_VALUE))
def test_a_changed_setting_is_declared_or_a_reason(executor, name):
    reason, honored = REASONS[executor]
    for value in other_values(name):
        changes = nested({"model.inner": 32, "training.lr": 0.02, **needed_by(name), name: value})
        config = resolve("asmil", changes=changes)
        found = reason(config, build_model(config, 32, 2, 0), Classification(["a", "b"]))
        assert found is not None or declared(name, (*honored, *NOT_ABOUT_STEPS))


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
    config = resolve("asmil", changes={"model": {"inner": 32, name: value}})
    found = fused_settings_reason(config, build_model(config, 32, 2, 0), Classification(["a", "b"]))
    assert (found is None) == declared(f"model.{name}", FUSED)


@pytest.mark.parametrize("honored", [LOCKSTEP, GRAPHED, FUSED, NOT_ABOUT_STEPS])
def test_declarations_name_settings_that_exist(honored):
    known = list(flat(resolve("asmil").model_dump(mode="json")))
    assert all(any(declared(name, [pattern]) for name in known) for pattern in honored)


def test_a_setting_that_nobody_declared_is_refused():
    config = resolve("abmil", changes={"training": {"clip_norm": 1.0}})
    assert undeclared(config, GRAPHED) is None
    assert undeclared(config, [name for name in GRAPHED if name != "training.clip_norm"]) == "training.clip_norm"
