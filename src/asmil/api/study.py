"""A study: several methods trained on the same splits, compared on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asmil.api.functions import compare, evaluate, train
from asmil.api.inputs import PathLike
from asmil.api.results import index
from asmil.cohort.splits import Splits
from asmil.errors import AsmilError
from asmil.evaluation.report import write_report
from asmil.runs.layout import RunLayout
from asmil.tables.names import name_problem

if TYPE_CHECKING:
    from asmil.cohort.manifest import Cohort
    from asmil.evaluation.comparison import Comparison
    from asmil.evaluation.run_evaluation import Role


def train_methods(
    cohort: Cohort | PathLike, out: PathLike, methods: Sequence[str], *, names: Sequence[str] = (), **options: Any
) -> Comparison:
    """Train several methods on the same splits, and write one page about them, OUT/index.html.

    out: the folder of the study, with one run folder per method; runs in it are resumed
    methods: two or more of `asmil.methods`; the others are compared with the first
    names: of the methods, for their folders and all reports; default: as in `methods`
    options: of `train`
    """
    folders = study_folders(Path(out), methods, names)
    for method, folder in folders.items():
        train(cohort, folder, method=method, **options)
    return write_study(Path(out), list(folders.values()))


def study_folders(out: Path, methods: Sequence[str], names: Sequence[str] = ()) -> Mapping[str, Path]:
    """The run folder of each method, named after it or as asked for."""
    names = names or methods
    if len(methods) < 2 or len(set(methods)) < len(methods):
        raise AsmilError(f"--methods {','.join(methods)}: give two or more different methods; for one use --method")
    if len(names) != len(methods) or len(set(names)) < len(names):
        raise AsmilError(f"--names {','.join(names)}: give {len(methods)} different names, one per method")
    for name in names:
        if problem := name_problem(name):
            raise AsmilError(f"--names: '{name}' {problem}; give another name, it becomes a folder")
    return {method: out / name for method, name in zip(methods, names, strict=True)}


def write_study(out: Path, runs: Sequence[Path]) -> Comparison:
    """Evaluate and compare runs, and write the page of the study: OUT/index.html, which links all others."""
    tested = "test" in set(Splits.load(RunLayout(runs[0]).splits).table["role"])
    role: Role = "test" if tested else "val"
    for run in runs:
        write_report(evaluate(run, role))
    comparison = compare(runs, role, out=out)
    index(out)
    return comparison
