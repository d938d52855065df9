"""What is to be compared: checking the request, opening the runs, naming them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.run import Run, read_run


def refuse_request(
    runs: Sequence[Path | str], role: str, resamples: int, reference: Path | str | None, all_pairs: bool, unit: str
) -> None:
    """Refuse what cannot be meant, before anything is read."""
    if role not in ("test", "val"):
        raise AsmilError(f"role {role!r} is unknown: {did_you_mean(role, ('test', 'val'))}")
    if unit not in ("slide", "patient"):
        raise AsmilError(f"unit {unit!r} is unknown: {did_you_mean(unit, ('slide', 'patient'))}")
    if resamples < 1:
        raise AsmilError(f"{resamples} resamples are too few; give at least 1, better 2000")
    if len(runs) < 2:
        raise AsmilError("a comparison needs two runs or more; `asmil evaluate` evaluates one")
    if reference is not None and all_pairs:
        raise AsmilError("all pairs have no reference; give either a reference or all pairs")
    known = [Path(run).resolve() for run in runs]
    twice = next((run for place, run in enumerate(runs) if known[place] in known[:place]), None)
    if twice is not None:
        raise AsmilError(f"{twice} is given twice; name every run once")
    if reference is not None and Path(reference).resolve() not in known:
        hint = did_you_mean(str(reference), map(str, runs))
        raise AsmilError(f"the reference {reference} is not among the runs: {hint}")


def open_runs(runs: Sequence[Path | str], reference: Path | str | None) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a sentence for each that cannot; the reference must be among the former."""
    opened, problems = [], []
    for path in runs:
        try:
            opened.append(read_run(path, kind=None))
        except AsmilError as error:
            if reference is not None and Path(reference).resolve() == Path(path).resolve():
                raise
            problems.append(str(error))
    if len(opened) < 2:
        left = f"; only {opened[0].path} is left, and a comparison needs two runs" if opened else ""
        raise AsmilError("; ".join(problems) + left)
    return opened, problems


def names_of(runs: Sequence[Run]) -> list[str]:
    """The folders' names, or their paths where two have the same name."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def pairs_of(
    runs: Sequence[Run], names: Sequence[str], reference: Path | str | None, all_pairs: bool
) -> list[tuple[str, str]]:
    """Pairs (run, reference): every run but the reference against it, or every run against every earlier one."""
    if all_pairs:
        return [(run, earlier) for place, earlier in enumerate(names) for run in names[place + 1 :]]
    place = 0
    if reference is not None:
        place = [run.path.resolve() for run in runs].index(Path(reference).resolve())
    return [(run, names[place]) for run in names if run != names[place]]
