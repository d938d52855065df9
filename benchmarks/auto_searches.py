"""What `asmil auto` answers on real cohorts, and on a synthetic one that it makes: the table of docs/auto.md.

    OMP_NUM_THREADS=1 python benchmarks/auto_searches.py --minutes 5 --out docs/results/auto_searches.json \\
        --cohort "BRCA, subtypes" classification cohorts/tcga-hipt/brca/cohort.csv \\
        --cohort "LUAD, survival" survival cohorts/tcga-hipt/survival-luad/cohort.csv
    python benchmarks/auto_searches.py --device cuda --at-once 4 --keep runs/auto [--cohort ...]

Each search is one command in a process of its own; `--at-once` of them run at the same time. All numbers are read from
the `auto.json` that it writes. `--keep` keeps the searches with their pages, and the same command resumes them. What
fails is listed at the end with its error, and the others are in the record.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import torch

from asmil.errors import AsmilError
from asmil.experiments.auto.findings import TITLES
from asmil.experiments.auto.ladder import LADDER, LINEAR
from asmil.files import write_json
from asmil.reporting.estimate import UNDEFINED, Interval
from asmil.reporting.formats import (
    format_count,
    format_interval,
    format_number,
    format_share,
    format_signed,
    format_signed_interval,
)
from asmil.settings.documents import read_json
from asmil.tasks.base import TaskKind
from markdown_table import markdown_table
from measuring import about

OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "auto_searches.json"
SYNTHETIC_COHORT = "--slides 200 --difficulty medium --width 64 --tiles-min 50 --tiles-max 300"
METHODS = {candidate.name: str(candidate) for candidate in LADDER}


@dataclass(frozen=True)
class Cohort:
    """A cohort to search; manifest: None for the synthetic one, which is made."""

    name: str
    task: TaskKind
    manifest: Path | None


SYNTHETIC = Cohort("synthetic", "classification", None)


def run_asmil(arguments: Sequence[str], log: Path) -> None:
    """Run a command of asmil, whose output goes into a file."""
    with log.open("w") as messages:
        command = [sys.executable, "-m", "asmil", *arguments]
        failed = subprocess.run(command, stdout=messages, stderr=subprocess.STDOUT, check=False).returncode
    if failed:
        lines = log.read_text().strip().splitlines()
        raise AsmilError(lines[-1] if lines else f"exit code {failed}")


def search(cohort: Cohort, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The answers of `asmil auto` on a cohort, one row of the record."""
    out = folder / re.sub(r"\W+", "-", cohort.name.lower())
    manifest = cohort.manifest
    if manifest is None:
        manifest = folder / "synthetic-cohort" / "cohort.csv"
        run_asmil(["synthetic", str(manifest.parent), *SYNTHETIC_COHORT.split()], folder / "synthetic-cohort.log")
    given = ["--out", str(out), "--task", cohort.task, "--minutes", f"{options.minutes:g}", "--device", options.device]
    run_asmil(["auto", str(manifest), *given, "--quiet"], out.with_suffix(".log"))
    return {"name": cohort.name, "task": cohort.task, **answers(read_json(out / "auto.json", dict, "search again"))}


def answers(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the record keeps of an `auto.json`."""
    reference = found["reference"]
    return {
        "patients": found["expected"]["patients"],
        "minutes": found["budget_seconds"] / 60,
        "minutes_taken": found["seconds_in_all"] / 60,
        "share_of_epochs": found["share_of_epochs"],
        "left_out": list(found["left_out"]),
        "verdict": found["verdict"],
        "reference": reference,
        "difference": found["attention_minus"].get(reference),
        "metric": found["metric"],
        "performance": {key: found["performance"][key] for key in ("value", "low", "high")},
        "chosen": found["chosen"]["name"],
        "outer_choices": dict(Counter(found["methods_of_outer_folds"]["procedure"]).most_common()),
    }


def machine(record: Mapping[str, Any]) -> str:
    """Where and how the searches ran."""
    order = "one after the other" if record["at_once"] == 1 else f"{record['at_once']} at the same time"
    return f"{record['device']}, {format_count(record['threads'], 'thread')}, torch {record['torch']}, searches {order}"


def table(record: Mapping[str, Any]) -> str:
    """The searches as Markdown."""
    headers = ["cohort", "minutes", "epochs", "does attention pay?", "chosen", "expected performance"]
    return markdown_table(headers, [row(found) for found in record["searches"]], words=6)


def row(found: Mapping[str, Any]) -> list[str]:
    """A search as a line of the table."""
    title, performance = TITLES[found["metric"]], found["performance"]
    share = format_share(found["share_of_epochs"])
    left_out = [method for name, method in METHODS.items() if name in found["left_out"]]
    return [
        f"{found['name']}, {found['patients']} patients",
        f"{found['minutes_taken']:.1f} of {found['minutes']:g}",
        f"{share}; left out: {', '.join(left_out)}" if left_out else share,
        attention(found, title),
        choice(found["chosen"], found["outer_choices"]),
        f"{title} {format_number(performance['value'])} ({format_interval(interval(performance))})",
    ]


def attention(found: Mapping[str, Any], title: str) -> str:
    """Whether attention pays, with the difference to the simple method that decides."""
    if found["difference"] is None:
        return str(found["verdict"])
    limits = interval(found["difference"])
    size = f"{format_signed(found['difference']['value'])} {title} ({format_signed_interval(limits)})"
    relation = "over" if found["verdict"] == "pays" else "compared with"
    few = ", but after too few epochs to tell" if found["verdict"] == "undecided" and limits.high < 0 else ""
    article = "the " if found["reference"] == LINEAR else ""
    return f"{found['verdict']}: {size} {relation} {article}{METHODS[found['reference']]}{few}"


def choice(chosen: str, outer: Mapping[str, int]) -> str:
    """The chosen method, and what the outer folds chose."""
    own = f"{METHODS[chosen]}, in {outer.get(chosen, 0)} of {sum(outer.values())} outer folds"
    others = ", ".join(f"{METHODS[name]} in {count}" for name, count in outer.items() if name != chosen)
    return f"{own} ({others})" if others else own


def interval(found: Mapping[str, Any]) -> Interval:
    return UNDEFINED if found["low"] is None else Interval(found["low"], found["high"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohort", nargs=3, action="append", default=[], metavar=("NAME", "TASK", "FILE"))
    parser.add_argument("--minutes", type=float, default=5.0, help="time budget of each search")
    parser.add_argument("--at-once", type=int, default=1, help="searches at the same time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=OUT, help="the record")
    parser.add_argument("--keep", type=Path, help="folder of the searches; default: a temporary one")
    options = parser.parse_args(arguments)
    if unknown := {task for _, task, _ in options.cohort} - set(get_args(TaskKind)):
        parser.error(f"--cohort: {', '.join(unknown)} is no task; give one of {', '.join(get_args(TaskKind))}")
    cohorts = [Cohort(name, task, Path(manifest)) for name, task, manifest in options.cohort] + [SYNTHETIC]
    setting = {
        **about(torch.device(options.device)),
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/auto_searches.py", *(arguments or sys.argv[1:])]),
        "at_once": options.at_once,
    }
    done: dict[str, dict[str, Any]] = {}
    errors: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.at_once) as pool:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        searches = {pool.submit(search, cohort, options, folder): cohort.name for cohort in cohorts}
        for ended in as_completed(searches):
            name = searches[ended]
            try:
                done[name] = ended.result()
            except AsmilError as error:
                errors[name] = str(error)
                continue
            print(json.dumps(done[name]), flush=True)
            found = [done[cohort.name] for cohort in cohorts if cohort.name in done]
            write_json(options.out, {**setting, "searches": found})
    if done:
        print(table({"searches": list(done.values())}))
    for name, message in errors.items():
        print(f"{name}: {message}", file=sys.stderr)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
