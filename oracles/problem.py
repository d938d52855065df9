"""An oracle file of a model: a problem to be answered, and the official answers, kept apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asmil import Bag
from oracles.rule import draw_bag, draw_grid, draw_state


@dataclass(frozen=True)
class Problem:
    """What the official implementation was given; its answers are not in here."""

    name: str
    method: str
    mode: str
    config: Mapping[str, Any]
    tensors: Sequence[Mapping[str, Any]]
    given: Mapping[str, Any]
    """The `bag` entry of the file: n, d, key, grid, and lists that a model needs (clusters, neighbours)."""
    asked: Collection[str] = ()
    """The names of the outputs that the file holds; some carry a setting, such as a label."""

    def state(self) -> dict[str, Tensor]:
        """The drawn weights, by their official names."""
        return draw_state(self.tensors)

    def bag(self, key: int | None = None, **extras: Any) -> Bag:
        """The drawn bag (or that of another key), with coordinates where the file says so."""
        n, d = int(self.given["n"]), int(self.given["d"])
        features = draw_bag(n, d, int(self.given["key"]) if key is None else key)
        return Bag(features, draw_grid(n) if self.given.get("grid") else None, id=self.name, extras=extras)

    def listed(self, name: str, dtype: torch.dtype = torch.int64) -> Tensor:
        """A list of the file that belongs to the bag, such as `edge_index`."""
        return torch.tensor(self.given[name], dtype=dtype)


@dataclass(frozen=True)
class Expected:
    """One official answer."""

    shape: tuple[int, ...]
    values: Tensor


@dataclass(frozen=True)
class Oracle:
    """A file: the problem, and the answers by name."""

    problem: Problem
    expected: Mapping[str, Expected]


def is_model(content: Mapping[str, Any]) -> bool:
    """Whether a file is of a model, or of a rule that belongs to one."""
    return "outputs" in content


def read_oracle(name: str, content: Mapping[str, Any]) -> Oracle:
    """The oracle of a model in the content of a file."""
    problem = Problem(
        name=name,
        method=str(content["method"]),
        mode=str(content.get("mode", "eval")),
        config=content.get("config") or {},
        tensors=content.get("tensors") or [],
        given=content.get("bag") or {},
        asked=tuple(content["outputs"]),
    )
    expected = {
        output: Expected(tuple(answer["shape"]), torch.tensor(answer["values"], dtype=torch.float64))
        for output, answer in content["outputs"].items()
    }
    return Oracle(problem, expected)
