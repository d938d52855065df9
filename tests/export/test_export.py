"""Exported runs answer as the run does, hold nothing about patients, and notice damage."""

import json
import logging
import shutil
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import asmil
from asmil.evaluation.run_alarms import alarms_of_run
from asmil.export.bundle import write_bundle
from asmil.export.graph import export_onnx, export_torch
from asmil.runs.config import resolve
from asmil.training.run import train_run


@pytest.fixture(scope="module")
def cohort(small_cohort):
    return asmil.load_cohort(small_cohort)


@pytest.fixture(scope="module")
def run(cohort, tmp_path_factory):
    config = resolve("abmil", changes={"training": {"epochs": 1}, "seeds": 2})
    return train_run(cohort, tmp_path_factory.mktemp("export") / "run", config).path


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory):
    return write_bundle(run, tmp_path_factory.mktemp("bundles") / "bundle")


def features_of(cohort):
    from asmil.cohort.features import read_bag

    slide = cohort.slides[0]
    return read_bag(slide.source, slide.slide).features.float().numpy()


def test_a_bundle_predicts_as_its_run(run, bundle, cohort):
    tiles = features_of(cohort)
    expected, found = asmil.load_run(run).predict(tiles), asmil.TrainedRun.from_pretrained(bundle).predict(tiles)
    assert found.values == expected.values
    np.testing.assert_array_equal(found.tile_map, expected.tile_map)


def test_a_bundle_names_no_slide_and_no_patient(run, bundle, cohort):
    names = {slide.slide for slide in cohort.slides} | {slide.patient for slide in cohort.slides}
    for path in bundle.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [name for name in names if name.encode() in content], path
            assert str(run).encode() not in content, path
            assert str(cohort.path).encode() not in content, path


def test_a_bundle_keeps_the_alarms_of_its_run(run, bundle):
    expected = alarms_of_run(run)
    assert expected
    assert alarms_of_run(bundle) == expected
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert all(alarm.finding.split(":")[0] in card for alarm in expected)


def test_a_bundle_does_not_say_where_initial_weights_were(bundle, cohort, tmp_path):
    weights = bundle / "fold-0" / "seed-0" / "checkpoints" / "best.safetensors"
    settings = {"training.epochs": 1}
    run = asmil.train(
        cohort, out=tmp_path / "run", method="abmil", init=weights, settings=settings, progress=False
    ).path
    tuned = write_bundle(run, tmp_path / "tuned")
    assert str(bundle.parent) in (run / "config.yaml").read_text()
    assert str(bundle.parent) not in (tuned / "config.yaml").read_text()
    tiles = features_of(cohort)
    assert asmil.load_run(tuned).predict(tiles).values == asmil.load_run(run).predict(tiles).values


def test_a_bundle_knows_its_metrics_and_says_what_it_lacks(run, bundle):
    expected, found = asmil.load_run(run), asmil.load_run(bundle)
    assert (found.classes, found.task, found.method) == (expected.classes, expected.task, expected.method)
    for name, estimate in expected.metrics.items():
        np.testing.assert_equal(found.metrics[name].value, estimate.value)
    with pytest.raises(asmil.AsmilError, match="bundle"):
        _ = found.predictions
    card = (bundle / "README.md").read_text()
    assert "library_name: asmil" in card
    assert all(name in card for name in found.classes)


@pytest.mark.parametrize(
    "name", ["config.yaml", "fold-0/seed-0/task.json", "fold-0/seed-1/checkpoints/best.safetensors"]
)
@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_missing_and_altered_files_are_named(bundle, tmp_path, name, damage):
    shutil.copytree(bundle, tmp_path / "b")
    file = tmp_path / "b" / name
    if damage == "missing":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    with pytest.raises(asmil.AsmilError, match=file.name):
        _ = asmil.load_run(tmp_path / "b").models


def test_a_bundle_without_its_list_or_of_a_later_version_is_recognized(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "b")
    listed = json.loads((tmp_path / "b" / "bundle.json").read_text())
    (tmp_path / "b" / "bundle.json").write_text(json.dumps({**listed, "format": 99, "asmil": "9.8.7"}))
    with pytest.raises(asmil.AsmilError, match=r"9\.8\.7"):
        _ = asmil.load_run(tmp_path / "b").models
    (tmp_path / "b" / "bundle.json").unlink()
    with pytest.raises(asmil.AsmilError, match=r"bundle\.json"):
        _ = asmil.load_run(tmp_path / "b").models


def test_verbs_that_need_single_slides_recognize_a_bundle(bundle, cohort, tmp_path):
    from asmil.api.heatmaps import find_slides
    from asmil.evaluation.localization.localize import LocalizeSettings, localize_run
    from asmil.evaluation.stability.analysis import read_stability
    from asmil.explain.faithfulness import FaithfulnessSettings, faithfulness_run
    from asmil.runs.run import read_run

    faithfulness = partial(faithfulness_run, settings=FaithfulnessSettings())
    localize = partial(localize_run, settings=LocalizeSettings(truth=tmp_path / "truth.csv"))
    for read in (read_run, read_stability, faithfulness, localize):
        with pytest.raises(asmil.AsmilError, match="bundle"):
            read(bundle)
    with pytest.raises(asmil.AsmilError, match="bundle"):
        find_slides([bundle], [])
    features = cohort.slides[0].source.path
    (slide,) = find_slides([bundle], [str(features)])
    assert slide.name == cohort.slides[0].slide


def test_a_folder_is_no_name_of_an_exported_file(run, tmp_path):
    for export in (export_onnx, export_torch):
        with pytest.raises(asmil.AsmilError, match=tmp_path.name):
            export(run, tmp_path)


def test_a_bundle_that_lists_files_elsewhere_is_refused(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "b")
    listed = json.loads((tmp_path / "b" / "bundle.json").read_text())
    listed["files"]["../secret"] = "0" * 64
    (tmp_path / "b" / "bundle.json").write_text(json.dumps(listed))
    with pytest.raises(asmil.AsmilError, match="secret"):
        _ = asmil.load_run(tmp_path / "b").models


def test_exports_are_not_written_over_each_other(run, bundle, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("")
    with pytest.raises(asmil.AsmilError, match="full"):
        write_bundle(run, tmp_path / "full")
    with pytest.raises(asmil.AsmilError, match="bundle"):
        write_bundle(bundle, tmp_path / "again")


def test_onnx_answers_as_the_run_does(bundle, cohort, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = export_onnx(bundle, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(file))
    tiles = features_of(cohort)
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"features": tiles}), strict=True))
    expected = asmil.load_run(bundle).predict(tiles)
    np.testing.assert_allclose(found["probabilities"], expected.probabilities, atol=1e-5)
    np.testing.assert_allclose(found["heatmap"], expected.tile_map, atol=1e-6)
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["classes"]) == list(asmil.load_run(bundle).classes)
    assert known["method"] == "abmil"


def test_torch_export_answers_as_the_run_does(bundle, cohort, tmp_path, monkeypatch):
    # torch logs notes about itself (the name of a temporary file), which are not the user's concern
    noted = []
    for name in ("torch.export.pt2_archive._package", "torch.onnx._internal.exporter._registration"):
        monkeypatch.setattr(logging.getLogger(name), "handle", noted.append)
    file = export_torch(bundle, tmp_path / "model.pt2")
    assert not noted
    assert logging.root.manager.disable == logging.NOTSET
    more = {"asmil.json": ""}
    program = torch.export.load(str(file), extra_files=more)
    tiles = features_of(cohort)
    _, probabilities, heatmap = program.module()(torch.from_numpy(tiles))
    expected = asmil.load_run(bundle).predict(tiles)
    np.testing.assert_allclose(probabilities.detach(), expected.probabilities, atol=1e-5)
    np.testing.assert_allclose(heatmap.detach(), expected.tile_map, atol=1e-6)
    known = json.loads(more["asmil.json"])
    assert known["method"] == "abmil"
    assert known.get("alarms", []) == [alarm.finding for alarm in alarms_of_run(bundle)]


def test_a_method_that_cannot_says_why(cohort, tmp_path):
    run = train_run(cohort, tmp_path / "run", resolve("transmil", changes={"training": {"epochs": 1}}))
    with pytest.raises(asmil.AsmilError, match="transmil"):
        export_torch(run.path, tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


def test_a_hub_that_cannot_be_reached_is_one_sentence(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    with pytest.raises(asmil.AsmilError, match="nobody/nothing"):
        asmil.TrainedRun.from_pretrained("nobody/nothing", cache_dir=tmp_path, local_files_only=True)


def test_the_command_exports_and_predicts(run, cohort, tmp_path, asmil_here):
    done = asmil_here("export", run, "--out", tmp_path / "bundle")
    assert done.returncode == 0, done.stderr
    tiles = cohort.slides[0].source.path
    done = asmil_here("predict", tmp_path / "bundle", tiles, "--out", tmp_path / "p.csv", "-q")
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(tmp_path / "p.csv")) == 1
