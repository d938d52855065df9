"""The page holds exactly the table that the benchmark prints of the stored numbers."""

import json

import lockstep_speed
from shared_data import REPOSITORY


def test_the_page_has_the_measured_table():
    found = json.loads((REPOSITORY / "docs/results/lockstep_speed_cpu.json").read_text())
    lines = (REPOSITORY / "docs/results/tables_performance.md").read_text().splitlines()
    table = lockstep_speed.table(found["results"]).splitlines()
    assert len(table) == 2 + len(lockstep_speed.MODELS)
    assert [row for row in table if row not in lines] == []


def test_replicas_are_ten_folds_twice():
    parts = lockstep_speed.make_parts(40)
    assert len(parts) == 20
    assert {len(part) for part in parts[:10]} == {36}
    assert {len(part) for part in parts[10:]} == {32}
