"""A comparison as plain values for JSON: undefined numbers are None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.comparison.findings import Comparison, Difference, EnsembleTest, Method
from asmil.evaluation.comparison.words import (
    DIFFERENCE_INTERVAL_IS,
    DIFFERENCE_IS,
    ENSEMBLE_IS,
    INTERVAL_IS,
    VALUE_IS,
    notes_of,
)


def comparison_to_dict(found: Comparison) -> dict[str, Any]:
    """Everything found, ready for JSON: undefined numbers are None."""
    return {
        "task": found.kind,
        "role": found.role,
        "unit": found.unit,
        "slides": found.n_slides,
        "patients": found.n_patients,
        "folds": found.n_folds,
        "folds_joined": found.folds_joined,
        "reference": found.reference,
        "bootstrap": {
            "resamples": found.resamples,
            "skipped": found.skipped,
            "seed": found.bootstrap_seed,
            "level": 0.95,
        },
        "how": {
            "value": VALUE_IS,
            "interval": INTERVAL_IS,
            "difference": DIFFERENCE_IS,
            "difference_interval": DIFFERENCE_INTERVAL_IS,
            "ensemble": ENSEMBLE_IS,
        },
        "methods": [_method_to_dict(method) for method in found.methods],
        "differences": [_difference_to_dict(one) for one in found.differences],
        "holm_family": found.family,
        "notes": notes_of(found),
        "problems": list(found.problems),
    }


def _plain(value: Any) -> Any:
    """A value ready for JSON: undefined numbers are None, intervals are `low` and `high`."""
    if isinstance(value, Interval):
        return {"low": _plain(value.low), "high": _plain(value.high)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    return value


def _difference_to_dict(found: Difference) -> dict[str, Any]:
    """A difference, ready for JSON."""
    return {
        "run": found.run,
        "reference": found.reference,
        "measure": found.measure.name,
        "difference": _plain(found.value),
        **_plain(found.interval),
        "sd": _plain(found.sd),
        "skipped": found.skipped,
        "ensemble": None if found.ensemble is None else _ensemble_to_dict(found.ensemble),
        "p_holm": _plain(found.p_holm),
        "folds": None if found.folds is None else _plain(asdict(found.folds)),
        "per_seed": None if found.per_seed is None else _plain(asdict(found.per_seed)),
    }


def _method_to_dict(method: Method) -> dict[str, Any]:
    """A run of the comparison, ready for JSON."""
    scores = {
        name: {
            "value": _plain(score.value),
            **_plain(score.interval),
            "sd_seeds": _plain(score.sd_seeds),
            "sd_folds": _plain(score.sd_folds),
            "per_seed": _plain(score.per_seed),
            "per_fold": _plain(score.per_fold),
        }
        for name, score in method.scores.items()
    }
    return {
        "name": method.name,
        "run": method.path,
        "method": method.method,
        "preset": method.preset,
        "seeds": list(method.seeds),
        "measures": scores,
    }


def _ensemble_to_dict(test: EnsembleTest) -> dict[str, Any]:
    classes = [
        {
            "class": one.name,
            "auc": _plain(one.auc),
            "auc_reference": _plain(one.auc_reference),
            "difference": _plain(one.difference),
            **_plain(one.interval),
            "z": _plain(one.z),
            "p": _plain(one.p),
            "p_holm": _plain(one.p_holm),
        }
        for one in test.classes
    ]
    return {
        "test": test.test,
        "value": _plain(test.value),
        "value_reference": _plain(test.value_reference),
        "difference": _plain(test.difference),
        "p": _plain(test.p),
        "classes": classes,
        "reason": test.reason or None,
    }
