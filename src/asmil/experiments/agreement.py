"""Whether the seeds of a trial look at the same tiles: recorded attention compared between its trainings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.stability.analysis import AGREEMENT, TrainingStability, read_stability, seed_agreement
from asmil.experiments.plan import RUN_FOLDER
from asmil.experiments.store import RESULT_FILE, results_table
from asmil.experiments.summary import varied_columns
from asmil.files import write_text

AGREEMENT_FILE = "agreement.csv"


def agreement_table(out: Path) -> pd.DataFrame:
    """One row for each trial, fold, slide: means over the pairs of its seeds; empty where nothing was recorded."""
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
    """Write `agreement.csv` if any two seeds can be compared."""
    table = agreement_table(out)
    if table.empty:
        return None
    write_text(out / AGREEMENT_FILE, table.to_csv(index=False))
    return out / AGREEMENT_FILE


def _trial_agreement(folder: Path) -> pd.DataFrame:
    by_fold: dict[int, dict[int, TrainingStability]] = {}
    for run in sorted(path.parent for path in folder.glob(f"*/{RESULT_FILE}")):
        try:
            trainings = read_stability(run).trainings
        except AsmilError:
            continue  # nothing was recorded
        for training in trainings:
            by_fold.setdefault(training.fold, {})[training.seed] = training
    tables = []
    for fold, of_seed in by_fold.items():
        records = {seed: training.record for seed, training in of_seed.items()}
        pairs = seed_agreement(records, {seed: training.kept for seed, training in of_seed.items()})
        means = pairs.groupby("slide")[list(AGREEMENT)].mean().reset_index()
        means.insert(0, "fold", fold)
        tables.append(means.assign(seeds=len(of_seed)))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
