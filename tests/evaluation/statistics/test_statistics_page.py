from __future__ import annotations

import re

from asmil.evaluation import statistics
from shared_data import REPOSITORY

PAGE = REPOSITORY / "docs" / "statistics.md"


def test_the_example_of_the_page_runs(capsys):
    (code,) = re.findall(r"^```python test\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert "Interval(low=" in capsys.readouterr().out


def test_the_simulation_of_the_page_runs(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(code.replace("range(1000)", "range(2)").replace("resamples=500", "resamples=20"), {})
    assert "'paired_t': " in capsys.readouterr().out


def test_every_function_is_on_the_page():
    text = PAGE.read_text()
    helpers = {"draw_seeds_and_patients", "summarize_seed_bootstrap"}
    for name in statistics.__all__:
        if name[0].islower() and name not in helpers:
            assert f"`{name}" in text, name
