"""How long `asmil train` takes for every method on one cohort, with all folds and seeds.

    python benchmarks/all_methods_speed.py cohorts/brca/cohort.csv --folds 10 --seeds 5 --epochs 20 --at-once 4

Each method is one command in a process of its own; `--at-once` of them run at the same time. The table lists its
executor, the seconds of its steps and of the whole command (`--profile`). A method that does not end within `--timeout`
seconds is stopped, and the time it would have taken is estimated from the epochs that it has finished.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from asmil import methods
from asmil.files import write_json
from markdown_table import markdown_table

EXECUTOR, STAGE = re.compile(r"executor: (.+)"), re.compile(r"profile: (.+) ([\d.]+) s \(")


def measure(method: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The executor of a method, and the seconds of every stage."""
    command = [
        *(sys.executable, "-m", "asmil", "train", str(options.cohort), "--out", str(folder), "--method", method),
        *("--folds", str(options.folds), "--seeds", str(options.seeds), "--profile"),
        *("--set", f"training.epochs={options.epochs}"),
    ]
    started, log = time.monotonic(), folder.with_suffix(".log")
    with log.open("w") as messages:
        try:
            failed = subprocess.run(command, stdout=messages, stderr=messages, timeout=options.timeout).returncode
            ended = True
        except subprocess.TimeoutExpired:
            failed, ended = 0, False
    seconds, said = time.monotonic() - started, log.read_text()
    executors = EXECUTOR.findall(said)
    result = {"method": method, "executor": executors[-1] if executors else "", "seconds": seconds}
    if failed:
        return result | {"error": said.strip().splitlines()[-1]}
    if ended:
        return result | {"stages": {name: float(spent) for name, spent in STAGE.findall(said)}}
    epochs = sum(len(path.read_text().splitlines()) for path in folder.glob("*/*/metrics.jsonl"))
    share = epochs / (options.folds * options.seeds * options.epochs)
    return result | {"projected": seconds / share if share else None}


def measured(method: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return measure(method, options, Path(folder) / "run")


def row(result: dict[str, Any]) -> list[str]:
    steps, whole = "", f"{result['seconds']:.1f}"
    if "error" in result:
        whole = result["error"]
    elif "projected" in result:
        whole = f"about {result['projected']:.0f}" if result["projected"] else "no epoch ended"
    else:
        steps = f"{result['stages'].get('steps', 0.0):.1f}"
    return [result["method"], result["executor"], steps, whole]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--methods", nargs="+", default=sorted(methods()))
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each method")
    parser.add_argument("--at-once", type=int, default=1, help="methods at the same time")
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    results, started = [], time.monotonic()
    with ThreadPoolExecutor(options.at_once) as pool:
        for ended in as_completed([pool.submit(measured, method, options) for method in options.methods]):
            results.append(ended.result())
            print(json.dumps(results[-1]), flush=True)
            if options.out:
                command, seconds = " ".join(sys.argv), time.monotonic() - started
                write_json(options.out, {"command": command, "seconds": seconds, "results": results})
    print(markdown_table(["method", "executor", "steps, s", "in all, s"], [row(result) for result in results]))


if __name__ == "__main__":
    main()
