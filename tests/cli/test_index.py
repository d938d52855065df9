"""The page that links everything below a folder."""

import base64
import io
import json
import re
from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from asmil.experiments.results_index import RunSummary, index_results
from asmil.experiments.results_index import _performance as performance
from asmil.explain.canvas import PICTURE_BOXES
from asmil.reporting import Document
from asmil.reporting.page import html_document
from asmil.slides.qc import write_png


@pytest.fixture
def results(tmp_path):
    """Two runs, evaluated and localized, and a folder of pictures, as the verbs write them."""
    for name, auc, tile_auc in (("asmil", 0.95, 0.9), ("über & co", 0.9, None)):
        run = tmp_path / "runs" / name
        (run / "localization").mkdir(parents=True)
        (run / "config.yaml").write_text("method: asmil\n")
        (run / "splits.csv").write_text("slide\n")
        (run / "report.html").write_text("<html></html>")
        metrics = {"macro_auc": {"value": auc, "low": auc - 0.1, "high": 1.0}}
        evaluation = {"name": name, "role": "test", "slides": 12, "metrics": metrics}
        (run / "evaluation.json").write_text(json.dumps(evaluation))
        if tile_auc is not None:
            minmax = {"metrics": {"froc": {"value": 0.5}, "dice": {"value": 0.5}}}
            content = {"metrics": {"tile_auc": {"value": tile_auc}}, "scalings": {"minmax": minmax}}
            (run / "localization" / "localization.json").write_text(json.dumps(content))
            (run / "localization" / "localization.html").write_text("<html></html>")
    maps = tmp_path / "maps"
    maps.mkdir()
    (maps / "heatmaps.csv").write_text("slide\n")
    for name in ("slide-1.png", "slide-1_tiles.png"):
        Image.new("RGB", (3000, 1500)).save(maps / name)
    (tmp_path / "runs" / "asmil" / "fold-0").mkdir()
    (tmp_path / "runs" / "asmil" / "fold-0" / "report.html").write_text("")
    return tmp_path


def test_the_page_links_every_report_and_shows_the_maps(results, asmil_here):
    done = asmil_here("index", results)
    assert done.returncode == 0, done.stderr
    *sentences, last = done.stdout.strip().splitlines()
    assert len(sentences) == 2
    assert all(part in done.stdout for part in ("12 test slides", "0.95", "0.90", str(results / "index.html")))
    assert "index.html" in last
    page = (results / "index.html").read_text(encoding="utf-8")
    links = [unquote(address.replace("&amp;", "&")) for address in re.findall(r'href="([^"]+)"', page)]
    assert sorted(links) == [
        "maps/slide-1.png",
        "runs/asmil/localization/localization.html",
        "runs/asmil/report.html",
        "runs/über & co/report.html",
    ]
    assert all((results / link).exists() for link in links)
    assert "<img" in page
    printed = json.loads(asmil_here("index", results, "--json").stdout)
    assert [run["tile_auc"] for run in printed["runs"]] == [0.9, None]


def links_of(page):
    return [
        unquote(address.replace("&amp;", "&")) for address in re.findall(r'href="([^"]+)"', page.read_text("utf-8"))
    ]


def test_the_linked_pages_link_each_other_and_the_index(results, asmil_here):
    reports = [results / "runs" / name / "report.html" for name in ("asmil", "über & co")]
    for report in reports:
        report.write_text(html_document(Document("Evaluation", report.parent.name, "An answer.", [])), encoding="utf-8")
    for _ in range(2):  # given again, the links are replaced
        assert asmil_here("index", results).returncode == 0
        for report, other in (reports, reports[::-1]):
            targets = [(report.parent / link).resolve() for link in links_of(report)]
            localization = results / "runs" / "asmil" / "localization" / "localization.html"
            assert sorted(targets) == sorted([results / "index.html", other, localization])
    assert links_of(results / "runs" / "asmil" / "localization" / "localization.html") == [], "not a page of ours"


def test_the_paper_of_heat_maps_does_not_shine_on_a_dark_page(results, asmil_here):
    figure = np.full((40, 60, 3), 255, dtype=np.uint8)
    figure[10:30, 20:50] = 200
    write_png(results / "maps" / "slide-1.png", figure, {PICTURE_BOXES: "20 10 30 20"})
    assert asmil_here("index", results).returncode == 0
    page = (results / "index.html").read_text(encoding="utf-8")
    shown = re.search(r'src="data:image/png;base64,([^"]+)"', page)
    assert shown is not None
    with Image.open(io.BytesIO(base64.b64decode(shown[1]))) as image:
        alpha = np.asarray(image)[..., 3]
    assert (alpha[10:30, 20:50] == 255).all()
    assert alpha.sum() == 255 * 20 * 30


def test_nothing_to_link_is_one_sentence(tmp_path, asmil_here):
    for place in (tmp_path / "missing", tmp_path):
        done = asmil_here("index", place)
        assert done.returncode == 1
        assert str(place) in done.stderr


def test_methods_are_ranked_only_where_their_intervals_are_apart():
    worse, better = (
        RunSummary(name, 9, "AUC", low, low, low + 0.1, None, ()) for name, low in (("a", 0.5), ("b", 0.8))
    )
    assert "overlap" not in performance([worse, better])
    assert "overlap" in performance([worse, worse])
    assert performance([]) == ""
    by_patient = RunSummary("a", 0, "C-index", 0.6, 0.5, 0.7, None, (), patients=14)
    assert "14 test patients" in performance([by_patient])
    of_more = replace(worse, name="c", slides=20)
    sizes = re.findall(r"\d+ test slides", performance([worse, of_more]))
    assert sizes == ["9 test slides", "20 test slides"]
    assert "overlap" not in performance([worse, of_more])


def test_a_damaged_picture_is_named(results, asmil_here):
    (results / "maps" / "slide-1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    done = asmil_here("index", results)
    assert done.returncode == 1
    assert "slide-1.png" in done.stderr


def test_damaged_results_are_named(results):
    path = results / "runs" / "asmil" / "evaluation.json"
    path.write_text("{")
    with pytest.raises(Exception, match=re.escape(str(path))):
        index_results(results)
