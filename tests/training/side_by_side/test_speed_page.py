"""The page holds exactly the table that the benchmark prints of the stored numbers."""

import json

import small_trainings_speed
from shared_data import REPOSITORY


def test_the_page_has_the_measured_table():
    found = json.loads((REPOSITORY / "docs/results/small_trainings_speed_cpu.json").read_text())
    lines = (REPOSITORY / "docs/results/tables_performance.md").read_text().splitlines()
    table = small_trainings_speed.table(found["results"]).splitlines()
    assert len(table) == 2 + len(small_trainings_speed.MODELS)
    assert [row for row in table if row not in lines] == []


def test_replicas_are_ten_folds_twice():
    parts = small_trainings_speed.make_parts(40)
    assert len(parts) == 20
    assert {len(part) for part in parts[:10]} == {36}
    assert {len(part) for part in parts[10:]} == {32}
