"""The runs behind docs/reproduction.md: tables of the paper on synthetic stand-ins, the most important first.

    python benchmarks/reproduction.py --out runs/reproduction [--workers 15] [--device cuda] [--seconds 440] [--toy]
        [--known src/asmil/paper/data/measured docs/results/reproduction] [--only METHOD...] [--without METHOD...]
        [--tables TABLE...] [--site-bias 0]
    python benchmarks/reproduction.py --out runs/reproduction --cohorts-only [--workers 15]   (before several at once)
    python benchmarks/reproduction.py --gather runs/reproduction --into src/asmil/paper/data/measured --about "..."
    python benchmarks/reproduction.py --dynamics docs/results/anchor_study --into src/asmil/paper/data/measured

Jobs are begun in the order of `PLAN`; the same command resumes. Trainings whose results are in a folder of `--known`
are left out. `--gather` adds the results of each table to the files that come with the package, from the folder or from
the `all.csv` that a run keeps up to date. `--dynamics` takes the table `dynamics` from the anchor study.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.experiments.plan import TrainingJob
from asmil.experiments.running import SweepFolder, TrainingMachine, run_jobs, write_cohorts
from asmil.experiments.store import results_table
from asmil.experiments.worker import CohortJob
from asmil.files import write_json, write_text
from asmil.paper.claims.measured import Measured
from asmil.paper.comparing import cells, effects
from asmil.paper.datasets import dataset
from asmil.paper.recipes import RECIPES, Recipe, recipe
from asmil.paper.running import PaperRun
from asmil.reporting.formats import format_p
from asmil.reporting.text import markdown_table
from asmil.version import __version__
from known_results import IDENTITY, joined, missing_jobs

START = {"model.init_std": 1.0}
"""What the paper does not state: with tokens that start at std 0.02 ASMIL does not learn here."""
DROPPED_COLUMNS = ("status", "error", "run", "preset", "method")
DIGITS = 5
RESULTS = Path(__file__).parents[1] / "docs" / "results"
BESIDE = RESULTS / "reproduction"
CLAIMS = RESULTS / "claims.json"


@dataclass(frozen=True)
class Part:
    """Some of a table: data sets and rows (none: all), with their size."""

    table: str
    datasets: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    slides: int = 300
    epochs: int = 30
    seeds: int = 5
    settings: Mapping[str, Any] = field(default_factory=dict)


QUICK_METHODS = ("asmil", "abmil", "clam_sb", "dsmil", "acmil", "aem", "ibmil")
FOUNDATION_METHODS = ("asmil", "abmil", "clam_sb", "dsmil", "aem")
PLUG_INS = tuple(f"{m}{added}" for m in ("abmil", "clam_sb", "dsmil") for added in ("", "+anchor", "+anchor+nsf"))
STEADY = ("abmil", "abmil+anchor+nsf", "dsmil", "dsmil+anchor+nsf", "asmil", "asmil+anchor+nsf")
SLOW = ("transmil", "transmil+anchor+nsf")
FRUGAL = {"record.every": 3255}
"""All slides only before, in the middle of and after 30 epochs of 217 steps: the recordings that are measured."""
SURVIVAL = ("asmil", "abmil", "deepattnmisl", "patch_gcn")
LARGE_METHODS = ("dtfd", "mhim", "hdmil", "camil")
PLAN = (
    Part("components"),
    Part("beta", ("bracs",)),
    Part("significance", ("bracs",), seeds=10),
    Part("drop-rate", ("bracs",)),
    Part("tokens", ("bracs",)),
    Part("plug-in", ("camelyon16", "bracs"), PLUG_INS),
    Part("dynamics", ("camelyon16", "bracs"), STEADY),
    Part("temperature"),
    Part("localization", (), ("asmil", "asmil without nsf", "clam_sb", "dsmil")),
    Part("overfitting"),
    Part("histograms"),
    Part("dynamics", ("camelyon16",), ("abmil+entropy", "abmil+features")),
    Part("online-nsf", ("bracs",)),
    Part("update", ("bracs",)),
    Part("beta", ("camelyon16",)),
    Part("tokens", ("camelyon16", "camelyon17")),
    Part("drop-rate", ("camelyon16",), seeds=3),
    Part("update", ("camelyon16",)),
    Part("ema"),
    Part("tsne", (), ("asmil", "asmil+anchor+nsf"), seeds=3),
    Part("online-nsf", ("camelyon16",)),
    Part("localization", (), ("dtfd", "camil")),
    Part("significance", ("camelyon16", "camelyon17"), seeds=5),
    Part("subtyping", ("bracs", "camelyon17"), tuple(f"{m} (vit_s_ssl)" for m in QUICK_METHODS), seeds=3),
    Part("entmax", seeds=3),
    Part("subtyping", ("camelyon16",), tuple(f"{m} (vit_s_ssl)" for m in QUICK_METHODS), seeds=3),
    Part("subtyping", ("bracs", "camelyon17"), tuple(f"{m} (resnet18_imagenet)" for m in QUICK_METHODS), seeds=3),
    Part("foundation", (), tuple(f"{m} (pathgen_clip_vit_l)" for m in FOUNDATION_METHODS), seeds=3),
    Part("mixture", ("bracs",), seeds=3),
    # minutes each even on a GPU
    Part("dynamics", ("camelyon16", "bracs"), SLOW, seeds=3),
    Part("plug-in", ("camelyon16", "bracs"), ("transmil+anchor",), seeds=3),
    Part("tsne", (), SLOW, seeds=3, settings=FRUGAL),
    Part("mixture", ("camelyon16", "camelyon17"), seeds=3),
    Part("maps", (), ("abmil", "abmil+anchor+nsf", "asmil", "asmil+anchor+nsf"), seeds=3),
    Part("foundation", (), tuple(f"{m} (uni_vit_l)" for m in ("asmil", "abmil", "aem")), seeds=3),
    Part("subtyping", ("camelyon16",), tuple(f"{m} (resnet18_imagenet)" for m in QUICK_METHODS), seeds=3),
    # survival with the epochs that are usual for it
    Part("survival", (), SURVIVAL, slides=200, epochs=10, seeds=1),
    Part("subtyping", (), tuple(f"{m} (vit_s_ssl)" for m in LARGE_METHODS), seeds=3),
    Part("localization", (), ("transmil",), seeds=3),
    Part("maps", (), ("transmil",), seeds=3),
    Part("subtyping", ("camelyon17",), ("transmil (vit_s_ssl)",), seeds=3),
)
"""In the order in which trainings are begun, the first seeds of all before the later ones."""
FIRST_SEEDS = 3
SAME_TRAININGS = {
    ("plug-in", "transmil"): ("dynamics", "transmil"),
    ("plug-in", "transmil+anchor+nsf"): ("dynamics", "transmil+anchor+nsf"),
    ("subtyping", "transmil (vit_s_ssl)"): ("dynamics", "transmil"),
}
"""Rows of TransMIL (table and name) that are those of another table, trained with the same settings."""
TABLE_EVERY_S = 5.0


def runs_of(out: Path, toy: bool, site_bias: float = 0.0) -> list[PaperRun]:
    return [_run(part, out / _name(part), toy, site_bias) for part in PLAN]


def _name(part: Part) -> str:
    return f"{part.table}-{part.slides}-{part.epochs}"


def _run(part: Part, out: Path, toy: bool, site_bias: float = 0.0) -> PaperRun:
    one = recipe(part.table)
    return PaperRun(
        replace(one, settings={**one.settings, **({} if toy else part.settings)}),
        out,
        "quick" if toy else "full",
        datasets=part.datasets,
        rows=part.rows,
        seeds=2 if toy else part.seeds,
        epochs=1 if toy else part.epochs,
        slides=None if toy else part.slides,
        cohorts=out.parent / "cohorts",
        asmil_settings=START,
        site_bias=site_bias,
    )


def with_site_bias(rows: pd.DataFrame, site_bias: float) -> pd.DataFrame:
    """The rows of stand-ins with this site bias, and of those with one site, on which it has no effect."""
    if "site_bias" not in rows:
        rows = rows.assign(site_bias=float("nan"))
    one_site = [dataset(cohort.partition("-")[0]).sites == 1 for cohort in rows["cohort"]]
    return rows[(rows["site_bias"] == site_bias) | pd.Series(one_site, rows.index, dtype=bool)]


def read_known(
    folders: Sequence[Path], table: str, size: tuple[int, int], site_bias: float | None = None
) -> pd.DataFrame:
    """The rows of a table at a size (slides, epochs), of `TABLE.csv` and `TABLE_*.csv`, and of an `all.csv`.

    site_bias: see `with_site_bias`; None: any
    """
    paths = [path for folder in folders for path in sorted(folder.glob("*.csv"))]
    found = [pd.read_csv(path) for path in paths if path.stem.split("_")[0] == table]
    every = [pd.read_csv(path) for path in paths if path.name == "all.csv"]
    found += [rows[(rows["table"] == table) & (rows["status"] == "done")] for rows in every]
    rows = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    if site_bias is not None and len(rows):
        rows = with_site_bias(rows, site_bias)
    return rows[(rows["slides"] == size[0]) & (rows["epochs"] == size[1])] if len(rows) else rows


def planned_jobs(folders: Sequence[SweepFolder], known: Sequence[Path], site_bias: float) -> list[TrainingJob]:
    """All jobs in the order of the plan, without those whose results are known."""
    jobs: dict[Path, TrainingJob] = {}
    left_out = 0
    for folder in folders:
        table, slides, epochs = folder.out.name.rsplit("-", 2)
        found = read_known(known, table, (int(slides), int(epochs)), site_bias)
        fresh, skipped = missing_jobs(folder.fixed_jobs(), found)
        jobs |= {job.folder: job for job in fresh}
        left_out += skipped
    print(f"{len(jobs)} jobs, {left_out} left out as known", flush=True)
    return sorted(jobs.values(), key=lambda job: job.seeds[0] >= FIRST_SEEDS)


@dataclass(frozen=True)
class Chosen:
    """What is run: without known results, and only or without some methods, in some tables."""

    known: Sequence[Path] = ()
    only: Sequence[str] = ()
    without: Sequence[str] = ()
    tables: Sequence[str] = ()
    site_bias: float = 0.0

    def takes(self, job: TrainingJob) -> bool:
        method, table = job.trial.method, job.out.name.rsplit("-", 2)[0]
        in_table = not self.tables or table in self.tables
        return in_table and method not in self.without and (not self.only or method in self.only)


def prepared(out: Path, on_gpu: bool, toy: bool, chosen: Chosen) -> tuple[list[TrainingJob], list[CohortJob]]:
    """The trainings that are missing, in their order, and the cohorts that they need."""
    runs = runs_of(out, toy, chosen.site_bias)
    folders = [SweepFolder(sweep, run.out, on_gpu) for run in runs for sweep in run.sweeps()]
    for run in runs:
        write_json(run.out / "paper.json", {**run.about(), "asmil": __version__})
    jobs = [job for job in planned_jobs(folders, chosen.known, chosen.site_bias) if chosen.takes(job)]
    wanted = {job.manifest.parent for job in jobs}
    cohorts = {job.folder: job for folder in folders for job in folder.cohort_jobs() if job.folder in wanted}
    return jobs, list(cohorts.values())


def run_all(out: Path, machine: TrainingMachine, seconds: float | None, toy: bool, chosen: Chosen) -> None:
    engine, on_gpu = machine.prepare()
    began = time.time()
    jobs, cohorts = prepared(out, on_gpu, toy, chosen)
    write_cohorts(cohorts, engine)
    print(f"cohorts: {time.time() - began:.0f} s", flush=True)
    deadline = None if seconds is None else began + seconds
    written = began
    for number, end in enumerate(run_jobs(jobs, engine, deadline), start=1):
        print(f"{number} of {len(jobs)}, {time.time() - began:.0f} s: {end.job.out.name}, {end.job.name}: {end.status}"
              f"{f': {end.error}' if end.error else ''}{_took(end.job)}", flush=True)  # fmt: skip
        if time.time() - written > TABLE_EVERY_S:
            write_text(out / "all.csv", gathered(out).to_csv(index=False))
            written = time.time()
    write_text(out / "all.csv", gathered(out).to_csv(index=False))


def _took(job: TrainingJob) -> str:
    path = job.folder / "timing.json"
    if not path.is_file():
        return ""
    took = json.loads(path.read_text(encoding="utf-8"))
    return f", {took['train_s']:.0f} s of training, {took['all_s']:.0f} s in all"


def gathered(out: Path) -> pd.DataFrame:
    """The results of all folders, with their table, number of slides and epochs."""
    if (out / "all.csv").is_file() and not any(out.glob("*/runs")):
        return pd.read_csv(out / "all.csv")
    tables = []
    for note in sorted(out.glob("*/paper.json")):
        table = results_table(note.parent)
        if len(table):
            name, slides, epochs = note.parent.name.rsplit("-", 2)
            bias = json.loads(note.read_text(encoding="utf-8"))["site_bias"]
            tables.append(table.assign(table=name, slides=slides, epochs=epochs, site_bias=bias))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def with_shared(results: pd.DataFrame) -> pd.DataFrame:
    """The results, with the rows that tables share with others."""
    found = [results]
    for (table, row), (source, name) in SAME_TRAININGS.items():
        rows = results[(results["table"] == source) & (results["variant"] == name)]
        metrics = [column for column in rows if str(column).startswith(("test_", "val_"))]
        shared = rows.filter([*IDENTITY, "status", "slides", "epochs", "site_bias", *metrics])
        found.append(shared.assign(table=table, variant=row))
    return pd.concat([part for part in found if len(part)], ignore_index=True)


def carry(results: pd.DataFrame, into: Path, about: str, beside: Path = BESIDE) -> None:
    """Add to `TABLE.csv` for every table, and to `about.json`. Rows of stand-ins with a shortcut are not kept.

    beside: the folder for `TABLE_stand_ins.csv`, if the carried results of a table are of another size
    """
    done = with_shared(results[results["status"] == "done"])
    for table, part in done.groupby("table"):
        kept = part.drop(columns=[*(name for name in DROPPED_COLUMNS if name in part), "table"])
        # a table that was run at two sizes keeps, for each cohort, the one with more trainings
        sizes = kept.groupby(["cohort", "slides"]).size().reset_index(name="n").sort_values("n").drop_duplicates("cohort", keep="last")  # fmt: skip # noqa: E501
        kept = kept.merge(sizes[["cohort", "slides"]], on=["cohort", "slides"])
        path = into / f"{table}.csv"
        if path.is_file() and not set(pd.read_csv(path)["slides"]) & set(kept["slides"]):
            path = beside / f"{table}_stand_ins.csv"
        kept = with_site_bias(joined(pd.read_csv(path) if path.is_file() else pd.DataFrame(), kept), 0.0)
        write_text(path, kept.dropna(axis=1, how="all").to_csv(index=False, float_format=f"%.{DIGITS}g"))
    trainings = {path.stem: len(pd.read_csv(path)) for path in sorted(into.glob("*.csv"))}
    earlier = json.loads((into / "about.json").read_text(encoding="utf-8")) if (into / "about.json").is_file() else {}
    note = {
        **earlier,
        "about": about,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "asmil": __version__,
        "command": "python benchmarks/reproduction.py --out runs/reproduction --workers 15 --device cuda",
        "asmil_settings": START,
        "trainings": trainings,
    }
    write_json(into / "about.json", note)


STUDY_ROWS = {
    **{(base, "none"): base for base in ("abmil", "transmil", "dsmil")},
    **{(base, "anchor + nsf"): f"{base}+anchor+nsf" for base in ("abmil", "transmil", "dsmil")},
    ("asmil (paper)", "none"): "asmil",
    ("asmil (paper)", "anchor + nsf"): "asmil+anchor+nsf",
    ("abmil", "entropy 0.1"): "abmil+entropy",
    ("abmil", "features 1"): "abmil+features",
}
"""Rows of the table `dynamics` by base and term of the anchor study; ASMIL with the preset `paper`."""
STUDY_METRICS = {"f1": "test_f1", "auc": "test_auc"} | {
    f"val_{name}": name for name in ("jsd_mean", "jsd_late", "jsd_relative", "effective_share", "ce_end")
}


def dynamics_of(study: Path) -> pd.DataFrame:
    """The table `dynamics` from the records of the anchor study: attention of validation slides."""
    results = pd.read_json(study / "results.jsonl", lines=True)
    about = json.loads((study / "study.json").read_text(encoding="utf-8"))
    rows = pd.Series([STUDY_ROWS.get(key) for key in zip(results["base"], results["term"], strict=True)], results.index)
    table = results.assign(cohort="camelyon16-vit_s_ssl", variant=rows, fold=0).rename(columns=STUDY_METRICS)
    kept = table[table["variant"].notna()][[*IDENTITY, *STUDY_METRICS.values()]]
    return kept.assign(slides=about["slides"], epochs=about["epochs"]).sort_values(IDENTITY, ignore_index=True)


def tables_of(measured: Measured) -> list[str]:
    """Every table with results: our numbers and effects beside the printed ones."""
    return [
        line for name, one in RECIPES.items() if measured.has(name) for line in _table_part(one, measured.results(name))
    ]


def tables_beside(folder: Path = BESIDE) -> list[str]:
    """Tables on the stand-ins whose carried results are of other trainings."""
    lines = []
    for path in sorted(folder.glob("*_stand_ins.csv")):
        one = recipe(path.stem.removesuffix("_stand_ins"))
        lines += _table_part(replace(one, id=f"{one.id} (stand-ins)"), pd.read_csv(path))
    return lines


def page_of(measured: Measured) -> str:
    """The tables of docs/results/tables_reproduction.md, and the verdicts on all claims."""
    lines = ["## Tables", "", *tables_of(measured), *tables_beside()]
    found = json.loads(CLAIMS.read_text(encoding="utf-8"))
    counts = Counter(claim["verdict"] for claim in found)
    words = ("supported", "not supported", "undecided", "not testable here")
    told = ", ".join(f"{counts[word]} {word}" for word in words)
    rules = "[How verdicts are reached](../reproduction.md#how-verdicts-are-reached)"
    lines += ["## All claims", "", f"{told}. {rules}. `asmil claims --json` writes the record: `{CLAIMS.name}`.", ""]
    rows = [[f"`{claim['id']}`", claim["claim"], claim["verdict"], _linked(claim), claim["why"]] for claim in found]
    lines.append(markdown_table(["claim", "what it says", "verdict", "by", "why"], rows))
    return "\n".join(lines)


def _linked(claim: Mapping[str, str]) -> str:
    """How a claim was decided, with a link to the table of its trainings."""
    if claim["how"] != "run" or not claim["run"]:
        return "–" if claim["how"] == "none" else claim["how"]
    return f"[run](#{anchor_of(RECIPES[Path(claim['run']).stem])})"


def _heading(one: Recipe) -> str:
    return f"{one.id}: {one.title}"


def anchor_of(one: Recipe) -> str:
    """The anchor that mkdocs and GitHub give a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", _heading(one)).strip().lower())


def _table_part(one: Recipe, results: pd.DataFrame) -> list[str]:
    seeds = results.groupby(["cohort", "variant"])["seed"].nunique()
    span = f"{seeds.max()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    about = f"{len(results)} trainings, {span} seeds."
    lines = [f"### {_heading(one)}", "", about, ""]
    rows = [
        [c.row, c.dataset, c.metric.removeprefix("test_"), _pm(c.ours, c.sd), _pm(c.printed, c.printed_sd)]
        for c in cells(one, results, synthetic=True)
    ]
    if rows:
        lines += [markdown_table(["row", "data set", "metric", "ours (stand-in)", "printed"], rows), ""]
    compared = effects(one, results)
    if compared:
        rows = [
            [
                f"{e.row} − {e.reference}",
                e.dataset,
                e.metric.removeprefix("test_"),
                _signed(e.ours),
                f"{_signed(e.interval.low)} to {_signed(e.interval.high)}",
                format_p(e.p),
                _signed(e.printed),
                e.verdict,
            ]
            for e in compared
        ]
        columns = ["effect", "data set", "metric", "ours", "95 % interval", "p", "printed", "verdict"]
        lines += [markdown_table(columns, rows), ""]
    return lines


def _signed(value: float) -> str:
    if value != value:
        return "–"
    return f"{value:+.1e}" if value and abs(value) < 0.001 else f"{value:+.3f}"


def _pm(mean: float, sd: float) -> str:
    if mean != mean:
        return "–"
    text = f"{mean:.2g}" if mean and abs(mean) < 0.005 else f"{mean:.3f}"
    return text if sd != sd else f"{text} ± {sd:.2g}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--toy", action="store_true", help="smoke sizes, to try the machinery")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="folders of results that are not run again")
    parser.add_argument("--only", nargs="*", default=[], metavar="METHOD", help="only these methods")
    parser.add_argument("--tables", nargs="*", default=[], metavar="TABLE", help="only these tables and figures")
    parser.add_argument("--site-bias", type=float, default=0.0, help="of the stand-ins")
    parser.add_argument("--cohorts-only", action="store_true", help="write the cohorts of missing trainings, and end")
    parser.add_argument("--without", nargs="*", default=[], metavar="METHOD", help="methods that are left out")
    parser.add_argument("--gather", type=Path, help="a folder of this script, or one with its all.csv")
    parser.add_argument("--dynamics", type=Path, help="the folder of records of the anchor study")
    parser.add_argument("--into", type=Path)
    parser.add_argument("--about", default="")
    options = parser.parse_args(arguments)
    if options.gather is not None:
        carry(gathered(options.gather), options.into, options.about)
        return
    if options.dynamics is not None:
        write_text(options.into / "dynamics.csv", dynamics_of(options.dynamics).to_csv(index=False))
        return
    if options.out is None:
        parser.error("give --out, or --gather")
    machine = TrainingMachine(workers=options.workers, device=options.device)
    chosen = Chosen(options.known, options.only, options.without, options.tables, options.site_bias)
    if options.cohorts_only:
        engine, on_gpu = machine.prepare()
        write_cohorts(prepared(options.out, on_gpu, options.toy, chosen)[1], engine)
        return
    run_all(options.out, machine, options.seconds, options.toy, chosen)


if __name__ == "__main__":
    main()
