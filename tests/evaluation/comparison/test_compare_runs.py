"""Comparisons of classification runs against plain references."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.metrics import f1_score, roc_auc_score

from asmil.errors import AsmilError
from asmil.evaluation import evaluate_run
from asmil.evaluation.comparison import Comparison, Difference, compare_runs
from asmil.evaluation.comparison.report import comparison_document
from asmil.evaluation.statistics import (
    bootstrap_seeds_and_patients,
    combine_p,
    corrected_resampled_t,
    delong,
    holm,
    permutation_f1,
)
from asmil.reporting.formats import format_p, format_signed
from fake_compared_runs import THREE, TWO, write_compared_run

FEW = 60


def difference(found: Comparison, run: str, measure: str) -> Difference:
    return next(one for one in found.differences if one.run == run and one.metric.name == measure)


def arrays(table: pd.DataFrame, classes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Target n, probabilities S x n x K and patients n, in the order of the slides' names."""
    ordered = [part.sort_values("slide") for _, part in table.groupby("seed")]
    target = ordered[0]["target"].map(classes.index).to_numpy()
    columns = [f"prob_{name}" for name in classes]
    return target, np.stack([part[columns].to_numpy() for part in ordered]), ordered[0]["patient"].tolist()


@pytest.mark.parametrize("classes", [TWO, THREE])
def test_a_run_and_its_copy_do_not_differ(tmp_path: Path, classes: tuple[str, ...]) -> None:
    write_compared_run(tmp_path / "a", classes=classes, seeds=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=FEW)
    assert [one.metric.name for one in found.differences] == ["macro_f1", "macro_auc"]
    for one in found.differences:
        assert one.value == 0
        assert tuple(one.interval) == (0, 0)
        assert one.ensemble is not None
        assert (one.ensemble.p, one.p, one.p_holm, one.folds, one.per_seed) == (1, 1, 1, None, None)
    assert found.family == 2


@pytest.mark.parametrize(
    ("classes", "options"),
    [
        (TWO, {"slides_a_patient": 2}),
        (THREE, {"folds": 3}),
        (TWO, {"folds": 3, "repeated": True}),
    ],
)
def test_scores_are_those_of_evaluate(tmp_path: Path, classes: tuple[str, ...], options: dict[str, int]) -> None:
    for name, quality in (("a", 0.8), ("b", 1.2)):
        write_compared_run(tmp_path / name, quality, classes, **options)
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=FEW, seed=4)
    for method in found.runs:
        expected = evaluate_run(method.path, resamples=FEW, seed=4)
        for name, score in method.metrics.items():
            assert score.value == pytest.approx(expected.metrics[name].value)
            assert score.per_seed == pytest.approx(expected.metrics[name].per_seed)
            assert tuple(score.interval) == pytest.approx(tuple(expected.metrics[name].interval))
        assert found.skipped == expected.skipped_resamples
        assert found.folds_joined == expected.folds_joined
    assert (found.n_slides, found.n_patients) == (expected.n_slides, expected.n_patients)


@pytest.mark.parametrize("classes", [TWO, THREE])
def test_differences_are_those_of_the_public_functions(tmp_path: Path, classes: tuple[str, ...]) -> None:
    options = {"classes": classes, "slides_a_patient": 2}
    reference = write_compared_run(tmp_path / "old", 0.7, seeds=2, **options)
    run = write_compared_run(tmp_path / "new", 1.6, seeds=4, noise_seed=1, **options)
    found = compare_runs([tmp_path / "old", tmp_path / "new"], resamples=FEW, seed=3)
    target, theirs, patients = arrays(reference, classes)
    _, ours, _ = arrays(run, classes)

    for name in ("macro_f1", "macro_auc"):
        one = difference(found, "new", name)
        expected = bootstrap_seeds_and_patients(name, target, ours, theirs, patients, FEW, 3)
        assert one.reference == "old"
        assert one.value == pytest.approx(expected.difference)
        assert tuple(one.interval) == pytest.approx(tuple(expected.interval))
        assert (one.sd, one.estimate.skipped) == (pytest.approx(expected.sd), expected.skipped)
        assert one.p == pytest.approx(expected.p)

    labels = [1] if len(classes) == 2 else range(len(classes))
    tests = [delong(target == k, ours.mean(0)[:, k], theirs.mean(0)[:, k]) for k in labels]
    auc = difference(found, "new", "macro_auc").ensemble
    assert auc is not None
    assert [one.p for one in auc.classes] == pytest.approx([test.p for test in tests])
    assert [one.difference for one in auc.classes] == pytest.approx([test.difference for test in tests])
    assert [one.p_holm for one in auc.classes] == pytest.approx(holm([test.p for test in tests]))
    assert auc.p < 0.05
    assert auc.difference == pytest.approx(np.mean([test.difference for test in tests]))
    if len(classes) == 2:
        assert auc.p == pytest.approx(tests[0].p)
    else:  # there is no DeLong test of a mean over classes: interval and p come from one bootstrap
        alone = bootstrap_seeds_and_patients(
            "macro_auc", target, ours.mean(0)[None], theirs.mean(0)[None], patients, 500
        )
        assert tuple(auc.estimate.interval) == pytest.approx(tuple(alone.interval), abs=0.05)

    calls = [probabilities.argmax(-1) for probabilities in (ours.mean(0), theirs.mean(0))]
    swapped = permutation_f1(target, *calls, len(classes), patients, seed=3)
    f1 = difference(found, "new", "macro_f1").ensemble
    assert f1 is not None
    assert (f1.p, f1.difference) == (pytest.approx(swapped.p), pytest.approx(swapped.difference))

    assert [one.p_holm for one in found.differences] == pytest.approx(holm([one.p for one in found.differences]))
    assert [f1.p_holm, auc.p_holm] == pytest.approx(holm([f1.p, auc.p]))
    by_seed = [
        permutation_f1(target, a.argmax(-1), b.argmax(-1), len(classes), patients, seed=3).p
        for a, b in zip(ours, theirs, strict=False)
    ]
    seeds = difference(found, "new", "macro_f1").per_seed
    assert seeds is not None
    assert seeds.seeds == ((0, 0), (1, 1))
    assert seeds.p == pytest.approx(by_seed)
    assert seeds.p_combined == pytest.approx(combine_p(by_seed, "twice_median"))


def test_validation_numbers_are_called_optimistic(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        table = write_compared_run(tmp_path / name, slides=20, noise_seed=seed)
        table.assign(role="val").to_parquet(tmp_path / name / "predictions.parquet")
    found = compare_runs([tmp_path / "a", tmp_path / "b"], role="val", resamples=20)
    assert "optimistic" in comparison_document(found).first_warnings[0]


def test_a_clearly_better_run_is_seen(tmp_path: Path) -> None:
    write_compared_run(tmp_path / "weak", 0.3)
    write_compared_run(tmp_path / "strong", 2.5, noise_seed=1)
    found = compare_runs([tmp_path / "weak", tmp_path / "strong"], resamples=200)
    for one in found.differences:
        assert one.ensemble is not None
        assert one.interval.low > 0.1
        assert one.ensemble.p_holm < 0.01
        assert one.p_holm == pytest.approx(2 * 2 / 201)
    turned = compare_runs([tmp_path / "weak", tmp_path / "strong"], resamples=20, reference=tmp_path / "strong")
    assert turned.reference == "strong"
    for one, other in zip(turned.differences, found.differences, strict=True):
        assert one.value == pytest.approx(-other.value)
        assert one.ensemble is not None
        assert other.ensemble is not None
        assert one.ensemble.p_holm == pytest.approx(other.ensemble.p_holm)


def test_folds_are_tested_with_the_corrected_t(tmp_path: Path) -> None:
    tables = [
        write_compared_run(tmp_path / name, quality, folds=4, seeds=2, slides=80, slides_a_patient=2, noise_seed=seed)
        for seed, (name, quality) in enumerate([("a", 0.8), ("b", 1.4)])
    ]
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=20)
    per_fold: dict[str, list[float]] = {"macro_f1": [], "macro_auc": []}
    for fold in range(4):
        values = []
        for table in tables:
            parts = [part for _, part in table[table["fold"] == fold].groupby("seed")]
            auc = [roc_auc_score(part["target"] == "tumor", part["prob_tumor"]) for part in parts]
            f1 = [f1_score(part["target"] == "tumor", part["prob_tumor"] > 0.5, average="macro") for part in parts]
            values.append((np.mean(f1), np.mean(auc)))
        for name, (before, after) in zip(per_fold, zip(*values, strict=True), strict=True):
            per_fold[name].append(after - before)
    for name, differences in per_fold.items():
        test = difference(found, "b", name).folds
        expected = corrected_resampled_t(differences, n_train=80, n_test=20)
        assert test is not None
        assert test.differences == pytest.approx(differences)
        assert (test.n_train, test.n_test, test.df) == (80, 20, 3)
        assert (test.t, test.p) == (pytest.approx(expected.t), pytest.approx(expected.p))
    by_patient = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=20, unit="patient")
    test = by_patient.differences[0].folds
    assert test is not None
    assert (test.n_train, test.n_test) == (50, 10)


def test_without_splits_there_is_no_t_test_and_that_is_said(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_compared_run(tmp_path / name, folds=2, noise_seed=ord(name))
        (tmp_path / name / "splits.csv").unlink()
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=20)
    assert found.differences[0].folds is not None
    assert np.isnan(found.differences[0].folds.p)
    assert any("t-test" in warning and "splits.csv" in warning for warning in found.warnings)


def test_repeated_splits_average_their_trainings_and_test_one_prediction_a_slide(tmp_path: Path) -> None:
    tables = [
        write_compared_run(tmp_path / name, quality, folds=3, repeated=True, noise_seed=seed)
        for seed, (name, quality) in enumerate([("a", 0.5), ("b", 1.5)])
    ]
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=FEW)
    assert not found.folds_joined
    values = [
        np.mean(
            [
                roc_auc_score(part["target"] == "tumor", part["prob_tumor"])
                for _, part in table.groupby(["fold", "seed"])
            ]
        )
        for table in tables
    ]
    one = difference(found, "b", "macro_auc")
    assert one.value == pytest.approx(values[1] - values[0])
    means = [table.groupby("slide")[["prob_tumor"]].mean() for table in tables]
    target = tables[0].drop_duplicates("slide").set_index("slide")["target"].reindex(means[0].index) == "tumor"
    expected = delong(target, means[1]["prob_tumor"], means[0]["prob_tumor"])
    assert one.ensemble is not None
    assert one.ensemble.p == pytest.approx(expected.p)


def test_rows_are_paired_by_slide_and_classes_by_name(tmp_path: Path) -> None:
    write_compared_run(tmp_path / "a", 0.8, THREE, folds=2)
    table = write_compared_run(tmp_path / "b", 1.2, THREE, folds=2, noise_seed=1)
    before = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=FEW)
    table.sample(frac=1, random_state=0).to_parquet(tmp_path / "b" / "predictions.parquet")
    config = yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())
    config["task"]["classes"].reverse()
    (tmp_path / "b" / "config.yaml").write_text(yaml.safe_dump(config))
    after = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=FEW)
    for one, other in zip(before.differences, after.differences, strict=True):
        assert one.value == pytest.approx(other.value)
        assert tuple(one.interval) == pytest.approx(tuple(other.interval))
        assert one.p_holm == pytest.approx(other.p_holm)


def test_patients_instead_of_slides(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        table = write_compared_run(tmp_path / name, 0.7 + seed, slides_a_patient=3, noise_seed=seed)
        values = {"prob_normal": "mean", "prob_tumor": "mean", "target": "first"}
        mean = table.groupby(["patient", "fold", "seed", "role"], as_index=False).agg(values)
        shutil.copytree(tmp_path / name, tmp_path / "by_hand" / name)
        mean.assign(slide=mean["patient"]).to_parquet(tmp_path / "by_hand" / name / "predictions.parquet")
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=FEW, unit="patient")
    expected = compare_runs([tmp_path / "by_hand" / "a", tmp_path / "by_hand" / "b"], resamples=FEW)
    assert (found.n_slides, found.n_patients) == (20, 20)
    for one, other in zip(found.differences, expected.differences, strict=True):
        assert one.value == pytest.approx(other.value)
        assert tuple(one.interval) == pytest.approx(tuple(other.interval))
        assert one.p_holm == pytest.approx(other.p_holm)
    assert not any("DeLong" in warning for warning in found.warnings)
    by_slide = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=20)
    assert any("up to 3 slides" in warning for warning in by_slide.warnings)


def test_all_pairs_make_one_family(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in "abc"]
    for seed, run in enumerate(runs):
        write_compared_run(run, 0.5 + 0.6 * seed, noise_seed=seed, seeds=1 + seed, slides=30)
    found = compare_runs(runs, resamples=FEW, all_pairs=True)
    pairs = [(one.run, one.reference) for one in found.differences]
    assert pairs[::2] == [("b", "a"), ("c", "a"), ("c", "b")]
    assert found.family == 6
    raw = [one.ensemble.p for one in found.differences if one.ensemble is not None]
    assert [one.ensemble.p_holm for one in found.differences if one.ensemble] == pytest.approx(holm(raw))
    assert [one.p_holm for one in found.differences] == pytest.approx(holm([one.p for one in found.differences]))
    assert found.ensemble_family == 6
    assert [len(method.seeds) for method in found.runs] == [1, 2, 3]
    assert any(warning.startswith("a: ") and "seed" in warning for warning in found.warnings)
    assert compare_runs(runs, resamples=20).family == 4


def test_chunks_of_draws_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for seed, run in enumerate(runs):
        write_compared_run(run, noise_seed=seed, slides=30)
    whole = compare_runs(runs, resamples=FEW)
    monkeypatch.setattr("asmil.tasks.intervals.CELLS_AT_ONCE", 300)
    again = compare_runs(runs, resamples=FEW)
    for one, other in zip(whole.differences, again.differences, strict=True):
        assert one.interval == other.interval


def test_other_training_slides_and_absent_classes_are_told(tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        table = write_compared_run(tmp_path / name, classes=THREE, noise_seed=seed)
        table[table["target"] != "malignant"].to_parquet(tmp_path / name / "predictions.parquet")
    splits = pd.read_csv(tmp_path / "b" / "splits.csv")
    splits[splits["slide"] != "t3"].to_csv(tmp_path / "b" / "splits.csv", index=False)
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=20)
    told = " ".join(found.warnings)
    assert "t3 in fold 0" in told
    assert "2 of 3 classes" in told
    assert "malignant: target: 0" in told
    assert found.family == 2


def test_an_unfinished_run_is_named_and_the_others_compared(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in "abc"]
    for run in runs:
        write_compared_run(run, noise_seed=ord(run.name), slides=30)
    (runs[0] / "predictions.parquet").unlink()
    found = compare_runs(runs, resamples=20)
    assert [method.name for method in found.runs] == ["b", "c"]
    assert found.reference == "b"
    assert len(found.problems) == 1
    assert str(runs[0]) in found.problems[0]
    with pytest.raises(AsmilError, match=r"a: .*unfinished"):
        compare_runs(runs, resamples=20, reference=runs[0])
    with pytest.raises(AsmilError, match=r"unfinished.*only .*b is left"):
        compare_runs(runs[:2], resamples=20)


def change(run: Path, **columns: object) -> None:
    """Change what a run's predictions say of slide s7."""
    table = pd.read_parquet(run / "predictions.parquet")
    chosen = table["slide"] == "s7"
    table.loc[chosen, list(columns)] = list(columns.values())
    table.to_parquet(run / "predictions.parquet")


def drop(run: Path, seed: int | None = None) -> None:
    table = pd.read_parquet(run / "predictions.parquet")
    gone = (table["slide"] == "s7") & ((table["seed"] == seed) if seed is not None else True)
    table[~gone].to_parquet(run / "predictions.parquet")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda a, b: drop(b), "b .*slide s7,? .*a "),
        (lambda a, b: drop(a), "a .*slide s7,? .*b "),
        (lambda a, b: drop(b, seed=1), "b: seed 1 .*s7"),
        (lambda a, b: change(b, fold=0), "slide s7 .*fold 0.*fold 1"),
        (lambda a, b: change(b, patient="p0"), "s7 .*p0 in b.*p7 in a"),
        (lambda a, b: change(b, target="normal"), "s7 .*normal in b.*tumor in a"),
    ],
)
def test_runs_that_do_not_pair_are_refused(tmp_path: Path, damage: object, sentence: str) -> None:
    for seed, name in enumerate(("a", "b")):
        write_compared_run(tmp_path / name, folds=2, noise_seed=seed)
    change(tmp_path / "a", target="tumor")
    change(tmp_path / "b", target="tumor")
    damage(tmp_path / "a", tmp_path / "b")  # type: ignore[operator]
    with pytest.raises(AsmilError, match=sentence):
        compare_runs([tmp_path / "a", tmp_path / "b"], resamples=20)


def test_other_classes_are_refused(tmp_path: Path) -> None:
    write_compared_run(tmp_path / "a")
    write_compared_run(tmp_path / "b", classes=THREE)
    with pytest.raises(AsmilError, match=r"b .*benign, atypical, malignant.* a .*normal, tumor"):
        compare_runs([tmp_path / "a", tmp_path / "b"])


def test_a_patient_with_two_targets_is_refused_by_patient(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_compared_run(tmp_path / name, slides_a_patient=2)
        change(tmp_path / name, target="normal")
        table = pd.read_parquet(tmp_path / name / "predictions.parquet")
        table.loc[table["slide"] == "s6", "target"] = "tumor"
        table.to_parquet(tmp_path / name / "predictions.parquet")
    with pytest.raises(AsmilError, match=r"patient p3 .*--unit slide"):
        compare_runs([tmp_path / "a", tmp_path / "b"], unit="patient")


def test_one_class_only_cannot_be_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        table = write_compared_run(tmp_path / name)
        table[table["target"] == "tumor"].to_parquet(tmp_path / name / "predictions.parquet")
    with pytest.raises(AsmilError, match=r"a: macro-AUC .*s"):
        compare_runs([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("runs", "options", "sentence"),
    [
        (["a"], {}, "two runs"),
        (["a", "a"], {}, "twice"),
        (["a", "b"], {"reference": "c"}, "reference .*c "),
        (["a", "b"], {"reference": "a", "all_pairs": True}, "reference.*pairs"),
        (["a", "b"], {"role": "tests"}, "'test'"),
        (["a", "b"], {"unit": "patients"}, "'patient'"),
        (["a", "b"], {"resamples": 0}, "too few"),
        (["a", "b"], {"role": "val"}, "val.*test"),
    ],
)
def test_requests_that_cannot_be_meant(
    tmp_path: Path, runs: list[str], options: dict[str, object], sentence: str
) -> None:
    for name in ("a", "b"):
        write_compared_run(tmp_path / name, slides=8, seeds=1)
    if "reference" in options:
        options["reference"] = tmp_path / str(options["reference"])
    with pytest.raises(AsmilError, match=sentence):
        compare_runs([tmp_path / name for name in runs], **options)  # type: ignore[arg-type]


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    runs = [tmp_path / "x" / "cv", tmp_path / "y" / "cv"]
    for run in runs:
        write_compared_run(run, slides=12, seeds=1)
    found = compare_runs(runs, resamples=20)
    assert [method.name for method in found.runs] == ["x/cv", "y/cv"]


def test_quantities_with_opposite_signs_are_told(tmp_path: Path) -> None:
    write_compared_run(tmp_path / "a", 0.8, slides=30)
    for noise in range(1, 40):
        write_compared_run(tmp_path / f"b{noise}", 0.8, slides=30, noise_seed=noise)
        found = compare_runs([tmp_path / "a", tmp_path / f"b{noise}"], resamples=20)
        one = next((one for one in found.differences if one.opposite), None)
        if one is not None:
            break
    assert one is not None
    assert one.ensemble is not None
    assert one.value * one.ensemble.difference < 0
    numbers = [format_signed(value) for value in (one.value, one.ensemble.difference)]
    assert all(number in found.warnings[0] for number in numbers)
    document = comparison_document(found)
    assert found.warnings[0] in document.first_warnings
    assert all(number in document.answer for number in numbers)  # also if alarms hide the warnings
    first, second, *_ = [table for table in document.tables() if "difference" in table.columns]
    for table, value, p in ((first, one.value, one.p), (second, one.ensemble.difference, one.ensemble.p)):
        cells = [[cell.text for cell in row] for row in table.cells() if row[2].text == one.metric.title]
        assert format_signed(value) in cells[0]
        assert cells[0][table.columns.index("p")] == format_p(p)
    mean = found.differences_table.loc[(one.run, one.reference, one.metric.name)]
    assert (mean["difference"], mean["p"]) == (one.value, one.p)
