"""Bags as scikit-learn's users give them: lists of tables, blocks of three axes, or one table of one-tile bags."""

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

    A list of tables N x D, or one array of three axes, is bags; an array, data frame or list of two axes is bags of
    one tile each, one per row, which scikit-learn checks in its own words.
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
    """The bags to predict, of as many features as those of the fit."""
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
    """Whether this is one table with a row per bag; anything else that is no list of tables, too: it is refused."""
    if isinstance(given, list | tuple):
        return len(given) > 0 and _depth(given[0]) < 2
    if not hasattr(given, "ndim") and hasattr(given, "__array__"):
        given = np.asarray(given)
    if getattr(given, "ndim", 0) == 1 and str(getattr(given, "dtype", "")) == "object" and len(given):
        return _depth(next(iter(given))) < 2
    return not isinstance(given, Sequence) and getattr(given, "ndim", 0) != 3


def _depth(value: Any) -> int:
    """How many axes a value has; of nested lists, those that their first elements show."""
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
        raise AsmilError(f"bag {number}: it is not a table of tiles x features ({error})") from None
    if values.dtype.kind not in "fiub":
        raise AsmilError(f"bag {number}: its values are of type {values.dtype}; features must be numbers")
    return values
