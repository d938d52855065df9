"""Metrics of the recorded attention of a run: movement, concentration, and agreement between seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asmil.attention import measures
from asmil.attention.measures import in_blocks
from asmil.cohort.splits import FoldNames
from asmil.errors import AsmilError
from asmil.evaluation.stability.alarms import Alarm, alarms_of
from asmil.files import write_json, write_text
from asmil.reporting import jsonable
from asmil.runs.attention_file import AttentionRecord, read_attention
from asmil.runs.bundle import refuse_bundle
from asmil.runs.described import run_label
from asmil.runs.notes import read_kept_epoch
from asmil.runs.run import Run
from asmil.runs.stored_settings import StoredSettings
from asmil.tables.arrays import Floats
from asmil.tables.names import unique_names
from asmil.tasks.prediction_format import prediction_format

CONCENTRATION = ("entropy", "effective_tiles", "effective_share", "peak_n", "gini", "top1_mass", "max_weight")
MEASURES = ("jsd_mean", "jsd_late", "jsd_relative", *CONCENTRATION)
AGREEMENT = ("rank_correlation", "top1_overlap", "jsd")
LATE_RECORDINGS = 10

LEAST_INFORMATION = 1e-6
"""Attention with an entropy within this many nats of ln N counts as uniform; float16 rounding alone gives 1e-7."""


@dataclass(frozen=True)
class TrainingStability:
    """The recorded attention of one training; `kept` is the recording of the epoch whose weights were kept."""

    fold: int
    seed: int
    record: AttentionRecord
    kept: int


@dataclass(frozen=True)
class RunStability:
    """Metrics of the recorded attention of a run; docs/stability.md lists the columns of the tables.

    times: one row per training, slide and recording; slides: one row per training and slide
    agreement: one row per fold, slide and pair of seeds
    """

    path: Path
    name: str
    method: str
    label: str
    values: Mapping[str, Any]
    settings: StoredSettings
    trainings: tuple[TrainingStability, ...]
    times: pd.DataFrame
    slides: pd.DataFrame
    agreement: pd.DataFrame
    fold_names: FoldNames
    alarms: tuple[Alarm, ...]


def read_stability(run: Path | str) -> RunStability:
    """Measure the attention that a run recorded, slide by slide, including unfinished trainings."""
    opened = Run(run)
    settings = opened.settings
    has_classes = (
        prediction_format("classification" if settings.task.kind is None else opened.kind).part_name == "class"
    )
    trainings, courses, slides = [], [], []
    for fold, seed, folder in opened.layout.trainings():
        record = read_attention(folder)
        if record is None or len(record.epochs) == 0:
            continue
        training = TrainingStability(fold, seed, record, _kept_recording(folder, record))
        trainings.append(training)
        finished = (folder / "predictions.parquet").is_file()
        for slide in range(len(record.slides)):
            course = _course(training, slide, has_classes)
            courses.append(course)
            slides.append(_slide_row(course, training.kept, finished))
    if not trainings:
        raise AsmilError(_why_nothing_was_recorded(opened))
    times, table = pd.concat(courses, ignore_index=True), pd.DataFrame(slides)
    agreement, fold_names = agreement_by_fold(trainings), opened.fold_names
    return RunStability(
        path=opened.path,
        name=opened.name,
        method=settings.method or "unknown",
        label=run_label(settings),
        values=opened.values,
        settings=settings,
        trainings=tuple(trainings),
        times=times,
        slides=table,
        agreement=agreement,
        fold_names=fold_names,
        alarms=alarms_of(settings, times, table, agreement, fold_names),
    )


def seed_agreement(records: Mapping[int, AttentionRecord], kept: Mapping[int, int]) -> pd.DataFrame:
    """How similar the attention of several seeds is: one row per slide and pair of seeds that recorded it.

    records, kept: by seed, the record and the index of the recording to use
    """
    rows = []
    slide_indices = {seed: {slide: i for i, slide in enumerate(record.slides)} for seed, record in records.items()}
    for slide in dict.fromkeys(slide for indices in slide_indices.values() for slide in indices):
        attentions = {
            seed: records[seed].attention(indices[slide], [kept[seed]])[0]
            for seed, indices in slide_indices.items()
            if slide in indices
        }
        for seed_a, seed_b in combinations(sorted(attentions), 2):
            p, q = attentions[seed_a], attentions[seed_b]
            if len(p) != len(q):
                raise AsmilError(
                    f"slide {slide}: {len(p)} tiles were recorded with seed {seed_a}, {len(q)} with seed {seed_b}; "
                    "compare trainings on the same features"
                )
            numbers = (measures.rank_correlation(p, q), measures.top_overlap(p, q), measures.jsd(p, q))
            values = dict(zip(AGREEMENT, map(float, numbers), strict=True))
            rows.append({"slide": slide, "seed_a": seed_a, "seed_b": seed_b, **values})
    return pd.DataFrame(rows, columns=["slide", "seed_a", "seed_b", *AGREEMENT])


def write_tables(stabilities: Sequence[RunStability], folder: Path | str) -> None:
    """Write `stability_slides.csv`, `stability_epochs.csv`, `stability_agreement.csv` and `stability.json`."""
    folder = Path(folder)
    parts = {
        "slides": [stability.slides for stability in stabilities],
        "epochs": [stability.times for stability in stabilities],
        "agreement": [stability.agreement for stability in stabilities],
    }
    names = unique_names([stability.path for stability in stabilities])
    for part, tables in parts.items():
        named = [table.assign(run=name)[["run", *table.columns]] for name, table in zip(names, tables, strict=True)]
        joined = pd.concat([table for table in named if len(table)] or named[:1])
        write_text(folder / f"stability_{part}.csv", joined.to_csv(index=False))
    write_json(folder / "stability.json", [summary_of(stability) for stability in stabilities])


def summary_of(stability: RunStability) -> dict[str, Any]:
    """The summary of a run, ready for JSON; undefined numbers are None.

    Each metric is averaged over the slides and folds of each seed, then over seeds.
    """
    slides, trainings = stability.slides, stability.trainings
    planned = Run(stability.path).n_folds * (stability.settings.seeds or 1)
    recordings = [len(training.record.epochs) for training in trainings]
    return {
        "run": str(stability.path),
        "name": stability.name,
        "method": stability.method,
        "label": stability.label,
        "schedule": stability.settings.training.schedule,
        "every": trainings[0].record.every,
        "trainings": len(trainings),
        "trainings_asked_for": max(planned, len(trainings)),
        "trainings_finished": int(slides.groupby(["fold", "seed"])["finished"].first().sum()),
        "seeds": int(slides["seed"].nunique()),
        "slides": sorted(slides["slide"].unique()),
        "recordings": {"least": min(recordings), "most": max(recordings)},
        "metrics": {name: _measure(slides, name) for name in MEASURES},
        "agreement": {
            "pairs": len(stability.agreement),
            **{name: jsonable(stability.agreement[name].mean()) for name in AGREEMENT},
        },
        "alarms": [asdict(alarm) for alarm in stability.alarms],
    }


def _measure(slides: pd.DataFrame, name: str) -> dict[str, Any]:
    per_seed = slides.groupby("seed")[name].mean()
    return {
        "value": jsonable(per_seed.mean()),
        "sd_seeds": jsonable(per_seed.std(ddof=1)),
        "per_seed": {str(seed): jsonable(value) for seed, value in per_seed.items()},
    }


def late_recordings(n_recordings: int) -> int:
    """Number of recordings at the end that count as late: 10 if there are at least 20, otherwise half of them."""
    return LATE_RECORDINGS if n_recordings >= 2 * LATE_RECORDINGS else max(1, n_recordings // 2)


def _course(training: TrainingStability, slide: int, has_classes: bool) -> pd.DataFrame:
    """One slide of a training, one row per recording; cross-entropy is only defined for classification."""
    record = training.record
    attention = record.attention(slide)
    n_recordings, n_tiles = attention.shape
    target = int(record.targets[slide])
    jsd_previous: Floats = np.full(n_recordings, np.nan)
    jsd_previous[1:] = in_blocks(measures.jsd, attention[1:], attention[:-1])
    entropy = in_blocks(measures.entropy, attention)
    effective_tiles = np.minimum(np.exp(entropy), n_tiles)
    columns = {
        "fold": training.fold,
        "seed": training.seed,
        "slide": record.slides[slide],
        "target": record.classes[target],
        "role": record.roles[slide],
        "n_tiles": n_tiles,
        "epoch": record.epochs,
        "step": record.steps,
        "jsd_previous": jsd_previous,
        "jsd_final": in_blocks(measures.jsd, attention, np.broadcast_to(attention[-1], attention.shape)),
        "ce": measures.cross_entropy(record.logits[:, slide], target) if has_classes else np.nan,
        "entropy": entropy,
        "effective_tiles": effective_tiles,
        "effective_share": effective_tiles / n_tiles,
        "peak_n": in_blocks(measures.peak_times_n, attention),
        "gini": in_blocks(measures.gini, attention),
        "top1_mass": in_blocks(measures.top_mass, attention),
        "max_weight": attention.max(axis=1),
    }
    return pd.DataFrame(columns)


def _slide_row(course: pd.DataFrame, kept: int, finished: bool) -> dict[str, Any]:
    late = course.iloc[-late_recordings(len(course)) :]
    at_kept = course.iloc[kept]
    jsd_late = late["jsd_previous"].mean()
    information = float((np.log(late["n_tiles"]) - late["entropy"]).mean())
    return {
        **{name: at_kept[name] for name in ("fold", "seed", "slide", "target", "role", "n_tiles")},
        "finished": finished,
        "jsd_mean": course["jsd_previous"].mean(),
        "jsd_late": jsd_late,
        "jsd_relative": jsd_late / information if information > LEAST_INFORMATION else np.nan,
        **{name: at_kept[name] for name in CONCENTRATION},
    }


def agreement_by_fold(trainings: Iterable[TrainingStability]) -> pd.DataFrame:
    """The agreement of seeds within each fold: one row per fold, slide and pair of seeds."""
    by_fold: dict[int, dict[int, TrainingStability]] = {}
    for training in trainings:
        by_fold.setdefault(training.fold, {})[training.seed] = training
    tables = []
    for fold, of_seed in by_fold.items():
        records = {seed: training.record for seed, training in of_seed.items()}
        table = seed_agreement(records, {seed: training.kept for seed, training in of_seed.items()})
        table.insert(0, "fold", fold)
        tables.append(table)
    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True) if filled else tables[0]


def _kept_recording(folder: Path, record: AttentionRecord) -> int:
    """The last recording up to the epoch that was kept; the last recording if no epoch was kept."""
    epoch = read_kept_epoch(folder)
    if epoch is None:
        return len(record.epochs) - 1
    return max(0, int(np.searchsorted(record.epochs, epoch, side="right")) - 1)


def _why_nothing_was_recorded(run: Run) -> str:
    path, method = run.path, str(run.settings.method)
    refuse_bundle(path)
    if not _has_attention(method):
        return f"{path}: {method} has no attention to measure; use a run of another method"
    if run.settings.record.attention in (None, "none", 0):
        return (
            f"{path}: the run recorded no attention; train into another folder with `--set record.attention=2` "
            "(slides per class, or all)"
        )
    return f"{path}: no training has recorded attention yet; run the same `asmil train` command again to finish it"


def _has_attention(method: str) -> bool:
    from asmil.models.registry import methods

    known = methods().get(method)
    return known is None or bool(known.model.score_axes)
