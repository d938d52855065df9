"""Convert the inputs of scikit-learn estimators to bags: lists of tables, 3D arrays, or one table of one-tile bags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError


def bags_for_fit(estimator: BaseEstimator, given: Any) -> list[Bag]:
    """The bags that an estimator is fitted to; sets its `n_features_in_` (and `feature_names_in_` for a data frame).

    A list of N x D tables, or a 3D array, contains one bag per entry; a 2D array, data frame or list contains bags of
    one tile each, one per row, which scikit-learn checks.
    """
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    if _is_one_table(given):
        return _one_tile_bags(estimator, given, reset=True)
    bags = _as_bags(given)
    if bags:
        estimator.n_features_in_ = bags[0].width
    return bags


def bags_for_prediction(estimator: BaseEstimator, given: Any) -> list[Bag]:
    """The bags to predict, with as many features as those of the fit."""
    if _is_one_table(given):
        return _one_tile_bags(estimator, given, reset=False)
    bags = _as_bags(given)
    for bag in bags:
        if bag.width != estimator.n_features_in_:
            raise AsmilError(
                f"{bag.id}: its tiles have {bag.width} features, but {type(estimator).__name__} is expecting "
                f"{estimator.n_features_in_} features as input"
            )
    return bags


def one_bag(given: Any) -> Bag:
    """A single bag: a table N x D or a `Bag`."""
    (bag,) = _as_bags([given])
    return bag


def _one_tile_bags(estimator: BaseEstimator, given: Any, *, reset: bool) -> list[Bag]:
    given = given.numpy(force=True) if isinstance(given, torch.Tensor) else given
    rows = validate_data(estimator, given, reset=reset)
    return [Bag(rows[i : i + 1], id=f"bag {i}") for i in range(len(rows))]


def _is_one_table(given: Any) -> bool:
    """Whether this is one table with a row per bag, or not a list of tables at all (then scikit-learn raises)."""
    if isinstance(given, list | tuple):
        return len(given) > 0 and _depth(given[0]) < 2
    if not hasattr(given, "ndim") and hasattr(given, "__array__"):
        given = np.asarray(given)
    if getattr(given, "ndim", 0) == 1 and str(getattr(given, "dtype", "")) == "object" and len(given):
        return _depth(next(iter(given))) < 2
    return not isinstance(given, Sequence) and getattr(given, "ndim", 0) != 3


def _depth(value: Any) -> int:
    """Number of axes of a value; for nested lists, judged by their first elements."""
    if isinstance(value, Bag):
        return 2
    if hasattr(value, "ndim"):
        return int(value.ndim)
    if isinstance(value, list | tuple):
        return 1 + (_depth(value[0]) if value else 0)
    return 0


def _as_bags(bags: Any) -> list[Bag]:
    return [bag if isinstance(bag, Bag) else Bag(_as_numbers(bag, i), id=f"bag {i}") for i, bag in enumerate(bags)]


def _as_numbers(bag: Any, number: int) -> Any:
    if isinstance(bag, torch.Tensor):
        return bag
    try:
        values = np.asarray(bag)
    except ValueError as error:
        raise AsmilError(f"bag {number}: not a table of tiles x features ({error})") from None
    if values.dtype.kind not in "fiub":
        raise AsmilError(f"bag {number}: the values have the type {values.dtype}; features must be numbers")
    return values
