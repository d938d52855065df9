"""What the anchor does to attention and to results, method by method, on a synthetic cohort.

    python benchmarks/anchor_study.py --out results/ [--seeds 5] [--workers 16] [--controls] [--seconds 540]
    python benchmarks/anchor_study.py --out results/ --summary [--role train] [--figure anchor_study.svg]

Every method is trained without an anchor, with one (softmax) and with anchor and normalized sigmoid (NSF), otherwise
as `asmil train` would with the preset named, epoch chosen on validation. `--controls` adds terms that the paper holds
to be no substitute. The attention of four slides a class, training and validation, is recorded after every epoch. The
test slides give macro-F1 and AUC and, on slides with a lesion, the AUC of the heat map and of the attention (the mean
over rows) against the truth of the tiles.

Trainings run side by side, the longest methods first, three seeds of everything before any fourth. A line is added to
`results.jsonl` as a training ends; the same command goes on where a killed or timed-out one stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import anchor_study_report as report
from asmil.errors import AsmilError
from asmil.evaluation.stability import analysis
from asmil.files import write_json, write_text
from asmil.runs.attention_file import AttentionWriter, Recording, read_attention
from asmil.runs.epochs import read_epochs
from asmil.settings.config import parse_assignments
from asmil.synthetic.bags import SyntheticConfig, write_synthetic

if TYPE_CHECKING:
    from asmil.runs.layout import RunLayout

BASES: dict[str, tuple[str, str]] = {
    "transmil": ("transmil", "paper"),
    "asmil (paper)": ("asmil", "paper"),
    "asmil (recommended)": ("asmil", "no_anchor"),  # as the preset was called at the time
    "clam_sb": ("clam_sb", "paper"),
    "dsmil": ("dsmil", "paper"),
    "abmil": ("abmil", "paper"),
}
"""Method and preset, the longest trainings first."""
ANCHORS = {
    "none": ["anchor.normalizer=none"],
    "anchor": ["anchor.normalizer=softmax"],
    "anchor + nsf": ["anchor.normalizer=nsf"],
}
CONTROLS = {
    "entropy 0.1": ["stabilizers.entropy.weight=0.1"],
    "features 1": ["stabilizers.features.weight=1"],
    "anchor + standardized nsf, weight 0.1": ["anchor.normalizer=standardized_nsf", "anchor.weight=0.1"],
}
CONTROLLED_BASE = "abmil"
COMMON = ["record.attention=4", "record.role=both", "training.precision=fp32", "training.checkpoint_seconds=20"]
FIRST_SEEDS = 3
NOT_BEGUN = "not begun"


@dataclass(frozen=True)
class Job:
    """One training of the study; `deadline` is in seconds of the clock."""

    manifest: Path
    work: Path
    out: Path
    base: str
    term: str
    seed: int
    epochs: int
    schedule: str
    deadline: float

    @property
    def name(self) -> str:
        return folder_name(self.base, self.term, self.seed)


def folder_name(base: str, term: str, seed: int) -> str:
    words = f"{base} {term}".replace("(", "").replace(")", "").replace("+", "").replace(",", "")
    return "-".join([*words.split(), f"seed-{seed}"])


def planned(seeds: int, controls: bool) -> list[tuple[str, str, int]]:
    """Base, term and seed of every training, in the order in which they are begun."""
    terms = [(base, term) for base in BASES for term in ANCHORS]
    terms += [(CONTROLLED_BASE, term) for term in CONTROLS] if controls else []
    waves = (range(min(seeds, FIRST_SEEDS)), range(FIRST_SEEDS, seeds))
    return [(base, term, seed) for wave in waves for base, term in terms for seed in wave]


def train_job(job: Job) -> dict[str, Any] | str:
    """The numbers of one training; or why there are none yet."""
    import torch

    from asmil.runs.config import resolve
    from asmil.training.interruption import Interrupted
    from asmil.training.run import train_run
    from asmil.training.run_parts import RunObserver

    class Deadline(RunObserver):
        def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
            if time.time() > job.deadline:
                raise Interrupted

    torch.set_num_threads(1)
    method, preset = BASES[job.base]
    own = [f"training.seed={job.seed}", f"training.epochs={job.epochs}", f"training.schedule={job.schedule}"]
    changes = parse_assignments([*{**ANCHORS, **CONTROLS}[job.term], *own, *COMMON])
    if time.time() > job.deadline:
        return NOT_BEGUN
    try:
        run = train_run(job.manifest, job.work / job.name, resolve(method, preset, changes), observer=Deadline())
        return {"base": job.base, "term": job.term, "seed": job.seed, **results_of(job, run)}
    except Interrupted:
        return "stopped, to go on"
    except (AsmilError, RuntimeError) as error:
        return f"failed: {error}"


def results_of(job: Job, run: RunLayout) -> dict[str, Any]:
    """The numbers of a finished run; its course and its kept attention are written into the folder of results."""
    table = pd.read_parquet(run.predictions).query("role == 'test'")
    classes = [str(column) for column in table if str(column).startswith("prob_")]
    target = np.array([classes.index(f"prob_{label}") for label in table["target"]])
    folder = run.training(0, job.seed)
    stability = analysis.read_stability(run.path)
    (training,) = stability.trainings
    save_kept_attention(job.out / "trainings" / job.name, training)
    write_json(job.out / "trainings" / job.name / "course.json", report.course_of(stability.times))
    return {
        **report.slide_scores(target, table[classes].to_numpy()),
        **tile_scores(job.manifest, run.path),
        **report.attention_numbers(stability.times, stability.slides),
        "kept_epoch": float(training.record.epochs[training.kept]),
        "seconds": round(sum(record["seconds"] for record in read_epochs(folder / "metrics.jsonl")), 1),
    }


def tile_scores(manifest: Path, run: Path) -> dict[str, float]:
    """AUC of heat map and attention against the truth of the tiles, mean over the test slides that have a lesion."""
    from asmil.cohort.features import read_bag
    from asmil.cohort.manifest import load_cohort
    from asmil.models.inference import infer
    from asmil.runs.run import Run

    truth = pd.read_parquet(manifest.parent / "tile_truth.parquet")
    lesions = {str(slide): part["tumor"].to_numpy() for slide, part in truth.groupby("slide")}
    trained = Run(run)
    (model,) = trained.models
    found: dict[str, list[float]] = {"tile_auc": [], "tile_auc_attention": []}
    for slide in load_cohort(manifest).slides:
        lesion = lesions[slide.slide]
        if slide.split == "test" and lesion.any():
            output = infer(model, model.prepare(read_bag(slide.source, slide.slide, slide.mpp)), trained.device)
            assert output.scores is not None
            attention = model.normalizer(output.scores.float()).mean(dim=0)
            for name, values in (("tile_auc", model.tile_map(output)), ("tile_auc_attention", attention)):
                found[name].append(report.ranking_auc(lesion, values.detach().float().numpy()))
    return {name: float(np.mean(values)) if values else float("nan") for name, values in found.items()}


def save_kept_attention(folder: Path, training: analysis.TrainingStability) -> None:
    """Keep what the seeds are compared by: the attention of the kept epoch alone."""
    shutil.rmtree(folder, ignore_errors=True)
    record, kept = training.record, training.kept
    attention = [record.attention(slide)[kept].astype(np.float32) for slide in range(len(record.slides))]
    writer = AttentionWriter(folder, record, {})
    epoch, step = float(record.epochs[kept]), int(record.steps[kept])
    writer.add(Recording(epoch, step, attention, record.logits[kept], record.embedding[kept]))
    writer.finish({})


def gather(out: Path) -> None:
    """`agreement.json` and `courses.json` from the trainings that have ended and left their attention here."""
    groups: dict[tuple[str, str], dict[int, Path]] = {}
    for row in read_results(out):
        folder = out / "trainings" / folder_name(row["base"], row["term"], row["seed"])
        if (folder / "course.json").exists():
            groups.setdefault((row["base"], row["term"]), {})[row["seed"]] = folder
    agreement, courses = [], []
    for (base, term), folders in groups.items():
        about = {"base": base, "term": term, "seeds": len(folders)}
        courses.append(
            about | report.mean_course([json.loads((f / "course.json").read_text()) for f in folders.values()])
        )
        records = {seed: record for seed, folder in folders.items() if (record := read_attention(folder)) is not None}
        if len(records) > 1:
            table = analysis.seed_agreement(records, dict.fromkeys(records, 0))
            first = next(iter(records.values()))
            agreement.append(about | report.agreement_numbers(table, dict(zip(first.slides, first.roles, strict=True))))
    write_json(out / "agreement.json", agreement)
    write_text(out / "courses.json", json.dumps(courses) + "\n")


def read_results(out: Path) -> list[dict[str, Any]]:
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(out: Path, row: Mapping[str, Any]) -> None:
    with (out / "results.jsonl").open("a") as file:
        file.write(json.dumps(report.compact(row)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def claim(out: Path, about: Mapping[str, Any]) -> None:
    """A folder holds one study: the same cohort and epochs for every line."""
    path = out / "study.json"
    if path.exists() and json.loads(path.read_text()) != dict(about):
        sys.exit(f"{out} holds a study with other settings ({path.read_text().strip()}); give another --out")
    write_json(path, about)


def train_all(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, dict[str, Any] | str]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {pool.submit(train_job, job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, default=Path("runs/anchor-study"), help="folder of cohort and runs")
    parser.add_argument("--difficulty", default="medium")
    parser.add_argument("--slides", type=int, default=365)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--controls", action="store_true", help="with the terms that are to be no substitute")
    parser.add_argument("--bases", nargs="+", default=list(BASES), choices=list(BASES), metavar="BASE")
    parser.add_argument("--schedule", default="cosine", choices=["cosine", "constant"], help="of the learning rate")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long, to go on later")
    parser.add_argument("--summary", action="store_true", help="print the tables of a folder of results, train nothing")
    parser.add_argument("--role", choices=["train", "val"], default="val", help="slides that the summary is about")
    parser.add_argument("--figure", type=Path, help="draw the courses of a folder of results into this SVG file")
    options = parser.parse_args(arguments)
    if options.summary or options.figure:
        if options.figure:
            write_text(
                options.figure, report.draw(json.loads((options.out / "courses.json").read_text()), options.role)
            )
        if options.summary:
            print_summary(options.out, options.role)
        return
    deadline = time.time() + options.seconds
    about = ("difficulty", "slides", "epochs", "schedule")
    claim(options.out, {name: getattr(options, name) for name in about})
    settings = SyntheticConfig(slides=options.slides, difficulty=options.difficulty)
    manifest = write_synthetic(options.work / f"cohort-{options.difficulty}-{options.slides}", settings)
    done = {(row["base"], row["term"], row["seed"]) for row in read_results(options.out)}
    work = options.work / "-".join(str(getattr(options, name)) for name in about)
    jobs = [
        Job(manifest, work, options.out, base, term, seed, options.epochs, options.schedule, deadline)
        for base, term, seed in planned(options.seeds, options.controls)
        if base in options.bases and (base, term, seed) not in done
    ]
    left = 0
    try:
        for job, result in train_all(jobs, options.workers):
            if isinstance(result, str):
                left += 1
                if result != NOT_BEGUN:
                    print(f"{job.name}: {result}", flush=True)
            else:
                append(options.out, result)
                shown = ", ".join(f"{name} {result[name]:.3f}" for name in ("f1", "auc", "tile_auc", "seconds"))
                print(f"{job.name}: {shown}", flush=True)
    except BrokenProcessPool:
        sys.exit("a training was killed (too little memory for so many --workers?); give the same command again")
    gather(options.out)
    print_summary(options.out, options.role)
    if left:
        sys.exit(f"{left} of {len(jobs)} trainings are not done; give the same command again")


def print_summary(out: Path, role: str) -> None:
    path = out / "agreement.json"
    agreement = json.loads(path.read_text()) if path.exists() else []
    print(report.summary(pd.DataFrame(read_results(out)), agreement, role))


if __name__ == "__main__":
    main()
