"""How much of a known risk survival models recover: their C-index beside that of the true risk.

    python benchmarks/survival_recovery.py --out results/ [--workers 2] [--seconds 540]
    python benchmarks/survival_recovery.py --out results/ --summary

A synthetic survival cohort (365 slides, 307 patients, half of them censored) has patients whose hazard is a known
function of their tiles. Every method is trained with every loss on the training part, once as in the
study whose set-up the ASMIL paper took over (10 epochs, 32 patients a step), and once longer (30 epochs, 8 patients a
step, ten times the learning rate). The C-index is that of the test part, whose site no training has seen; that of the
true log-risk, on the same patients, is what no model can beat but by chance.

Trainings of a run go on where a killed or timed-out command stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.files import write_json
from asmil.synthetic.bags import SyntheticConfig, write_synthetic
from asmil.tasks.concordance import concordance

METHODS = {
    "asmil (recommended)": ("asmil", "no_anchor"),  # as the preset was called at the time
    "abmil": ("abmil", "paper"),
    "mean_pooling": ("mean_pooling", "paper"),
}
"""Name, method and preset, the longest trainings first."""
LOSSES = ("incidence", "hazard", "cox")
SETUPS: dict[str, dict[str, Any]] = {
    "study": {},
    "longer": {"training": {"epochs": 30, "lr": 2e-3, "accumulate": 8}},
}
COHORT = SyntheticConfig(slides=365, width=64, tiles_min=50, tiles_max=200, difficulty="easy")


@dataclass(frozen=True)
class Trial:
    """One run: a method with a loss in a set-up, on the training part."""

    name: str
    loss: str
    setup: str

    def folder(self, out: Path) -> Path:
        """Where it is trained."""
        return out / "runs" / f"{self.name.replace(' ', '_')}-{self.loss}-{self.setup}"


def trials() -> list[Trial]:
    """All runs, the short ones last."""
    return [Trial(name, loss, setup) for setup, name, loss in product(reversed(SETUPS), METHODS, LOSSES)]


def train(trial: Trial, out: Path) -> None:
    """Train one run, or go on with it."""
    import torch

    from asmil.runs.config import resolve
    from asmil.training.run import train_run

    torch.set_num_threads(1)
    method, preset = METHODS[trial.name]
    changes: dict[str, Any] = {
        "task": {"kind": "survival", "loss": trial.loss},
        "record": {"attention": "none"},
        **SETUPS[trial.setup],
    }
    train_run(out / "cohort" / "cohort.csv", trial.folder(out), resolve(method, preset, changes))


def summarize(out: Path) -> dict[str, Any]:
    """The C-index of every finished run on the test part, and of the true risk."""
    truth = pd.read_parquet(out / "cohort" / "patient_truth.parquet").set_index("patient")["log_risk"]
    rows: list[dict[str, Any]] = []
    for trial in trials():
        file = trial.folder(out) / "predictions.parquet"
        if file.exists():
            table = pd.read_parquet(file).query("role == 'test'")
            table["truth"] = table["patient"].map(truth)
            rows.append({**vars(trial), "c_index": _c_index(table, "risk"), "true": _c_index(table, "truth")})
    return {
        "machine": os.uname().machine,
        "command": "python benchmarks/survival_recovery.py --out results/",
        "cohort": COHORT.model_dump(mode="json"),
        "runs": rows,
    }


def _c_index(table: pd.DataFrame, column: str) -> float:
    return round(concordance(table["time"], table["event"], table[column]), 4)


def markdown(summary: dict[str, Any]) -> str:
    """A row a method, a column a loss and set-up."""
    runs = {(row["name"], row["loss"], row["setup"]): row for row in summary["runs"]}
    columns = list(product(SETUPS, LOSSES))
    lines = [
        "| method | " + " | ".join(f"{setup}, {loss}" for setup, loss in columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for name in METHODS:
        cells = [runs.get((name, loss, setup)) for setup, loss in columns]
        told = [f"{cell['c_index']:.3f}" if cell else "–" for cell in cells]
        lines.append(f"| {name} | " + " | ".join(told) + " |")
    if runs:
        true = next(iter(runs.values()))["true"]
        lines.append("| true risk | " + " | ".join([f"{true:.3f}"] * len(columns)) + " |")
    return "\n".join(lines)


def main() -> int:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further run after so long")
    parser.add_argument("--summary", action="store_true", help="only the table of what is there")
    asked = parser.parse_args()
    started = time.monotonic()
    failed = []
    if not asked.summary:
        write_synthetic(asked.out / "cohort", COHORT, task="survival")
        context = multiprocessing.get_context("spawn")
        waiting = [trial for trial in trials() if not (trial.folder(asked.out) / "predictions.parquet").exists()]
        with ProcessPoolExecutor(asked.workers, mp_context=context) as pool:
            running = {pool.submit(train, trial, asked.out): trial for trial in waiting}
            for done in as_completed(running):
                problem = None if done.cancelled() else done.exception()
                if problem is not None:
                    failed.append(f"{running[done]}: {problem}")
                if time.monotonic() - started > asked.seconds:
                    for other in running:
                        other.cancel()
    summary = summarize(asked.out)
    write_json(asked.out / "summary.json", summary)
    print(markdown(summary))
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
