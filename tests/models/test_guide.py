"""The guide of `asmil methods` names methods that exist, with a cost and a line of evidence for each."""

import pytest

from asmil import methods
from asmil.models import guide


def test_only_methods_that_exist_are_named():
    known = methods().keys()
    assert {name for situation in guide.SITUATIONS for name in situation.methods} <= known
    assert guide._data("evidence").keys() <= known
    assert guide._data("costs")["methods"].keys() <= known


@pytest.mark.parametrize("name", sorted(methods()))
def test_every_method_has_a_cost_and_evidence(name):
    cost = guide.cost_of(name)
    assert None not in (cost.prediction, cost.training, cost.megabytes)
    assert "\n" not in guide.evidence_of(name)


def test_a_method_of_a_user_has_neither():
    assert guide.cost_of("mine") == guide.Cost()
    assert guide.evidence_of("mine") == guide.NOT_MEASURED


def test_ratios_have_few_digits():
    assert [guide.factor(ratio) for ratio in (0.038, 0.42, 9.2, 23.4, None)] == ["0.04x", "0.4x", "9.2x", "23x", ""]
