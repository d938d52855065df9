"""The analysis of the preset study (docs/preset_study.md): tables, tests and the decision by the rule of the plan.

    asmil sweep studies/preset.yaml --out runs/preset          (or on several machines; results.csv and agreement.csv)
    python benchmarks/preset_study.py --run studies/preset.yaml studies/preset_encoder.yaml --out runs/preset-rest
        --known docs/results/preset_study [--again COHORT...]   (only trainings that have no result yet)
    python benchmarks/preset_study.py runs/preset [runs/preset-encoder-sweep]

Reads `results.csv` and `agreement.csv` of one or more sweep folders and prints the results. Those of
`docs/results/preset_study` are put below the plan by `python docs/evidence.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.evaluation.statistics import holm
from asmil.experiments.agreement import write_agreement
from asmil.experiments.running import SweepFolder, TrainingMachine, run_jobs, write_cohorts
from asmil.experiments.settings import read_sweep
from asmil.reporting.text import markdown_table
from known_results import missing_jobs

NOW, PLAIN, REFERENCE = "asmil-now", "none-drop0", "abmil"
OURS = ("ramps", "standardized", "capped", "floor")
LEAST_GAIN, LARGEST_LOSS, TILE_LOSS, CLOSE = 0.005, -0.02, -0.01, 0.002
LEAST_OVERLAP, LARGEST_AUC_LOSS = 0.05, -0.005
ALPHA, DRAWS, FEWEST_PAIRS, FEWEST_COHORTS = 0.05, 100_000, 3, 5
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """An arm minus another in one measure: the means of cohorts, their mean, and the p of all pairs."""

    arm: str
    by_cohort: dict[str, float]
    pairs: int
    p: float

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.by_cohort.values()))) if self.by_cohort else float("nan")


def sign_flip_p(differences: Sequence[float], seed: int = 0) -> float:
    """Two-sided p of the mean of paired differences under random signs."""
    values = np.asarray(differences, dtype=np.float64)
    if not len(values) or not np.any(values):
        return 1.0
    draw = np.random.default_rng(seed)
    found, extreme = abs(values.mean()), 0
    for start in range(0, DRAWS, 10_000):
        signs = draw.choice([-1.0, 1.0], size=(min(10_000, DRAWS - start), len(values)))
        extreme += int((np.abs(signs @ values) / len(values) >= found - 1e-12).sum())
    return (extreme + 1) / (DRAWS + 1)


def compare(table: pd.DataFrame, arm: str, other: str, column: str, unit: str) -> Comparison:
    """unit: what is paired within a cohort, `seed` or `slide`."""
    wide = table[table["variant"].isin([arm, other])].pivot_table(column, ["cohort", unit], "variant")
    if not {arm, other} <= set(wide.columns):
        return Comparison(arm, {}, 0, float("nan"))
    differences = (wide[arm] - wide[other]).dropna()
    counts = differences.groupby("cohort").size()
    kept = differences[differences.index.get_level_values("cohort").isin(counts.index[counts >= FEWEST_PAIRS])]
    means = {str(cohort): float(value) for cohort, value in kept.groupby("cohort").mean().items()}
    return Comparison(arm, means, len(kept), sign_flip_p(kept.to_list()))


def adjusted(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Holm's p of the arms that have enough cohorts."""
    known = [one for one in comparisons if len(one.by_cohort) >= FEWEST_COHORTS]
    return dict(zip([one.arm for one in known], map(float, holm([one.p for one in known])), strict=True))


def primary(results: pd.DataFrame) -> pd.Series[float]:
    survival = results["test_c_index"] if "test_c_index" in results else pd.Series(np.nan, results.index)
    return results["test_auc"].fillna(survival)


@dataclass(frozen=True)
class Decision:
    """What the rule says, and all numbers behind it."""

    gains: list[Comparison]
    p: dict[str, float]
    tiles: dict[str, float]
    eligible: list[str]
    chosen: str
    overlaps: list[Comparison]
    overlap_p: dict[str, float]
    against_plain: dict[str, Comparison]
    named: list[str]


def decide(results: pd.DataFrame, agreement: pd.DataFrame) -> Decision:
    """Apply the rule of the plan."""
    arms = [arm for arm in dict.fromkeys(results["variant"]) if arm not in (REFERENCE, NOW)]
    results = results.assign(primary=primary(results))
    gains = [compare(results, arm, NOW, "primary", "seed") for arm in arms]
    p = adjusted(gains)
    tiles = {arm: compare(results, arm, NOW, "tile_auc", "seed").mean for arm in arms}
    eligible = [
        one.arm
        for one in gains
        if p.get(one.arm, 1.0) < ALPHA
        and one.mean >= LEAST_GAIN
        and min(one.by_cohort.values()) >= LARGEST_LOSS
        and tiles[one.arm] >= TILE_LOSS
    ]
    overlap = agreement.groupby("variant")["top1_overlap"].mean() if len(agreement) else pd.Series(dtype=float)
    gain_of = {one.arm: one.mean for one in gains}
    best = max((gain_of[arm] for arm in eligible), default=float("nan"))
    close = [arm for arm in eligible if gain_of[arm] >= best - CLOSE]
    chosen = max(close, key=lambda arm: float(overlap.get(arm, -1.0)), default=NOW)
    overlaps = [compare(agreement, arm, PLAIN, "top1_overlap", "slide") for arm in OURS] if len(agreement) else []
    overlap_p = adjusted(overlaps)
    against_plain = {arm: compare(results, arm, PLAIN, "primary", "seed") for arm in OURS}
    named = [
        one.arm
        for one in overlaps
        if overlap_p.get(one.arm, 1.0) < ALPHA
        and one.mean >= LEAST_OVERLAP
        and against_plain[one.arm].mean >= LARGEST_AUC_LOSS
    ]
    return Decision(gains, p, tiles, eligible, chosen, overlaps, overlap_p, against_plain, named)


def page_of(results: pd.DataFrame, agreement: pd.DataFrame) -> str:
    """The tables and the decision."""
    done = results.assign(primary=primary(results))
    decision = decide(results, agreement)
    cohorts, arms = list(dict.fromkeys(done["cohort"])), list(dict.fromkeys(done["variant"]))
    lines = [f"{len(done)} trainings finished.", ""]
    lines += ["Primary measure (AUC; C-index for survival-0), mean ± sd over seeds:", ""]
    lines.append(_table(done, arms, cohorts, "primary"))
    for column, title in (("test_f1", "Macro-F1"), ("tile_auc", "Tile AUC of the heat map")):
        shown = [c for c in cohorts if done.loc[done["cohort"] == c, column].notna().any()]
        lines += ["", f"{title}, mean ± sd over seeds:", "", _table(done, arms, shown, column)]
    rows = []
    for arm in arms:
        part = done[done["variant"] == arm]
        seeds = agreement[agreement["variant"] == arm] if len(agreement) else agreement
        rows.append(
            [
                f"`{arm}`",
                *(f"{part.groupby('cohort')[name].mean().mean():.3g}" for name in ("effective_share", "jsd_late")),
                *(
                    f"{seeds.groupby('cohort')[name].mean().mean():.3f}" if len(seeds) else "–"
                    for name in ("top1_overlap", "rank_correlation")
                ),
            ]
        )
    lines += ["", "Attention of validation slides, mean of the cohorts' means:", ""]
    titles = ["arm", "effective share", "late JSD", "overlap of heaviest 1 %", "rank correlation"]
    lines.append(markdown_table(titles, rows))
    lines += ["", f"Differences in the primary measure to `{NOW}`:", ""]
    lines.append(
        markdown_table(
            ["arm", "mean", *cohorts, "tile AUC", "pairs", "p", "p (Holm)", "eligible"],
            [
                [
                    f"`{one.arm}`",
                    f"{one.mean:+.3f}",
                    *(f"{one.by_cohort[c]:+.3f}" if c in one.by_cohort else "–" for c in cohorts),
                    f"{decision.tiles[one.arm]:+.3f}",
                    str(one.pairs),
                    f"{one.p:.4f}",
                    f"{decision.p[one.arm]:.4f}" if one.arm in decision.p else "too few cohorts",
                    "yes" if one.arm in decision.eligible else "no",
                ]
                for one in decision.gains
            ],
        )
    )
    lines += ["", f"Overlap of the heaviest 1 % of tiles between seeds, difference to `{PLAIN}`:", ""]
    lines.append(
        markdown_table(
            ["arm", "overlap", "p (Holm)", "primary measure", "named"],
            [
                [
                    f"`{one.arm}`",
                    f"{one.mean:+.3f}",
                    f"{decision.overlap_p[one.arm]:.4f}" if one.arm in decision.overlap_p else "too few cohorts",
                    f"{decision.against_plain[one.arm].mean:+.3f}",
                    "yes" if one.arm in decision.named else "no",
                ]
                for one in decision.overlaps
            ],
        )
    )
    lines += ["", "## Decision", "", *_decision_words(decision)]
    return "\n".join(lines)


def _decision_words(decision: Decision) -> list[str]:
    words = []
    if decision.chosen == NOW:
        words.append("By the rule, no arm is eligible: `recommended` stays as it is.")
    else:
        eligible = ", ".join(f"`{arm}`" for arm in decision.eligible)
        words.append(f"By the rule, eligible: {eligible}. `recommended` becomes `{decision.chosen}`.")
    if decision.named:
        words.append(f"A stabilizer of ours earns a name by the rule: {', '.join(f'`{a}`' for a in decision.named)}.")
    else:
        words.append("No stabilizer of ours makes seeds agree better by the rule without losing slide AUC.")
    return ["\n".join(words)]


def _table(done: pd.DataFrame, arms: Sequence[str], cohorts: Sequence[str], column: str) -> str:
    rows = []
    for arm in arms:
        cells = [f"`{arm}`"]
        for cohort in cohorts:
            values = done.loc[(done["variant"] == arm) & (done["cohort"] == cohort), column].dropna()
            cells.append(f"{values.mean():.3f} ± {values.std():.3f}" if len(values) > 1 else "–")
        rows.append(cells)
    return markdown_table(["arm", *cohorts], rows)


def read_folders(folders: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    results = pd.concat([pd.read_csv(folder / "results.csv") for folder in folders], ignore_index=True)
    found = [folder / "agreement.csv" for folder in folders if (folder / "agreement.csv").is_file()]
    agreement = pd.concat([pd.read_csv(path) for path in found], ignore_index=True) if found else pd.DataFrame()
    return results[results["status"] == "done"], agreement


def run_missing(
    plans: Sequence[Path],
    out: Path,
    machine: TrainingMachine,
    known: Path,
    again: Sequence[str] = (),
    seconds: float | None = None,
) -> None:
    """Train and measure what plans have and `known`/results.csv has not; cohorts of `again` are trained again."""
    engine, on_gpu = machine.prepare()
    deadline = None if seconds is None else time.time() + seconds
    folders = [SweepFolder(read_sweep(plan), out, on_gpu) for plan in plans]
    table = pd.read_csv(known / "results.csv")
    jobs, left_out = missing_jobs([job for folder in folders for job in folder.fixed_jobs()], table, again)
    print(f"{len(jobs)} jobs, {left_out} left out as known", flush=True)
    wanted = {job.manifest.parent for job in jobs}
    write_cohorts([job for folder in folders for job in folder.cohort_jobs() if job.folder in wanted], engine)
    for number, end in enumerate(run_jobs(jobs, engine, deadline), start=1):
        print(f"{number}: {end.job.name}: {end.status}{f': {end.error}' if end.error else ''}", flush=True)
    write_agreement(out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", help="sweep folders, or folders with their two tables")
    parser.add_argument("--run", type=Path, nargs="+", metavar="PLAN", help="train what these plans lack")
    parser.add_argument("--out", type=Path, help="the sweep folder of --run")
    parser.add_argument("--known", type=Path, help="the folder with results.csv of earlier trainings")
    parser.add_argument("--again", nargs="*", default=[], metavar="COHORT", help="cohorts to be trained again")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args(arguments)
    if options.run:
        if options.out is None or options.known is None:
            parser.error("--run needs --out and --known")
        machine = TrainingMachine(workers=options.workers, device=options.device)
        run_missing(options.run, options.out, machine, options.known, options.again, options.seconds)
        return
    if not options.folders:
        parser.error("give the folders of results, or --run")
    print(page_of(*read_folders(options.folders)))


if __name__ == "__main__":
    main()
