"""What was measured of recorded attention, as CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.evaluation.run import setting
from asmil.evaluation.stability.analysis import AGREEMENT, CONCENTRATION, RunStability
from asmil.files import write_json, write_text
from asmil.reporting import jsonable

MEASURES = ("jsd_mean", "jsd_late", "jsd_relative", *CONCENTRATION)


def write_tables(stabilities: Sequence[RunStability], folder: Path | str) -> None:
    """Write `stability_slides.csv`, `stability_epochs.csv`, `stability_agreement.csv` and `stability.json`."""
    folder = Path(folder)
    parts = {
        "slides": [stability.slides for stability in stabilities],
        "epochs": [stability.times for stability in stabilities],
        "agreement": [stability.agreement for stability in stabilities],
    }
    names = run_names(stabilities)
    for part, tables in parts.items():
        named = [table.assign(run=name)[["run", *table.columns]] for name, table in zip(names, tables, strict=True)]
        joined = pd.concat([table for table in named if len(table)] or named[:1])
        write_text(folder / f"stability_{part}.csv", joined.to_csv(index=False))
    write_json(folder / "stability.json", [summary_of(stability) for stability in stabilities])


def run_names(stabilities: Sequence[RunStability]) -> list[str]:
    """The folders' names, or their paths where two have the same name."""
    names = [stability.name for stability in stabilities]
    return names if len(set(names)) == len(names) else [str(stability.path) for stability in stabilities]


def summary_of(stability: RunStability) -> dict[str, Any]:
    """The run in numbers, ready for JSON: undefined numbers are None.

    A measure is averaged over the slides and folds of a seed, and then over seeds.
    """
    slides, trainings = stability.slides, stability.trainings
    agreement = {name: jsonable(stability.agreement[name].mean()) for name in AGREEMENT}
    return {
        "run": str(stability.path),
        "name": stability.name,
        "method": stability.method,
        "label": stability.label,
        "schedule": setting(stability.config, "training", "schedule"),
        "every": trainings[0].record.every,
        "trainings": len(trainings),
        "trainings_asked_for": _asked_for(stability),
        "trainings_finished": int(slides.groupby(["fold", "seed"])["finished"].first().sum()),
        "seeds": int(slides["seed"].nunique()),
        "slides": sorted(slides["slide"].unique()),
        "recordings": {"least": _recordings(stability, min), "most": _recordings(stability, max)},
        "measures": {name: _measure(slides, name) for name in MEASURES},
        "agreement": {"pairs": len(stability.agreement), **agreement},
        "alarms": [{"kind": one.kind, "text": one.text, "advice": one.advice} for one in stability.alarms],
    }


def _asked_for(stability: RunStability) -> int:
    asked = int(stability.config.get("folds") or 1) * int(stability.config.get("seeds") or 1)
    return max(asked, len(stability.trainings))


def _recordings(stability: RunStability, choose: Any) -> int:
    return int(choose(len(training.record.epochs) for training in stability.trainings))


def _measure(slides: pd.DataFrame, name: str) -> dict[str, Any]:
    per_seed = slides.groupby("seed")[name].mean()
    return {
        "value": jsonable(per_seed.mean()),
        "sd_seeds": jsonable(per_seed.std(ddof=1)),
        "per_seed": {str(seed): jsonable(value) for seed, value in per_seed.items()},
    }
