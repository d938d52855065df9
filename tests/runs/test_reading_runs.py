"""One object for a run: it reads each file when it is needed, and is the only way to a bag."""

import pandas as pd
import pytest
import yaml

from asmil import AsmilError
from asmil.cohort import features, reader
from asmil.cohort.manifest import load_cohort
from asmil.cohort.units import units_of
from asmil.explain.asked_slides import AskedSlide
from asmil.explain.run_explainer import RunExplainer
from asmil.explain.settings import HeatmapSettings
from asmil.explain.slide_maps import maps_of_runs
from asmil.runs.config import resolve
from asmil.runs.prediction import predict_slide
from asmil.runs.run import Run
from asmil.training.run import train_run


@pytest.fixture(scope="module")
def trained(small_cohort, tmp_path_factory):
    config = resolve("abmil", changes={"training": {"epochs": 1}, "seeds": 2})
    return train_run(small_cohort, tmp_path_factory.mktemp("run") / "run", config).path


@pytest.fixture
def opened(monkeypatch):
    """The feature files that were opened, one entry per opening."""
    paths = []
    original = reader.open_features

    def counted(source, **how):
        paths.append(source.path.name)
        return original(source, **how)

    monkeypatch.setattr(features, "open_features", counted)
    return paths


def test_a_prediction_opens_its_feature_file_once(trained, small_cohort, opened):
    slide = load_cohort(small_cohort).slides[0]
    opened.clear()
    predict_slide(Run(trained, "cpu"), slide)
    assert opened == [slide.source.path.name]


def test_a_heat_map_of_several_runs_opens_the_features_once(trained, small_cohort, opened):
    slide = load_cohort(small_cohort).slides[0]
    asked = AskedSlide(slide.slide, slide, None, None, (slide,))
    opened.clear()
    maps_of_runs(asked, [RunExplainer(Run(trained, "cpu")) for _ in range(2)], HeatmapSettings())
    assert opened == [slide.source.path.name]


def test_the_slides_of_a_patient_are_one_bag_with_one_header_each(trained, small_cohort):
    slides = load_cohort(small_cohort).slides[:2]
    (unit,) = units_of([type(slide)(slide.slide, "p", slide.label, slide.source) for slide in slides], "patient")
    bag, headers = Run(trained, "cpu").bag(unit)
    assert [header.n_tiles for header in headers] == bag.slide_index.bincount().tolist()
    assert bag.id == "p"


def test_settings_are_read_without_the_code_that_a_run_names(trained, tmp_path):
    values = yaml.safe_load((trained / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**values, "method": "somewhere.py:Mine"}))
    run = Run(tmp_path)
    assert (run.method, run.kind, run.classes) == ("somewhere.py:Mine", "classification", ("normal", "tumor"))
    with pytest.raises(AsmilError, match=r"somewhere\.py:Mine"):
        _ = run.description


def test_damaged_settings_are_one_sentence_that_names_the_field(trained, tmp_path):
    values = yaml.safe_load((trained / "config.yaml").read_text())
    values["training"]["lr"] = "fast"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(AsmilError, match=r"config\.yaml: training\.lr"):
        Run(tmp_path)


def test_another_name_and_other_predictions_leave_the_run_as_it_is(trained):
    run = Run(trained)
    other = run.with_predictions(pd.DataFrame()).called("copy")
    assert (other.name, len(other.predictions)) == ("copy", 0)
    assert run.name == trained.name
    assert len(run.predictions) > 0


def test_models_that_have_not_seen_a_slide_are_asked(trained):
    run = Run(trained, "cpu")
    (test_slide, *_), (train_slide, *_) = run.slides_of_role("test"), run.slides_of_role("train")
    assert (run.saw(test_slide), run.saw(train_slide)) == (False, True)
    assert len(run.trained_for(test_slide)) == len(run.trained_for(train_slide)) == 2
