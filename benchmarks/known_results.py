"""Results that exist already: which jobs of a plan they cover, and tables joined with new ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pandas as pd

from asmil.experiments.plan import TrainingJob

NEEDED_COLUMNS = {"learning": "val_auc_fall", "froc": "froc"}
"""Columns of measures that some earlier results lack."""
IDENTITY = ["cohort", "variant", "fold", "seed"]


def is_known(job: TrainingJob, known: pd.DataFrame) -> bool:
    """Whether the table has a row with all measures for every seed of a job."""
    if known.empty:
        return False
    rows = known[(known["cohort"] == job.trial.cohort) & (known["variant"] == job.trial.variant)]
    for column in (NEEDED_COLUMNS[name] for name in job.measures if name in NEEDED_COLUMNS):
        rows = rows[rows[column].notna()] if column in rows else rows[:0]
    return set(job.seeds) <= set(rows["seed"])


def missing_jobs(
    jobs: Iterable[TrainingJob], known: pd.DataFrame, again: Collection[str] = ()
) -> tuple[list[TrainingJob], int]:
    """The jobs that are not known, in the order of their seeds, and how many were left out.

    again: cohorts whose known results do not count
    """
    found = list(jobs)
    missing = [job for job in found if job.trial.cohort in again or not is_known(job, known)]
    return sorted(missing, key=lambda job: job.seeds[0]), len(found) - len(missing)


def joined(known: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Both tables, in the order of cohort, variant, fold and seed; of two rows for one training the new one."""
    both = pd.concat([table for table in (known, found) if len(table)], ignore_index=True)
    return both.drop_duplicates(IDENTITY, keep="last").sort_values(IDENTITY, ignore_index=True)
