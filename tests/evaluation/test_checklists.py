"""Checklists of reporting guidelines: numbers and sources of facts, what is unknown, and the four formats."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import asmil
from asmil import AsmilError
from asmil.evaluation.checklists.checklist import GUIDELINES, Checklist, FilledItem, fill_all, read_guideline
from asmil.evaluation.checklists.facts import RULES, known_facts
from asmil.evaluation.checklists.known import Known, gather
from asmil.evaluation.evaluate import evaluate_run
from asmil.runs.run import Run
from shared_data import REPOSITORY

RUN = REPOSITORY / "tests" / "frozen" / "versions" / "0.5.0" / "run"
VALIDATION = {
    "model": {"method": "abmil", "task": "classification", "models": 4},
    "cohort": {"slides": 31, "patients": 29, "outcomes": {"normal": 11, "tumor": 18}, "not_predicted": ["s1: no file"]},
    "overlap": {"known": True, "slides": []},
    "bootstrap": {"resamples": 77},
    "warnings": ["Few patients."],
    "performance": {
        "metrics": {"macro_auc": {"title": "AUC", "value": 0.812, "low": 0.701, "high": None}},
        "non_inferiority": {"margin": 0.05, "power": 0.8, "needed": 1234},
    },
    "threshold": {"chosen_on": "validation slides", "confusion": [[9, 2], [3, 15]], "shares": {"sensitivity": {}}},
    "calibration": {"tumor": {"slope": {"value": 0.9, "low": 0.5, "high": 1.3}, "curve": {}}, "time_unit": None},
    "decision_curve": None,
    "subgroups": {"interactions": [{"variable": "site", "p_holm": 0.04}, {"variable": "sex"}]},
    "something_of_a_later_version": [1, 2],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Checklist]]:
    """The folder and the checklists of a run with a validation."""
    folder = tmp_path_factory.mktemp("checklists")
    (folder / "validation.json").write_text(json.dumps(VALIDATION))
    return folder, asmil.checklist(RUN, validation=folder, out=folder)


def items(checklist: Checklist) -> dict[str, FilledItem]:
    return {each.item.item: each for part in checklist.sections.values() for each in part}


def known(checklist: Checklist, item: str) -> str:
    return " ".join(fact.text for fact in items(checklist)[item].facts)


def test_items_are_those_of_the_guidelines_and_facts_are_used():
    by_name = {name: [item for part in read_guideline(name).sections for item in part.items] for name in GUIDELINES}
    assert {name: len(listed) for name, listed in by_name.items()} == {"tripod_ai": 52, "stard_ai": 48}
    for name, last in (("tripod_ai", 27), ("stard_ai", 40)):
        numbers = [int(item.item.rstrip("abcdefg")) for item in by_name[name]]
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(1, last + 1))
    assert {fact for listed in by_name.values() for item in listed for fact in item.facts} == set(RULES)


def test_a_run_and_its_validation_fill_in_what_they_know(written):
    (tripod, stard), alone = written[1], fill_all(RUN)[0]
    auc = evaluate_run(RUN).metrics["macro_auc"].value
    assert "11 patients" in known(tripod, "5a")
    assert "29 patients" in known(tripod, "5a")
    assert "29 patients" not in known(alone, "5a")
    assert f"{auc:.3f}" in known(tripod, "23a")
    assert all(text in known(tripod, "23a") for text in ("0.812", "0.900 (0.500 to 1.300)", "site", "0.040"))
    assert "1234" in known(stard, "22")
    assert "15 called tumor" in known(stard, "30")
    assert {fact.source for fact in items(tripod)["10"].facts} == {"splits.csv", "validation.json"}
    states = {name: items(tripod)[name].status for name in ("3a", "12a", "12c", "17")}
    assert states == {"3a": "authors", "12a": "filled", "12c": "partly", "17": "authors"}
    assert items(alone)["12f"].status == "authors"
    assert alone.count("authors") > tripod.count("authors")


def test_the_files_have_every_item(written):
    folder, checklists = written
    for checklist in checklists:
        assert json.loads((folder / f"{checklist.key}.json").read_text()) == checklist.to_dict()
        for ending, mark in (("html", '<th scope="row">'), ("md", "\n| ")):
            text = (folder / f"{checklist.key}.{ending}").read_text()
            assert text.count(mark) >= len(items(checklist))
            assert checklist.guideline.citation.split("doi:")[1].strip() in text


@pytest.mark.skipif(
    importlib.util.find_spec("docx") is None, reason="python-docx is not installed: pip install 'asmil[word]'"
)
def test_the_word_file_has_every_item(written):
    import docx

    word, tripod = docx.Document(str(written[0] / "tripod_ai.docx")), written[1][0]
    rows = [[cell.text for cell in row.cells] for table in word.tables for row in table.rows[1:]]
    assert [row[0] for row in rows] == list(items(tripod))
    assert [row[3] for row in rows] == [each.remaining for each in items(tripod).values()]
    assert word.sections[0].page_width > word.sections[0].page_height


def test_a_bundle_fills_in_fewer_items(tmp_path):
    bundle = asmil.export_run(RUN, tmp_path / "bundle")
    of_bundle, of_run = fill_all(bundle)[0], fill_all(RUN)[0]
    assert of_bundle.count("authors") > of_run.count("authors")
    assert "abmil" in known(of_bundle, "12c")


def test_a_validation_of_another_model_or_none_is_refused(tmp_path):
    with pytest.raises(AsmilError, match=r"validation\.json"):
        gather(RUN, tmp_path)
    other = {**VALIDATION, "model": {"method": "clam_sb", "task": "classification"}}
    (tmp_path / "validation.json").write_text(json.dumps(other))
    with pytest.raises(AsmilError, match=r"clam_sb.*abmil"):
        gather(RUN, tmp_path)
    with pytest.raises(AsmilError, match=r"validation\.json"):
        known_facts(Known(Run(RUN), {**VALIDATION, "performance": {"metrics": [0.9]}}))
