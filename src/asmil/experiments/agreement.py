"""Agreement between seeds: the recorded attention of the trainings of a trial, compared pair by pair."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.stability.analysis import AGREEMENT, TrainingStability, agreement_by_fold, read_stability
from asmil.experiments.plan import RUN_FOLDER
from asmil.experiments.store import RESULT_FILE, results_table, varied_columns
from asmil.files import write_text
from asmil.runs.layout import RunLayout

AGREEMENT_FILE = "agreement.csv"


def agreement_table(out: Path) -> pd.DataFrame:
    """One row per trial, fold and slide: means over pairs of seeds; empty if nothing was recorded."""
    results = results_table(out)
    if results.empty:
        return pd.DataFrame()
    results = results[results["status"] == "done"]
    varied = varied_columns(results)
    tables = []
    for trial in sorted({Path(run).parent.name for run in results["run"]}):
        table = _trial_agreement(out / RUN_FOLDER / trial)
        if table.empty:
            continue
        about = results[results["run"].str.startswith(f"{RUN_FOLDER}/{trial}/")].iloc[0]
        for name in reversed(["cohort", "variant", *varied]):
            table.insert(0, name, about[name])
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def write_agreement(out: Path) -> Path | None:
    """Write `agreement.csv` if any two seeds can be compared.

    Rows of results whose recordings are not in the folder, since it was copied without its trainings, are kept.
    """
    path, table = out / AGREEMENT_FILE, agreement_table(out)
    if table.empty:
        return None
    if path.is_file():
        earlier = pd.read_csv(path)
        names = ["cohort", "variant", *varied_columns(earlier)]
        known = earlier[names].apply(tuple, axis=1)
        kept = known.isin(_without_trainings(out, names)) & ~known.isin(table[names].apply(tuple, axis=1))
        table = pd.concat([earlier[kept], table], ignore_index=True)
    write_text(path, table.to_csv(index=False))
    return path


def _without_trainings(out: Path, names: list[str]) -> set[tuple[Any, ...]]:
    """The results whose run folders have no trainings."""
    results = results_table(out).reindex(columns=[*names, "run"])
    return {tuple(row) for *row, run in results.to_numpy().tolist() if not any(RunLayout(out / run).trainings())}


def _trial_agreement(folder: Path) -> pd.DataFrame:
    trainings: dict[tuple[int, int], TrainingStability] = {}
    for run in sorted(path.parent for path in folder.glob(f"*/{RESULT_FILE}")):
        try:
            trainings |= {(training.fold, training.seed): training for training in read_stability(run).trainings}
        except AsmilError:
            continue  # nothing was recorded
    if not trainings:
        return pd.DataFrame()
    means = agreement_by_fold(trainings.values()).groupby(["fold", "slide"])[list(AGREEMENT)].mean().reset_index()
    return means.assign(seeds=means["fold"].map(Counter(fold for fold, _ in trainings)))
