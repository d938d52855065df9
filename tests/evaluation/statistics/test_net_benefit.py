"""Net benefit agrees with dcurves: with numbers frozen from it, and with the package itself where it is installed."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asmil.evaluation import net_benefit, survival_net_benefit

FROZEN = json.loads((Path(__file__).parent / "dcurves.json").read_text(encoding="utf-8"))
THRESHOLDS, PROBABILITY, OUTCOME, TIME, EVENT = (
    np.array(FROZEN[name], dtype=np.float64) for name in ("thresholds", "probability", "outcome", "time", "event")
)


def ours(probability):
    return {
        "binary": net_benefit(OUTCOME, probability, THRESHOLDS)[0],
        "survival": survival_net_benefit(TIME, EVENT, probability, FROZEN["horizon"], THRESHOLDS)[0],
    }


@pytest.mark.parametrize("kind", ["binary", "survival"])
def test_the_numbers_of_dcurves(kind):
    for model, probability in (("p", PROBABILITY), ("all", np.ones_like(PROBABILITY))):
        np.testing.assert_allclose(ours(probability)[kind], np.array(FROZEN[kind][model], dtype=float), atol=1e-10)


def test_weights_are_repeated_patients():
    times = np.random.default_rng(0).integers(0, 3, len(OUTCOME))
    repeated = [np.repeat(values, times) for values in (OUTCOME, PROBABILITY, TIME, EVENT)]
    weights = times[None].astype(np.float64)
    np.testing.assert_allclose(
        net_benefit(OUTCOME, PROBABILITY, THRESHOLDS, weights), net_benefit(*repeated[:2], THRESHOLDS), atol=1e-12
    )
    _, probability, time, event = repeated
    np.testing.assert_allclose(
        survival_net_benefit(TIME, EVENT, PROBABILITY, 10, THRESHOLDS[:4], weights),
        survival_net_benefit(time, event, probability, 10, THRESHOLDS[:4]),
        atol=1e-12,
    )


def test_dcurves_itself():
    dcurves = pytest.importorskip("dcurves")
    draw = np.random.default_rng(7)
    table = pd.DataFrame({"p": draw.random(300).round(2)})
    table["y"] = (draw.random(300) < table["p"]).astype(int)
    found = dcurves.dca(data=table, outcome="y", modelnames=["p"], thresholds=THRESHOLDS.tolist())
    expected = found[found["model"] == "p"].sort_values("threshold")["net_benefit"]
    benefit = net_benefit(table["y"].to_numpy(float), table["p"].to_numpy(), THRESHOLDS)[0]
    np.testing.assert_allclose(benefit, expected, atol=1e-10)
