"""How far the models of a run (folds and seeds) disagree about one case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asmil.tables.arrays import Floats


def spread_of_models(values: npt.ArrayLike) -> Floats:
    """The standard deviation over K models (K x ...), unbiased; nan for one model."""
    given = np.asarray(values, dtype=np.float64)
    return np.asarray(given.std(axis=0, ddof=1) if len(given) > 1 else np.full(given.shape[1:], np.nan))


def share_voting_otherwise(probabilities: npt.ArrayLike) -> float:
    """The share of K models (K x C) whose most probable class is not that of their mean.

    >>> share_voting_otherwise([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]) == 1 / 3
    True
    """
    given = np.asarray(probabilities, dtype=np.float64)
    return float((given.argmax(axis=1) != given.mean(axis=0).argmax()).mean())


def disagreement_columns(kind: str, members: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Columns of a table of predictions; none for a single model.

    models_sd: standard deviation over models of the probability of the most probable class, of the value
        (regression), or of the label about which the models disagree most (multilabel)
    models_disagree: the share of models with another most probable class

    Risks of survival models are not comparable between folds, whose time bins differ, so there are no columns.
    """
    if len(members) < 2 or kind == "survival":
        return {}
    values = np.array([[float(value) for value in member.values()] for member in members])
    spread = spread_of_models(values)
    if kind == "classification":
        most_probable = int(values.mean(axis=0).argmax())
        return {"models_sd": float(spread[most_probable]), "models_disagree": share_voting_otherwise(values)}
    return {"models_sd": float(spread.max())}
