from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from asmil.errors import AsmilError
from asmil.evaluation.stability import read_stability, seed_agreement
from asmil.evaluation.stability.analysis import late_recordings
from asmil.runs.attention_file import read_attention
from asmil.runs.described import run_label
from asmil.runs.stored_settings import StoredSettings
from fake_recordings import restless, settling, write_recorded_run

HALF = {"abs": 2e-3}  # recordings are rounded to float16


def _jsd(p: np.ndarray, q: np.ndarray) -> float:
    m = (p + q) / 2
    return float(sum(a * math.log(a / c) + b * math.log(b / c) for a, b, c in zip(p, q, m, strict=True)) / 2)


def test_every_number_of_a_course_is_what_it_says(tmp_path: Path) -> None:
    course = restless(3, n_recordings=6, n_tiles=150)
    run = write_recorded_run(tmp_path / "run", {(0, 0): [course, settling(1, 6)]}, kept_epoch=4)
    found = read_stability(run)
    rows = found.times[found.times["slide"] == "s0"].reset_index(drop=True)
    assert rows["epoch"].tolist() == [0, 1, 2, 3, 4, 5]
    assert rows["step"].tolist() == [0, 10, 20, 30, 40, 50]
    assert set(rows["target"]) == {"normal"}
    assert set(rows["n_tiles"]) == {150}
    assert math.isnan(rows["jsd_previous"][0])
    assert rows["jsd_previous"][1:].tolist() == pytest.approx([_jsd(a, b) for a, b in pairwise(course)], **HALF)
    assert rows["jsd_final"].tolist() == pytest.approx([_jsd(a, course[-1]) for a in course], **HALF)
    entropy = -(course * np.log(course)).sum(axis=1)
    assert rows["entropy"].tolist() == pytest.approx(entropy, **HALF)
    assert rows["effective_share"].tolist() == pytest.approx(np.exp(entropy) / 150, **HALF)
    assert rows["max_weight"].tolist() == pytest.approx(course.max(axis=1), **HALF)
    assert rows["peak_n"].tolist() == pytest.approx(150 * course.max(axis=1), rel=2e-3)
    assert rows["top1_mass"].tolist() == pytest.approx(np.sort(course, axis=1)[:, -2:].sum(axis=1), **HALF)
    # logits (0.1 r, -0.1 r), class 0
    assert rows["ce"].tolist() == pytest.approx([math.log1p(math.exp(-0.2 * r)) for r in range(6)], abs=1e-6)

    slide = found.slides.set_index("slide").loc["s0"]
    assert found.trainings[0].kept == 4
    assert slide["entropy"] == rows["entropy"][4]
    assert slide["jsd_mean"] == pytest.approx(rows["jsd_previous"][1:].mean())
    assert slide["jsd_late"] == pytest.approx(rows["jsd_previous"][3:].mean())
    said = (math.log(150) - rows["entropy"][3:]).mean()
    assert slide["jsd_relative"] == pytest.approx(rows["jsd_previous"][3:].mean() / said)


@pytest.mark.parametrize(("recordings", "late"), [(1, 1), (2, 1), (3, 1), (19, 9), (20, 10), (51, 10)])
def test_what_is_late(recordings: int, late: int) -> None:
    assert late_recordings(recordings) == late


def test_the_kept_recording_is_the_last_one_not_after_the_kept_epoch(tmp_path: Path) -> None:
    times = [0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4]
    run = write_recorded_run(tmp_path / "run", {(0, 0): [settling(0, 7)]}, kept_epoch=1, epochs=times)
    assert read_stability(run).trainings[0].kept == 2
    (run / "fold-0" / "seed-0" / "checkpoints" / "best.json").unlink()
    assert read_stability(run).trainings[0].kept == 6


def test_a_broken_best_json_is_named(tmp_path: Path) -> None:
    run = write_recorded_run(tmp_path / "run", {(0, 0): [settling(0)]}, kept_epoch=1)
    (run / "fold-0" / "seed-0" / "checkpoints" / "best.json").write_text("{")
    with pytest.raises(AsmilError, match=r"best\.json"):
        read_stability(run)


def test_seeds_agree_in_pairs_fold_by_fold(tmp_path: Path) -> None:
    trainings = {(fold, seed): [settling(seed), restless(seed)] for fold in (0, 1) for seed in (0, 1, 2)}
    found = read_stability(write_recorded_run(tmp_path / "run", trainings))
    assert len(found.agreement) == 2 * 3 * 2
    assert list(found.agreement.columns) == [
        "fold",
        "slide",
        "seed_a",
        "seed_b",
        "rank_correlation",
        "top1_overlap",
        "jsd",
    ]
    means = found.agreement.groupby("slide")[["rank_correlation", "top1_overlap", "jsd"]].mean()
    assert means.loc["s0", "rank_correlation"] > 0.95
    assert abs(means.loc["s1", "rank_correlation"]) < 0.2
    assert means.loc["s0", "top1_overlap"] > means.loc["s1", "top1_overlap"]
    assert means.loc["s0", "jsd"] < 0.05 < means.loc["s1", "jsd"]


def test_equal_seeds_agree_wholly_and_slides_of_one_seed_only_are_left_out(tmp_path: Path) -> None:
    for seed, names in ((0, ["a", "b"]), (1, ["b", "c"])):
        courses = [settling(0), settling(0)]
        write_recorded_run(tmp_path / f"run-{seed}", {(0, seed): courses}, names=names)
    records = {seed: read_attention(tmp_path / f"run-{seed}" / "fold-0" / f"seed-{seed}") for seed in (0, 1)}
    (row,) = seed_agreement(records, {0: 24, 1: 24}).to_dict("records")
    assert row == {"slide": "b", "seed_a": 0, "seed_b": 1, "rank_correlation": 1.0, "top1_overlap": 1.0, "jsd": 0.0}


def test_seeds_with_other_tiles_are_refused(tmp_path: Path) -> None:
    run = write_recorded_run(tmp_path / "run", {(0, 0): [settling(0, n_tiles=50)], (0, 1): [settling(0, n_tiles=60)]})
    with pytest.raises(AsmilError, match="slide s0: 50 tiles"):
        read_stability(run)


def test_one_recording_of_one_tile_leaves_undefined_numbers_undefined(tmp_path: Path) -> None:
    found = read_stability(write_recorded_run(tmp_path / "run", {(0, 0): [np.ones((1, 1))]}))
    (row,) = found.slides.to_dict("records")
    assert all(math.isnan(row[name]) for name in ("jsd_mean", "jsd_late", "jsd_relative"))
    assert (row["effective_share"], row["gini"], row["max_weight"], row["top1_mass"]) == (1, 0, 1, 1)
    assert found.agreement.empty
    assert found.alarms == ()


def test_rounding_of_a_uniform_attention_is_not_taken_for_motion(tmp_path: Path) -> None:
    noise = 1 + 1e-5 * np.random.default_rng(0).normal(size=(30, 400))
    found = read_stability(write_recorded_run(tmp_path / "run", {(0, 0): [noise / noise.sum(axis=1, keepdims=True)]}))
    assert found.slides["jsd_late"][0] < 1e-6
    assert math.isnan(found.slides["jsd_relative"][0])


def test_a_training_that_has_not_ended_counts(tmp_path: Path) -> None:
    run = write_recorded_run(tmp_path / "run", {(0, 0): [settling(0)], (0, 1): [settling(1)]}, finished=False)
    (run / "fold-0" / "seed-2").mkdir()
    found = read_stability(run)
    assert [(training.fold, training.seed) for training in found.trainings] == [(0, 0), (0, 1)]
    assert found.slides["finished"].tolist() == [False, False]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"method": "mean_pooling"}, "mean_pooling"),
        ({"record": {"attention": "none"}}, r"--set record\.attention=2"),
        ({"record": None}, r"--set record\.attention=2"),
        ({}, "`asmil train`"),
    ],
)
def test_a_run_without_recordings_says_why(tmp_path: Path, config: dict, named: str) -> None:
    with pytest.raises(AsmilError, match=named):
        read_stability(write_recorded_run(tmp_path / "run", {}, config))


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AsmilError, match="run folder"):
        read_stability(tmp_path)


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({"method": "abmil", "preset": "paper"}, "abmil"),
        ({"method": "asmil", "preset": "no_anchor"}, "asmil (no_anchor)"),
        ({"method": "abmil", "anchor": {"normalizer": "softmax", "weight": 1.0}}, "abmil + anchor (softmax)"),
        ({"method": "abmil", "anchor": {"normalizer": "nsf", "weight": 0}}, "abmil"),
        ({"method": "clam_sb", "attention": {"normalizer": "sparsemax"}}, "clam_sb with sparsemax"),
        (
            {"method": "abmil", "stabilizers": {"entropy": {"weight": 0.1}, "l2": {"weight": 0.0}}},
            "abmil + entropy 0.1",
        ),
    ],
)
def test_the_label_tells_runs_apart(config: dict, label: str) -> None:
    assert run_label(StoredSettings.model_validate(config)) == label
