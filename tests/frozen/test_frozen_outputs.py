"""What `evaluate`, `compare`, `localize`, `stability` and `classic` write stays the same, value by value.

Keys, names and numbers are compared, sentences are not: wording may change.
"""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from frozen.cases import CASES, OUTPUTS, written_by

RELATIVE, ABSOLUTE = 1e-6, 1e-9
WORDING = {"warnings", "notes", "how", "text", "advice", "reason", "label", "why_not_comparable", "problems"}
OF_THE_MOMENT = {"asmil", "command", "seconds", "fingerprint"}
TRAINED = {"localize", "classic"}
"""Cases that train a model: its numbers differ in their last digits between machines."""


@pytest.mark.usefixtures("undrawn_figures")
@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_that_were_frozen(case: str, tmp_path: Path) -> None:
    found = written_by(case, tmp_path)
    frozen = {
        str(file.relative_to(OUTPUTS / case)): file.read_text(encoding="utf-8")
        for file in (OUTPUTS / case).rglob("*")
        if file.is_file()
    }
    assert set(frozen) <= set(found)
    tolerance = 2e-3 if case in TRAINED else RELATIVE
    for name, text in frozen.items():
        differences = _differences(name, _content(name, text), _content(name, found[name]), tolerance)
        assert not differences, "\n".join(differences[:10])


def _content(name: str, text: str) -> Any:
    if name.endswith(".json"):
        return json.loads(text)
    if name.endswith(".csv"):
        table = pd.read_csv(io.StringIO(text), keep_default_na=False)
        return table.drop(columns=[column for column in table if column.endswith("_of")]).to_dict("list")
    lines = (
        text.replace(r"R\textsuperscript{2}", "R").replace("−", "-").replace("$-$", "-").replace("R2", "R").splitlines()
    )
    heads = {place - 1 for place, line in enumerate(lines) if line.startswith(("| ---", r"\midrule"))}
    return [
        [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", line)]
        for place, line in enumerate(lines)
        if (line.startswith("|") or " & " in line) and place not in heads
    ]


def _differences(where: str, frozen: Any, found: Any, tolerance: float) -> list[str]:
    if isinstance(frozen, dict) and isinstance(found, dict):
        new_settings = where.endswith(".settings") and set(frozen) <= set(found)
        if set(frozen) != set(found) and not new_settings:
            return [f"{where}: keys {sorted(set(frozen) ^ set(found))}"]
        named = [key for key in frozen if key not in WORDING | OF_THE_MOMENT]
        return [text for key in named for text in _differences(f"{where}.{key}", frozen[key], found[key], tolerance)]
    if where.endswith((".md", ".tex")):
        # tables may be added, but all rows that were there stay, in order
        rest = iter(found)
        gone = [row for row in frozen if not any(_differences("", row, one, tolerance) == [] for one in rest)]
        return [f"{where}: the row {row} is gone" for row in gone[:1]]
    if isinstance(frozen, list) and isinstance(found, list):
        if len(frozen) != len(found):
            return [f"{where}: {len(frozen)} entries frozen, {len(found)} found"]
        pairs = enumerate(zip(frozen, found, strict=True))
        return [text for place, pair in pairs for text in _differences(f"{where}[{place}]", *pair, tolerance)]
    if _is_number(frozen) and _is_number(found):
        same = math.isclose(float(frozen), float(found), rel_tol=tolerance, abs_tol=max(ABSOLUTE, tolerance / 10))
        return [] if same else [f"{where}: {frozen} frozen, {found} found"]
    return [] if frozen == found else [f"{where}: {frozen!r} frozen, {found!r} found"]


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)
