"""What we answer to a problem, by the names that oracle files use.

`answer` builds the model from the drawn tensors and asks the module of its family for more than the common answers:
`oracles/answers/<module of the method>.py` with `answer(problem, model) -> Answers`. Problems without tensors test a
rule alone; such a module lists them in `RULES` (by the method's name in the file).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from asmil.models import official
from oracles.answers.common import Answers, common
from oracles.problem import Problem

Rule = Callable[[Problem], Answers]


def answer(problem: Problem) -> tuple[str, Answers]:
    """Who answered (the method or the rule), and all answers by name."""
    if not problem.tensors:
        return problem.method, _rules()[problem.method](problem)
    model = official.load(problem.state(), problem.config)
    family = type(model).__module__.rsplit(".", 1)[-1]
    if family not in _modules():
        return family, common(problem, model)
    answers: Answers = importlib.import_module(f"{__name__}.{family}").answer(problem, model)
    return family, answers


def _modules() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(__path__)}


def _rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for name in _modules():
        rules |= getattr(importlib.import_module(f"{__name__}.{name}"), "RULES", {})
    return rules
