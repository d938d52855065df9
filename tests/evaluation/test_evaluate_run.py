from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk

from asmil.errors import AsmilError
from asmil.evaluation import evaluate_run
from fake_run_folder import write_run

THREE = ("benign", "atypical", "malignant")


def _slow_metrics(rows: pd.DataFrame, classes: tuple[str, ...]) -> dict[str, float]:
    target = rows["target"].map(list(classes).index).to_numpy()
    probabilities = rows[[f"prob_{name}" for name in classes]].to_numpy()
    predicted = probabilities.argmax(axis=1)
    auc = [
        sk.roc_auc_score(target == k, probabilities[:, k])
        for k in range(len(classes))
        if 0 < (target == k).sum() < len(target)
    ]
    labels = list(range(len(classes)))
    return {
        "macro_f1": float(sk.f1_score(target, predicted, labels=labels, average="macro", zero_division=0)),
        "macro_auc": float(np.mean(auc)),
        "accuracy": float(sk.accuracy_score(target, predicted)),
        "balanced_accuracy": float(np.mean([(predicted[target == k] == k).mean() for k in np.unique(target)])),
    }


@pytest.mark.parametrize(("classes", "folds"), [(("normal", "tumor"), 1), (THREE, 4)])
def test_against_a_plain_reference(tmp_path: Path, classes: tuple[str, ...], folds: int) -> None:
    table = write_run(tmp_path, classes, folds=folds, seeds=2)
    found = evaluate_run(tmp_path, resamples=15, seed=3)
    per_seed = [_slow_metrics(rows, classes) for _, rows in table.groupby("seed")]
    patients = np.unique(table["patient"])
    drawn = np.random.Generator(np.random.PCG64(3)).integers(0, len(patients), size=(15, len(patients)))
    samples = []
    for draw in drawn:
        resample = []
        for _, rows in table.groupby("seed"):
            chosen = pd.concat([rows[rows["patient"] == patients[index]] for index in draw])
            resample.append(_slow_metrics(chosen, classes))
        samples.append(pd.DataFrame(resample).mean())
    for name, metric in found.metrics.items():
        values = [seed[name] for seed in per_seed]
        assert list(metric.per_seed.values()) == pytest.approx(values)
        assert metric.value == pytest.approx(np.mean(values))
        assert metric.sd_seeds == pytest.approx(np.std(values, ddof=1))
        expected = np.percentile([sample[name] for sample in samples], [2.5, 97.5])
        assert tuple(metric.interval) == pytest.approx(tuple(expected), abs=1e-9)
        trainings = table.groupby(["fold", "seed"])
        assert metric.per_training == pytest.approx(
            {key: _slow_metrics(rows, classes)[name] for key, rows in trainings}
        )
    assert (found.n_trainings, found.n_seeds, found.n_folds) == (2 * folds, 2, folds)
    assert (found.n_slides, found.n_patients) == (40, 20)
    assert found.folds_joined
    assert found.confusion.sum() == found.n_slides
    assert [row.support for row in found.classes] == [
        (table.drop_duplicates("slide")["target"] == name).sum() for name in classes
    ]


def test_the_class_table_is_the_mean_over_seeds(tmp_path: Path) -> None:
    table = write_run(tmp_path, THREE, seeds=3)
    found = evaluate_run(tmp_path, resamples=50)
    expected = []
    for _, rows in table.groupby("seed"):
        predicted = rows[[f"prob_{name}" for name in THREE]].to_numpy().argmax(axis=1)
        names = [THREE[k] for k in predicted]
        expected.append(
            sk.precision_recall_fscore_support(rows["target"], names, labels=list(THREE), zero_division=0)[:3]
        )
    for index, row in enumerate(found.classes):
        means = np.mean(expected, axis=0)[:, index]
        assert [row.metrics[name].value for name in ("precision", "recall", "f1")] == pytest.approx(list(means))
        for one in row.metrics.values():
            assert one.interval.low <= one.value <= one.interval.high


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    table = write_run(tmp_path, folds=2)
    before = evaluate_run(tmp_path, resamples=50).to_dict()
    table.sample(frac=1, random_state=0).to_parquet(tmp_path / "predictions.parquet")
    after = evaluate_run(tmp_path, resamples=50).to_dict()
    for name in before["metrics"]:
        for key in ("value", "low", "high"):
            assert after["metrics"][name][key] == pytest.approx(before["metrics"][name][key])


def test_folds_that_share_slides_are_judged_one_by_one(tmp_path: Path) -> None:
    table = write_run(tmp_path, folds=3, overlapping=True)
    found = evaluate_run(tmp_path, resamples=50)
    assert not found.folds_joined
    assert any("share slides" in warning for warning in found.warnings)
    values = [_slow_metrics(rows, ("normal", "tumor"))["macro_f1"] for _, rows in table.groupby(["fold", "seed"])]
    assert found.metrics["macro_f1"].value == pytest.approx(np.mean(values))
    assert found.n_slides == 40


def test_an_absent_class_is_left_out_of_the_auc_and_said(tmp_path: Path) -> None:
    write_run(tmp_path, THREE, target=np.repeat([0, 1], 20))
    found = evaluate_run(tmp_path, resamples=50)
    assert any("2 of 3 classes" in warning for warning in found.warnings)
    auc = [row.metrics["auc"].value for row in found.classes]
    assert math.isnan(auc[2])
    assert found.metrics["macro_auc"].value == pytest.approx(np.mean(auc[:2]))
    assert found.to_dict()["per_class"][2]["auc"]["value"] is None


def test_one_class_only(tmp_path: Path) -> None:
    write_run(tmp_path, target=np.zeros(40, int))
    found = evaluate_run(tmp_path, resamples=20)
    assert found.skipped_resamples == 20
    assert math.isnan(found.metrics["macro_auc"].value)
    assert math.isnan(found.metrics["accuracy"].interval.low)
    json.dumps(found.to_dict(), allow_nan=False)


def test_resamples_with_one_class_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, slides=6, target=np.array([0, 0, 0, 0, 1, 1]), seeds=1)
    found = evaluate_run(tmp_path, resamples=200)
    assert 0 < found.skipped_resamples < 200
    assert any(f"{found.skipped_resamples} of 200" in warning for warning in found.warnings)


def test_chunks_of_resamples_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path)
    whole = evaluate_run(tmp_path, resamples=50).to_dict()
    monkeypatch.setattr("asmil.tasks.intervals.CELLS_AT_ONCE", 300)
    assert evaluate_run(tmp_path, resamples=50).to_dict() == whole


def test_json_and_csv_hold_the_same_numbers(tmp_path: Path) -> None:
    write_run(tmp_path, THREE)
    found = evaluate_run(tmp_path, resamples=50)
    written = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    frame = pd.DataFrame(found.csv_rows())
    row = frame[(frame["metric"] == "macro_f1")].iloc[0]
    assert row["value"] == written["metrics"]["macro_f1"]["value"]
    assert row["trainings"] == written["trainings"] == 2
    assert len(frame) == 4 + 3 * len(found.classes[0].metrics)
    assert written["metrics"]["macro_f1"]["sd_seeds"] is not None


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    write_run(tmp_path, seeds=1)
    assert evaluate_run(tmp_path, resamples=20).to_dict()["metrics"]["accuracy"]["sd_seeds"] is None


def test_validation_only_when_asked(tmp_path: Path) -> None:
    write_run(tmp_path, role="val")
    with pytest.raises(AsmilError, match="`--role val`"):
        evaluate_run(tmp_path)
    assert evaluate_run(tmp_path, role="val", resamples=20).role == "val"


def _drop_column(path: Path) -> None:
    file = path / "predictions.parquet"
    pd.read_parquet(file).drop(columns="prob_tumor").to_parquet(file)


def _repeat_a_row(path: Path) -> None:
    file = path / "predictions.parquet"
    table = pd.read_parquet(file)
    pd.concat([table, table.head(1)]).to_parquet(file)


def _break_a_probability(path: Path) -> None:
    file = path / "predictions.parquet"
    table = pd.read_parquet(file)
    table.loc[3, "prob_tumor"] = np.nan
    table.to_parquet(file)


def _rename_a_target(path: Path) -> None:
    file = path / "predictions.parquet"
    table = pd.read_parquet(file)
    table.loc[3, "target"] = "other"
    table.to_parquet(file)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: (path / "config.yaml").unlink(), "run folder"),
        (lambda path: (path / "config.yaml").write_text("[1]"), r"config\.yaml"),
        (lambda path: (path / "config.yaml").write_text("task: {kind: ranking}"), "'ranking'"),
        (lambda path: (path / "config.yaml").write_text("task: {kind: survival}"), "time, event, risk"),
        (lambda path: (path / "predictions.parquet").unlink(), "unfinished.*`asmil train`"),
        (lambda path: (path / "predictions.parquet").write_text("no table"), "cannot be read"),
        (_drop_column, "prob_tumor"),
        (_repeat_a_row, "slide s0 .*twice"),
        (_break_a_probability, "slide s3 .*not finite"),
        (_rename_a_target, "slide s3 .*normal, tumor"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, damage: object, sentence: str) -> None:
    write_run(tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(AsmilError, match=sentence):
        evaluate_run(tmp_path)


def test_an_unknown_role_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AsmilError, match="'test'"):
        evaluate_run(tmp_path, role="tests")  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["slide", "patient"])
def test_predictions_with_categorical_columns_are_evaluated_as_others(tmp_path: Path, unit: str) -> None:
    table = write_run(tmp_path, folds=2)
    expected = evaluate_run(tmp_path, resamples=15, unit=unit).metrics
    table.astype("category").to_parquet(tmp_path / "predictions.parquet")
    found = evaluate_run(tmp_path, resamples=15, unit=unit).metrics
    assert {name: one.value for name, one in found.items()} == {name: one.value for name, one in expected.items()}
