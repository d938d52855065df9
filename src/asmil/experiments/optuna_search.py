"""Points proposed by Optuna, a few at a time, from the results of earlier ones; resumable without its database.

`search.json` holds every proposed point and, when it is known, its value: the mean over cohorts, variants and seeds of
the chosen validation metric. A restarted search adds these to a new study and proposes only what is missing; a sweep
takes their values from the results that it keeps. A point with a failed training has no value: the search continues
without it, and the next command tries it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from asmil.errors import AsmilError
from asmil.experiments.plan import Point
from asmil.experiments.settings import SearchConfig, Span
from asmil.files import write_json
from asmil.settings.documents import read_json

SEARCH_FILE = "search.json"


class _Proposal(BaseModel):
    point: dict[str, Any]
    value: float | None = None


class Proposals:
    """The points of a search, in groups of `at_once`."""

    def __init__(self, search: SearchConfig, out: Path) -> None:
        self._search = search
        self._path = out / SEARCH_FILE
        self._proposals = _read(self._path)
        self._open: list[int] = []
        self._failed: set[int] = set()

    def reopen(self) -> None:
        """Forget the values, so that all points are proposed again; finished trainings are only read again."""
        for proposal in self._proposals:
            proposal.value = None

    def next_points(self) -> list[Point]:
        """The next group: first what was proposed and not finished, then new points; none when all are done."""
        self._open = [
            i for i, proposal in enumerate(self._proposals) if proposal.value is None and i not in self._failed
        ]
        if not self._open:
            wanted = min(self._search.at_once, self._search.trials - len(self._proposals))
            first = len(self._proposals)
            self._proposals += [_Proposal(point=point) for point in self._ask(wanted)]
            self._open = list(range(first, len(self._proposals)))
            self._save()
        return [dict(self._proposals[i].point) for i in self._open]

    def tell(self, rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """Record the rows of the trainings at each point of the last group, by the index of the point."""
        for index, of_point in rows.items():
            values = [row.get(self._search.metric) for row in of_point]
            known = [float(value) for value in values if value is not None and not math.isnan(value)]
            if not known:
                columns = sorted({name for row in of_point for name in row if name.startswith("val_")})
                raise AsmilError(
                    f"search.metric = {self._search.metric}: no training has it; known are {', '.join(columns)}"
                )
            self._proposals[self._open[index]].value = sum(known) / len(known)
        self._save()

    def fail(self, indices: Iterable[int]) -> None:
        """Record which points of the last group have a failed training, by their indices."""
        self._failed |= {self._open[index] for index in indices}

    def _ask(self, wanted: int) -> list[Point]:
        if wanted <= 0:
            return []
        optuna = _import_optuna()
        distributions = {name: _distribution(optuna, values) for name, values in self._search.space.items()}
        seed = self._search.seed + len(self._proposals)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        for proposal in self._proposals:
            state = optuna.trial.TrialState.FAIL if proposal.value is None else optuna.trial.TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    state=state, params=proposal.point, distributions=distributions, value=proposal.value
                )
            )
        return [dict(study.ask(distributions).params) for _ in range(wanted)]

    def _save(self) -> None:
        write_json(self._path, [proposal.model_dump() for proposal in self._proposals])


def _read(path: Path) -> list[_Proposal]:
    return read_json(path, list[_Proposal], "remove it, and the search starts again") if path.is_file() else []


def _distribution(optuna: Any, values: Sequence[Any] | Span) -> Any:
    if not isinstance(values, Span):
        return optuna.distributions.CategoricalDistribution(list(values))
    if values.low.is_integer() and values.high.is_integer() and not values.log:
        return optuna.distributions.IntDistribution(int(values.low), int(values.high))
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise AsmilError(
            "search.strategy = optuna needs the package optuna; pip install 'asmil[sweep]', or use random"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
