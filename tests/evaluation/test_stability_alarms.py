from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asmil.evaluation.stability import RunStability, read_stability
from asmil.evaluation.stability.alarms import alarms_of
from asmil.models.registry import find_method
from asmil.runs.config import resolve
from fake_recordings import normalized, restless, settling, write_recorded_run


def read(path: Path, trainings: dict, config: dict[str, Any] | None = None, **options: Any) -> RunStability:
    return read_stability(write_recorded_run(path / "run", trainings, config, **options))


def flat(seed: int, n_tiles: int = 300) -> np.ndarray:
    return normalized(1 + 0.01 * np.random.default_rng(seed).normal(size=(25, n_tiles)))


def peaked(n_tiles: int = 300) -> np.ndarray:
    course = settling(0, n_tiles=n_tiles)
    course[10:] = 0.05 / n_tiles
    course[10:, 0] += 0.95
    return course


def kinds(stability: RunStability) -> list[str]:
    return [alarm.kind for alarm in stability.alarms]


def test_a_settled_attention_raises_no_alarm(tmp_path: Path) -> None:
    found = read(tmp_path, {(0, seed): [settling(seed), settling(seed)] for seed in (0, 1)})
    assert kinds(found) == []


def test_uniform_from_the_start(tmp_path: Path) -> None:
    found = read(tmp_path, {(0, 0): [flat(0), flat(1), settling(0)]})
    (alarm,) = found.alarms
    assert alarm.kind == "uniform"
    assert "at every recording" in alarm.text
    assert "2 of 3 slides" in alarm.text
    assert alarm.advice


def test_uniform_because_an_early_epoch_was_kept(tmp_path: Path) -> None:
    found = read(tmp_path, {(0, 0): [settling(0)]}, kept_epoch=0)
    assert kinds(found) == ["uniform"]
    share = found.times["effective_share"].iloc[-1]
    assert f"share {share:.2f} there" in found.alarms[0].text
    assert re.findall("--set ([^`]+)", found.alarms[0].advice) == ["training.select=last"]


def test_uniform_after_it_was_not(tmp_path: Path) -> None:
    course = settling(0)[::-1].copy()
    course[10:] = course[-1]
    found = read(tmp_path, {(0, 0): [course]})
    assert kinds(found) == ["uniform"]
    lowest = found.times["effective_share"].min()
    assert f"lowest share {lowest:.2f}" in found.alarms[0].text
    assert "--set training.lr=0.0003`" in found.alarms[0].advice


def test_one_tile_takes_all_at_the_kept_epoch(tmp_path: Path) -> None:
    found = read(tmp_path, {(0, 0): [peaked(), peaked()]})
    assert kinds(found) == ["one_tile"]
    assert "2 of 2 slides" in found.alarms[0].text
    assert "0.950" in found.alarms[0].text


def test_a_tile_that_takes_all_later_than_the_kept_epoch_is_no_alarm(tmp_path: Path) -> None:
    assert kinds(read(tmp_path, {(0, 0): [peaked(), peaked()]}, kept_epoch=8)) == []


def test_slides_with_few_tiles_are_not_judged(tmp_path: Path) -> None:
    assert kinds(read(tmp_path, {(0, 0): [peaked(10), flat(0, 10)]})) == []


def test_still_moving(tmp_path: Path) -> None:
    found = read(tmp_path, {(0, 0): [restless(0), restless(1), settling(0)]})
    (alarm,) = found.alarms
    assert alarm.kind == "moving"
    late = found.slides.set_index("slide").loc[["s0", "s1"], "jsd_late"].median()
    assert "2 of 3 slides" in alarm.text
    assert f"{late:.3f} nats" in alarm.text
    assert "anchor" not in alarm.advice


def test_an_attention_that_moved_early_and_then_rests_is_no_alarm(tmp_path: Path) -> None:
    course = restless(0)
    course[10:] = course[10]
    assert kinds(read(tmp_path, {(0, 0): [course]})) == []


def test_an_unfinished_training_may_move(tmp_path: Path) -> None:
    assert kinds(read(tmp_path, {(0, 0): [restless(0)]}, finished=False)) == []


def test_seeds_disagree(tmp_path: Path) -> None:
    still = {(0, seed): [np.repeat(restless(seed)[:1], 25, axis=0)] * 2 for seed in (0, 1, 2)}
    found = read(tmp_path, still)
    assert kinds(found) == ["seeds_disagree"]
    assert "on 2 of 2 slides" in found.alarms[0].text
    assert "anchor" not in found.alarms[0].advice


def test_seeds_that_disagree_because_they_are_flat_are_not_held_to_an_anchor(tmp_path: Path) -> None:
    found = read(tmp_path, {(0, seed): [flat(seed)] for seed in (0, 1)})
    assert kinds(found) == ["uniform", "seeds_disagree"]
    assert "anchor" not in found.alarms[1].advice


def test_an_alarm_names_the_trainings_it_is_about(tmp_path: Path) -> None:
    trainings = {(0, seed): [settling(seed), settling(seed)] for seed in range(4)}
    trainings[0, 2] = [flat(0), flat(1)]
    found = read(tmp_path, trainings)
    assert kinds(found) == ["uniform"]
    assert "(fold 0 seed 2; 2 of 8 " in found.alarms[0].text
    assert all("1 of 4" in told for told in (found.alarms[0].name, found.alarms[0].finding, found.alarms[0].short))


def test_a_run_where_every_training_is_meant_says_all(tmp_path: Path) -> None:
    found = read(tmp_path, {(0, seed): [flat(0)] for seed in range(6)})
    assert "(6 of 6 slides" in found.alarms[0].text
    assert "6" not in found.alarms[0].name


@pytest.mark.parametrize(
    ("late", "relative", "alarmed"), [(0.006, 0.006, True), (0.004, 0.2, False), (0.1, 0.004, False)]
)
def test_motion_counts_if_it_is_large_by_itself_and_in_what_the_attention_says(
    tmp_path: Path, late: float, relative: float, alarmed: bool
) -> None:
    found = read(tmp_path, {(0, 0): [settling(0)]})
    slides = found.slides.assign(jsd_late=late, jsd_relative=relative)
    alarms = alarms_of(found.settings, found.times, slides, found.agreement)
    assert [alarm.kind for alarm in alarms] == ["moving"] * alarmed


@pytest.mark.parametrize(("overlap", "ranks", "alarmed"), [(0.1, 0.4, True), (0.3, 0.4, False), (0.1, 0.6, False)])
def test_seeds_disagree_if_neither_top_tiles_nor_ranks_are_alike(
    tmp_path: Path, overlap: float, ranks: float, alarmed: bool
) -> None:
    found = read(tmp_path, {(0, seed): [settling(seed)] for seed in (0, 1)})
    agreement = found.agreement.assign(top1_overlap=overlap, rank_correlation=ranks)
    alarms = alarms_of(found.settings, found.times, found.slides, agreement)
    assert [alarm.kind for alarm in alarms] == ["seeds_disagree"] * alarmed


ADVISED = [
    ("abmil", "paper", {}),
    ("asmil", "paper", {}),
    ("asmil", "no_anchor", {}),
    ("aem", "paper", {}),
    ("abmil", "paper", {"anchor": {"normalizer": "nsf"}, "stabilizers": {"entropy": {"weight": 0.1}}}),
    ("abmil", "paper", {"stabilizers": {"l2": {"weight": 1.0}}, "training": {"schedule": "constant"}}),
    ("abmil", "paper", {"attention": {"normalizer": "sparsemax"}}),
]


@pytest.mark.parametrize(("method", "preset", "changes"), ADVISED)
def test_all_that_is_advised_can_be_set(tmp_path: Path, method: str, preset: str, changes: dict) -> None:
    """Every `--set KEY=VALUE` of every alarm is a setting of the method that the run was trained with."""
    config = resolve(method, preset, changes).model_dump(mode="json")
    advised = []
    for name, courses in {"flat": [flat(0)], "one": [peaked()], "moving": [restless(0)]}.items():
        found = read(tmp_path / name, {(0, seed): courses for seed in (0, 1)}, {**config, "folds": 1, "seeds": 2})
        advised += [alarm.advice for alarm in found.alarms]
    assert len(advised) >= 3
    for advice in advised:
        for key, value in re.findall(r"--set ([\w.]+)=([\w.e-]+)`", advice):
            section, _, rest = key.partition(".")
            tree: dict[str, Any] = {rest.split(".")[-1]: value}
            for part in reversed(rest.split(".")[:-1]):
                tree = {part: tree}
            resolve(method, preset, {section: tree})
        for preset_named in re.findall(r"--preset (\w+)", advice):
            resolve(method, preset_named)
        for normalizer in re.findall(r"--anchor (\w+)", advice):
            resolve(method, preset, {"anchor": {"normalizer": normalizer}})
        for name, weight in re.findall(r"--stabilizer (\w+)=([\d.]+)", advice):
            assert name not in find_method(method).model.own_stabilizers
            resolve(method, preset, {"stabilizers": {name: {"weight": weight}}})


@pytest.mark.parametrize(
    ("method", "preset", "changes", "words"),
    [
        ("asmil", "paper", {}, "anchor.weight=0.1` (now 1)"),
        ("asmil", "no_anchor", {"anchor": {"normalizer": "nsf", "weight": 0.1}}, "anchor.weight=0.01` (now 0.1)"),
        ("abmil", "paper", {"stabilizers": {"entropy": {"weight": 0.5}}}, "--set stabilizers.entropy.weight=0.05`"),
        ("abmil", "paper", {}, "--set training.lr=0.0003` (now 0.0001)"),
        ("aem", "paper", {}, "--set model.weight=0.01`"),
        ("abmil", "paper", {"attention": {"normalizer": "nsf"}}, "--set attention.normalizer=own`"),
    ],
)
def test_against_flatness_its_cause_is_weakened(
    tmp_path: Path, method: str, preset: str, changes: dict, words: str
) -> None:
    config = resolve(method, preset, changes).model_dump(mode="json")
    assert words in read(tmp_path, {(0, 0): [flat(0)]}, config).alarms[0].advice
