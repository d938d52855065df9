"""Affinely dependent bags: ranks and singular values under the rounding of a type, and the share of dependent cases."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asmil.attention.affine import AffineVerdict, affine_dependence, count_decides, share_of
from asmil.errors import AsmilError
from oracles.sheet import Allowance, Content, Kind, is_rows

Row = Mapping[str, Any]

GIVEN = frozenset({"name", "N", "D", "X", "rule"})
EPSILON = re.compile(r"(float16|bfloat16|float32|float64)_eps")
SHARE = re.compile(r"ratio_(float16|bfloat16|float32|float64)")
SOFTMAX_FORM, SOFTMAX_TYPE = "softmax_shift", "float32"
SINGULAR_VALUES = ("largest_singular_value", "smallest_relevant")
RELATIVE_ERROR, NOISE = 1e-6, 1e-14
DRAWN = re.compile(r"PCG64\((\d+)\)\); args (\{.*?\})")


def recognizes(content: Content) -> bool:
    """Whether a section has cases with a verdict under the rounding of a type."""
    return any(_is_cases(rows) for rows in content.values())


def answer(sheet: Content) -> dict[str, Any]:
    """The verdicts on all cases, and the shares that are asked for."""
    answers: dict[str, Any] = {}
    bags = {name: [_features(row) for row in rows] for name, rows in sheet.items() if _is_cases(rows)}
    for name, features in bags.items():
        answers[name] = [_case(row, values) for row, values in zip(sheet[name], features, strict=True)]
    for key in sheet:
        asked = SHARE.fullmatch(key)
        if asked is not None:
            eps = _eps(asked[1])
            answers[key] = share_of([affine_dependence(x, eps) for features in bags.values() for x in features]).share
    return answers


def allowance(key: str, official: NDArray[np.float64], beside: Content) -> Allowance:
    """Ranks and verdicts exactly, all else to 1e-6; singular values below the tolerance only to the tolerance."""
    size = float(official)
    if key in SINGULAR_VALUES:
        tolerance, largest = float(beside["tolerance"]), float(beside["largest_singular_value"])
        if size <= tolerance:
            return Allowance(tolerance, max(largest, tolerance))
        return Allowance(max(RELATIVE_ERROR * size, NOISE * largest), size)
    if key == "tolerance" or SHARE.fullmatch(key):
        return Allowance(RELATIVE_ERROR * size, size)
    return Allowance(0.0)


def _is_cases(rows: Any) -> bool:
    return is_rows(rows) and any(EPSILON.fullmatch(key) or key == SOFTMAX_FORM for row in rows for key in row)


def _case(row: Row, features: NDArray[np.float64]) -> dict[str, Any]:
    found: dict[str, Any] = {"dependent_by_count": count_decides(*features.shape)}
    for key in row:
        asked = EPSILON.fullmatch(key)
        if asked is not None:
            found[key] = _describe(affine_dependence(features, _eps(asked[1])))
        elif key == SOFTMAX_FORM:
            # These files take max |X| after the row means are gone.
            magnitude = float(np.abs(features - features.mean(axis=1, keepdims=True)).max())
            verdict = affine_dependence(features, _eps(SOFTMAX_TYPE), "softmax", magnitude)
            found[key] = _describe(verdict) | {"dependent_by_count": verdict.by_count}
    return found


def _describe(verdict: AffineVerdict) -> dict[str, Any]:
    return {
        "rank_centred": verdict.rank,
        "needed": verdict.needed,
        "dependent": verdict.dependent,
        "largest_singular_value": verdict.largest,
        "smallest_relevant": verdict.smallest_relevant,
        "tolerance": verdict.tolerance,
    }


def _eps(dtype: str) -> float:
    return torch.finfo(getattr(torch, dtype)).eps


def _features(row: Row) -> NDArray[np.float64]:
    if "X" in row:
        return np.array(row["X"], dtype=np.float64)
    rule = DRAWN.search(row.get("rule", ""))
    if rule is None:
        raise AsmilError(f"case {row.get('name')}: there is neither X nor a rule that draws it and is understood")
    draw = np.random.Generator(np.random.PCG64(int(rule[1])))
    asked = ast.literal_eval(rule[2])
    n, d = int(asked["N"]), int(asked["D"])
    if asked.get("rank"):
        values: NDArray[np.float64] = draw.standard_normal((n, asked["rank"])) @ draw.standard_normal(
            (asked["rank"], d)
        )
    else:
        values = draw.standard_normal((n, d))
    if asked.get("noise"):
        values = values + asked["noise"] * draw.standard_normal((n, d))
    if asked.get("relu"):
        values = np.maximum(values, 0)
    values = values + asked.get("off", 0.0)
    copies = int(asked.get("dup", 0))
    if copies:
        values[-copies:] = values[:copies]
    return values.astype(np.float32).astype(np.float64)


KIND = Kind("affine", recognizes, GIVEN, answer, allowance)
