"""Pages with measured numbers hold exactly the tables that the benchmarks print of the stored results."""

import json
from itertools import groupby
from operator import itemgetter

import pandas as pd
import pytest

import anchor_cost
import anchor_study
import anchor_study_report
import asmil_settings
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
from asmil.paper.claims.listing import claims, rule
from asmil.paper.claims.measured import Measured
from shared_data import REPOSITORY

DOCS = REPOSITORY / "docs"


def tables_in(text: str) -> list[list[str]]:
    """The lines of every table."""
    lines = [(line.startswith("|"), line) for line in text.splitlines()]
    return [[line for _, line in group] for is_table, group in groupby(lines, key=itemgetter(0)) if is_table]


def assert_page_has(page: str, *texts: str) -> None:
    """Every table of the texts is on the page, line for line."""
    on_page = tables_in((DOCS / page).read_text())
    for table in (table for text in texts for table in tables_in(text)):
        assert table in on_page, f"docs/{page} lacks the table with the head {table[0]}"


def assert_page_ends_with(page: str, text: str) -> None:
    """All tables from the first one of the text on are those of the text."""
    tables = tables_in(text)
    assert tables_in((DOCS / page).read_text())[-len(tables) :] == tables


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


@pytest.mark.parametrize("record", ["cpu_neoverse", "h200_newer", "h200_100k_newer"])
def test_the_cost_of_newer_methods(record):
    found = stored(f"method_speed_{record}")
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
    page = (DOCS / "results" / "tables_reproduction.md").read_text()
    assert page.partition(reproduction.MARK)[2] == reproduction.page_of(Measured()).partition(reproduction.MARK)[2]


def test_the_record_of_verdicts_is_that_of_the_rules():
    recorded = {claim["id"]: claim for claim in stored("claims")}
    measured = Measured()
    assert list(recorded) == [claim.id for claim in claims()]
    for claim in claims():
        ruling = rule(claim, measured)
        known = recorded[claim.id]
        assert (ruling.verdict, ruling.how, ruling.caveat) == (known["verdict"], known["how"], known["caveat"]), (
            claim.id
        )
        assert ruling.why == known["why"] or ruling.how == "mathematics", claim.id


def test_the_preset_study():
    results, agreement = preset_study.read_folders([DOCS / "results" / "preset_study"])
    assert_page_ends_with("preset_study.md", preset_study.page_of(results, agreement, ""))


def test_the_settings_of_asmil():
    assert_page_ends_with("asmil_settings.md", asmil_settings.summary(DOCS / "results" / "asmil_settings.jsonl"))
