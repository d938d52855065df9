"""From runs to the files of a paper."""

from __future__ import annotations

import csv
import shutil

import pytest
import yaml

import asmil
from asmil.experiments.methods_text import methods_paragraphs, references
from asmil.reporting.print_files import SMALLEST_TEXT_PT, _Drawing, _factor, column_width
from fake_compared_runs import write_compared_run


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two compared runs."""
    folder = tmp_path_factory.mktemp("study")
    for name, seed in (("first", 1), ("second", 2)):
        write_compared_run(folder / name, 0.6 * seed, folds=2, slides=40, slides_a_patient=2, noise_seed=seed)
    runs = [folder / "first", folder / "second"]
    asmil.compare(runs, names=["Our method", "A method with a very long name that must not be cut off"], out=folder)
    asmil.index(folder)
    return folder


def test_figures_tables_and_text(study, tmp_path):
    written = asmil.manuscript(study, tmp_path)
    assert not written.problems
    for name, figure in written.figures.items():
        assert all((tmp_path / "figures" / f"{name}.{ending}").stat().st_size for ending in ("pdf", "svg", "png"))
        sizes = _Drawing.read(figure.content).text_sizes()
        assert min(sizes) * _factor(figure.content, column_width(figure.content)) >= SMALLEST_TEXT_PT
        assert f"figures/{name}" in (tmp_path / "text.md").read_text()
    assert {"comparison-roc-curves", "comparison-differences-with-intervals"} <= set(written.figures)
    with (tmp_path / "tables" / "comparison-runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {"Our method", "A method with a very long name that must not be cut off"}
    assert "A method with a very long name" in (tmp_path / "tables" / "comparison-runs.tex").read_text()
    text, cited = (tmp_path / "text.md").read_text(), (tmp_path / "references.bib").read_text()
    assert all(key in text and key in cited for key in ("holm1979", "delong1988", "nadeau2003"))


def test_the_index_is_the_cover_of_the_study(study):
    cover, page = (study / "index.html").read_text(), (study / "comparison.html").read_text()
    assert "Our method" in cover
    assert cover.count("<img") == page.count("<img") > 0
    assert 'href="index.html"' in page


def test_a_page_that_cannot_be_read_is_listed(study, tmp_path):
    broken = study / "first" / "report.html"
    broken.write_text("not a page")
    try:
        written = asmil.manuscript(study, tmp_path, only="tables")
    finally:
        broken.unlink()
    assert [str(broken) in problem for problem in written.problems] == [True]
    assert written.tables


def test_word_files(study, tmp_path):
    docx = pytest.importorskip("docx")
    asmil.manuscript(study, tmp_path, only="tables")
    tables = docx.Document(str(tmp_path / "tables" / "tables.docx")).tables
    assert "Our method" in {row.cells[0].text for row in tables[0].rows}


def test_a_validation_is_described_with_its_references():
    validation = {
        "model": {"name": "Our method", "task": "classification"},
        "cohort": {"slides": 12, "patients": 11, "not_predicted": []},
        "overlap": {"known": True, "slides": []},
        "performance": {"metrics": {"macro_auc": {"difference": {"value": 0.1}}}, "non_inferiority": {"margin": 0.07}},
        "calibration": {},
        "decision_curve": {},
        "subgroups": {"interactions": [{"variable": "site"}, {"variable": "site"}]},
    }
    (text,) = methods_paragraphs([], {}, None, [validation])
    assert all(part in text for part in ("Our method", "12 slides of 11 patients", "0.07", "site"))
    cited = references([], None, [validation])
    assert all(f"@{key}" in text and f"{{{key}," in cited for key in ("zou2008", "vickers2006", "holm1979"))


def test_names_must_fit(study):
    with pytest.raises(asmil.AsmilError, match="2 different names"):
        asmil.compare([study / "first", study / "second"], names=["one"])


@pytest.mark.heavy
def test_several_methods_end_in_one_page(small_cohort, tmp_path, asmil_here):
    options = ("--names", "Attention,Mean", "--set", "training.epochs=1", "--out", tmp_path / "study", "--quiet")
    done = asmil_here("train", small_cohort, "--methods", "abmil,mean_pooling", *options)
    assert done.returncode == 0, done.stderr
    assert f"page: {tmp_path / 'study' / 'index.html'}" in done.stdout
    cover = (tmp_path / "study" / "index.html").read_text()
    assert "Attention/report.html" in cover
    assert "Mean" in cover
    refused = asmil_here("train", small_cohort, "--methods", "abmil", *options)
    assert refused.returncode == 1
    assert "--method" in refused.stderr


def test_pages_without_runs_have_no_methods(study, tmp_path):
    (tmp_path / "pages").mkdir()
    shutil.copy(study / "comparison.html", tmp_path / "pages")
    asmil.manuscript(tmp_path / "pages", tmp_path / "paper", only="text")
    text = (tmp_path / "paper" / "text.md").read_text()
    assert "## Results" in text
    assert "## Methods" not in text


def test_folds_that_the_manifest_gave_are_counted(study, tmp_path):
    run = shutil.copytree(study / "first", tmp_path / "run")
    values = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**values, "folds": 1}))
    assert "2-fold" in methods_paragraphs([run], {}, None)[0]
