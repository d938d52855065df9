"""Pages with measured numbers hold exactly the tables that the benchmarks print of the stored results."""

import json

import pandas as pd
import pytest

import anchor_cost
import anchor_study
import anchor_study_report
import encoding_speed
import growth
import method_speed
import pack_speed
import preset_study
import reading_speed
import recording_cost
import reproduction
import survival_recovery
import tissue_speed
from asmil.paper.claims.measured import Measured
from shared_data import REPOSITORY

DOCS = REPOSITORY / "docs"


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def assert_page_has(page: str, *tables: str) -> None:
    lines = set((DOCS / page).read_text().splitlines())
    for table in tables:
        assert len(rows(table)) > 2
        missing = [row for row in rows(table) if row not in lines]
        assert not missing, f"docs/{page} lacks {missing[:2]}"


@pytest.mark.parametrize("folder", ["anchor_study", "anchor_study_constant"])
def test_the_study(folder):
    results = DOCS / "results" / folder
    agreement = json.loads((results / "agreement.json").read_text())
    table = pd.DataFrame(anchor_study.read_results(results))
    assert_page_has("results/tables_anchor_study.md", anchor_study_report.summary(table, agreement, "val"))


@pytest.mark.parametrize(("device", "sizes"), [("cpu", (2_000, 10_000)), ("h200", (10_000,))])
def test_the_cost_of_the_anchor(device, sizes):
    found = json.loads((DOCS / "results" / f"anchor_cost_{device}.json").read_text())
    methods = [[row for row in found["methods"] if row["tiles"] == size] for size in sizes]
    tables = [anchor_cost.method_table(part) for part in methods]
    tables.append(anchor_cost.normalizer_table(found["normalizers"]))
    assert_page_has("results/tables_anchor_cost.md", *tables)
    assert_page_has("anchor_cost.md", anchor_cost.paper_table(found["paper"]))


def test_the_cost_of_the_anchor_for_newer_methods():
    found = stored("anchor_cost_cpu_neoverse")
    assert_page_has("results/tables_anchor_cost.md", anchor_cost.method_table(found["methods"]))


def test_the_cost_of_newer_methods():
    found = stored("method_speed_cpu_neoverse")
    assert_page_has("results/tables_performance.md", method_speed.table(found["results"]))


def test_the_cost_of_recording():
    found = json.loads((DOCS / "results" / "recording_cost_cpu.json").read_text())
    assert_page_has("stability.md", recording_cost.table(found["results"]))


def stored(name: str) -> dict:
    return json.loads((DOCS / "results" / f"{name}.json").read_text())


def test_the_way_from_slides_to_features():
    assert_page_has("slides.md", reading_speed.table(stored("reading_speed_cpu")["tiles_per_second"]))
    packs = stored("pack_speed_cpu")
    assert_page_has(
        "results/tables_performance.md",
        tissue_speed.table(stored("tissue_speed_cpu")["results"]),
        encoding_speed.table(stored("encoding_speed_cpu")["rates"]),
        encoding_speed.table(stored("encoding_speed_h200")["rates"]),
        pack_speed.table(packs["results"], packs),
    )


def test_the_growth_of_cost():
    found = stored("growth_cpu")
    tables = growth.tiles_table(found["tiles"]), growth.slides_table(found["slides"])
    assert_page_has("results/tables_performance.md", *tables)


def test_the_recovered_risk():
    assert_page_has("survival.md", survival_recovery.markdown(stored("survival_recovery")))


def test_the_reproduction():
    assert_page_has("results/tables_reproduction.md", "\n".join(reproduction.tables_of(Measured())))


def test_the_preset_study():
    results, agreement = preset_study.read_folders([DOCS / "results" / "preset_study"])
    assert_page_has("preset_study.md", preset_study.page_of(results, agreement, ""))
