"""Run a search from a cohort to its page and the bundle of the chosen model."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from asmil.cohort.consistency import refuse_mixed
from asmil.cohort.fingerprint import fingerprint
from asmil.cohort.inspection import headers_of
from asmil.cohort.leakage import refuse_leakage
from asmil.cohort.manifest import Cohort
from asmil.engine import Engine
from asmil.errors import AsmilError
from asmil.experiments.auto.budget import CLOCK_FILE, PLAN_FILE, Budget
from asmil.experiments.auto.findings import Findings, find
from asmil.experiments.auto.ladder import candidates_of, refuse_decided
from asmil.experiments.auto.report import BUNDLE, write_auto
from asmil.experiments.auto.search import JOBS, Search, SearchResult, Show, outer_splits
from asmil.export.bundle import write_bundle
from asmil.machine.locks import locked_folder
from asmil.reporting import Document
from asmil.runs.config import with_settings
from asmil.runs.description import rows_sha256
from asmil.runs.layout import LOCK_FILE
from asmil.settings.folder_settings import claim_folder, differing_settings
from asmil.tables.time_units import TimeUnit
from asmil.tasks.base import TaskKind
from asmil.training.planning import plan_training
from asmil.training.run import train_run
from asmil.training.run_parts import TrainingEngine

TAKEN_FROM_PLAN = ("training.class_weights", "data.max_tiles", "task.time_unit")
"""Settings that all candidates take from what `asmil plan` would choose."""
HASH_DIGITS = 12
NOT_TESTED = (
    "The metrics are those of the procedure that chose this method, by nested cross-validation on patients whom it had "
    "not seen. This model was then trained on all patients, so there were none left to test it."
)


@dataclass(frozen=True)
class AutoResult:
    """What `asmil auto` found.

    findings: the answers and the numbers behind them; document: the content of the page
    page, bundle: the page, and the folder of the chosen model for `predict`
    """

    findings: Findings
    page: Path
    bundle: Path
    document: Document

    def __str__(self) -> str:
        return f"{self.findings.attention_answer}\n{self.findings.choice_answer}"


def run_auto(
    cohort: Cohort,
    kind: TaskKind,
    out: Path,
    *,
    minutes: float,
    names: Sequence[str],
    settings: Mapping[str, Any],
    seed: int,
    engine: Engine,
    time_unit: TimeUnit | None = None,
    item_timeout_s: float | None = 0.0,
    device: str = "auto",
    model_engine: TrainingEngine | None = None,
    again: bool = False,
    show: Show = lambda stage, done, total: None,
) -> AutoResult:
    """Search, evaluate, and train the chosen model; a search that was interrupted goes on.

    names: of the candidates; settings: of all trainings, by dotted name
    device, model_engine: where the final model is trained; no engine: in this process
    """
    refuse_decided(settings)
    if minutes <= 0:
        raise AsmilError(f"--minutes {minutes:g}: give a budget above 0")
    candidates = {candidate.name: candidate for candidate in candidates_of(names)}
    for candidate in candidates.values():
        candidate.config(settings)  # an invalid setting raises before slides are read
    infos = headers_of(cohort.slides, item_timeout_s, tiles=True, progress=partial(show, "comparing slides"))
    refuse_mixed(infos)
    left_out = {}
    if all(info.may_be_slide_vector for info in infos):
        left_out = {name: "one vector per slide" for name, candidate in candidates.items() if candidate.attends}
    planned = plan_training(cohort, infos, kind, time_unit)
    taken = {choice.key: choice.value for choice in planned.choices if choice.key in TAKEN_FROM_PLAN}
    common = {
        "task.kind": kind,
        "training.seed": seed,
        "data.val_share": 0.0,
        "record.attention": "none",
        **{name: value for name, value in taken.items() if value is not None},
        **settings,
    }
    made_from = {"task": kind, "methods": list(names), "minutes": minutes, "seed": seed, "settings": dict(settings)}
    busy = f"{out}: another process is searching in this folder; wait for it, or give another --out"
    with locked_folder(out, LOCK_FILE, busy):
        _claim(out, {**made_from, **_fingerprints(cohort, kind)}, again)
        search = Search(
            cohort,
            kind,
            out,
            {name: candidate for name, candidate in candidates.items() if name not in left_out},
            common,
            infos[0].width,
            engine,
            Budget(out, minutes),
            seed,
            show,
            planned.facts,
            planned.warnings,
            left_out,
        )
        refuse_leakage(cohort, outer_splits(cohort, search.most_folds()[0], seed, kind))
        result = search.run()
        findings = find(search, result, infos)
        bundle = _train_chosen(search, result, findings, device, model_engine)
        search.budget.save()
        page, document = write_auto(search, result, findings)
    return AutoResult(findings, page, bundle, document)


def _fingerprints(cohort: Cohort, kind: TaskKind) -> dict[str, str]:
    features = "".join(fingerprint(slide.source) for slide in cohort.slides)
    return {
        "manifest rows": rows_sha256(kind, cohort)[:HASH_DIGITS],
        "features": hashlib.sha256(features.encode()).hexdigest()[:HASH_DIGITS],
    }


def _claim(out: Path, made_from: Mapping[str, Any], again: bool) -> None:
    """Store what the search is made from; a folder with another search is refused, or cleared."""
    note = out / "settings.yaml"
    if again and differing_settings(note, made_from):
        for name in (JOBS, "outer", "model", BUNDLE):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in (PLAN_FILE, CLOCK_FILE):
            (out / name).unlink(missing_ok=True)
    claim_folder(note, made_from, "a search", again)


def _train_chosen(
    search: Search, result: SearchResult, findings: Findings, device: str, engine: TrainingEngine | None
) -> Path:
    """Train the chosen method on all patients and write its bundle, unless it is there."""
    bundle = search.out / BUNDLE
    if bundle.exists():
        return bundle
    recorded = 2 if findings.chosen.attends else "none"
    config = with_settings(
        findings.chosen.config(search.common, result.plan.share),
        {"training.device": device, "record.attention": recorded},
    )
    slides = tuple(replace(slide, split="train", fold=None) for slide in search.cohort.slides)
    search.show("training the chosen model", 0, 1)
    train_run(replace(search.cohort, slides=slides), search.out / "model", config, engine=engine)
    search.show("training the chosen model", 1, 1)
    return write_bundle(search.out / "model", bundle, config.method, evaluation=findings.expected, limit=NOT_TESTED)
