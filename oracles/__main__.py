"""`python -m oracles [FOLDER] [--record FILE]`: one line per file, a count, and a non-zero exit if anything differs.

`--record` also writes the lines as JSON; README.md takes its numbers from there (`docs/evidence.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from asmil.errors import AsmilError
from oracles.answers import answer
from oracles.compare import Comparison, compare
from oracles.problem import is_model, read_oracle
from oracles.sheet import Absent, check_sheet
from oracles.sheets import recognize

DATA = Path(__file__).parent / "data"
"""The files of the repository."""


@dataclass(frozen=True)
class Verdict:
    """What is said of one file; `passed` is None where nothing was compared: unknown kind, missing slide."""

    file: str
    method: str
    passed: bool | None
    absolute: float = 0.0
    relative: float = 0.0
    details: str = ""

    def line(self) -> str:
        """One line of the table."""
        if self.passed is None:
            return f"{self.file:34} {self.method:16} {'':10} {'':10} not compared: {self.details}"
        word = "pass" if self.passed else "FAIL"
        return (
            f"{self.file:34} {self.method:16} {self.absolute:10.1e} {self.relative:10.1e} {word}  {self.details}"
        ).rstrip()


def check_file(path: Path) -> Verdict:
    """Answer what one file asks and compare; whatever goes wrong is a failure of that file alone."""
    method = ""
    try:
        content = json.loads(path.read_text())
        if is_model(content):
            method = str(content.get("method", ""))
            oracle = read_oracle(path.stem, content)
            with torch.random.fork_rng(devices=[]):
                method, answers = answer(oracle.problem)
            return _judge(path.name, method, compare(oracle, answers))
        kind = recognize(content)
        if kind is None:
            return Verdict(path.name, "", None, details="no known kind of file")
        method = kind.name
        return _judge(path.name, method, *check_sheet(kind, content, path.parent))
    except Absent as error:
        return Verdict(path.name, method, None, details=str(error))
    except AsmilError as error:
        return _failed(path.name, method, str(error))
    except json.JSONDecodeError as error:
        return _failed(path.name, method, f"not a JSON file ({error})")
    except Exception as error:  # noqa: BLE001 - a broken file must not keep the others from being checked
        return _failed(path.name, method, f"not compared: {type(error).__name__}: {error}")


def _judge(file: str, method: str, comparisons: list[Comparison], remark: str = "") -> Verdict:
    if not comparisons:
        return _failed(file, method, "the file holds no output to compare")
    absolute = max(comparison.error for comparison in comparisons)
    relative = max(comparison.relative for comparison in comparisons)
    wrong = [f"{comparison.output}: {comparison.reason}" for comparison in comparisons if not comparison.passed]
    details = "; ".join([*wrong, remark] if remark else wrong) or f"{len(comparisons)} outputs"
    return Verdict(file, method, not wrong, absolute, relative, details)


def _failed(file: str, method: str, reason: str) -> Verdict:
    return Verdict(file, method, False, float("inf"), float("inf"), reason)


def main(arguments: list[str]) -> int:
    """Check every file of the folder (default: `oracles/data`); 0 if some were compared and all of them agree."""
    parser = argparse.ArgumentParser(prog="python -m oracles")
    parser.add_argument("folder", type=Path, nargs="?", default=DATA, help="default: the files of the repository")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the lines as JSON")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    files = sorted(folder.glob("*.json"))
    if not files:
        print(f"{folder}: there are no oracle files; give the folder that holds them: make oracles DIR=path")
        return 2
    print(f"{'file':34} {'method':16} {'abs. error':>10} {'rel. error':>10} (relative to the scale of an output)")
    verdicts = []
    for path in files:
        verdicts.append(check_file(path))
        print(verdicts[-1].line(), flush=True)
    passed, failed, open_ = (sum(v.passed is value for v in verdicts) for value in (True, False, None))
    print(f"{passed} passed, {failed} failed, {open_} not compared")
    if options.record is not None:
        options.record.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1) + "\n")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
