from __future__ import annotations

from collections import deque
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.errors import AsmilError
from asmil.settings.config import parse_settings
from asmil.synthetic.bags import SyntheticConfig, make_synthetic, plan_slides, write_synthetic
from asmil.synthetic.bags.slides import draw_layout
from asmil.synthetic.bags.tissue import draw_foci, draw_tissue
from asmil.synthetic.bags.world import SUB_MORPHOLOGIES, build_world, mahalanobis, orthonormal_rows

SMALL = SyntheticConfig(slides=12, width=16, tiles_min=50, tiles_max=300, witness_min=0.02)


def small(**changes: object) -> SyntheticConfig:
    return SMALL.model_copy(update=changes)


def test_the_parts_have_the_stated_proportions() -> None:
    splits = [plan.split for plan in plan_slides(small(slides=365))]
    assert [splits.count(name) for name in ("train", "val", "test")] == [200, 65, 100]
    splits = splits[:60]
    assert [splits.count(name) for name in ("train", "val", "test")] == [33, 11, 16]


@given(st.integers(1, 150), st.sampled_from([2, 3]), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_the_plan_is_fair(slides: int, classes: int, seed: int) -> None:
    plans = plan_slides(small(slides=slides, classes=classes, seed=seed))
    table = pd.DataFrame([(p.slide, p.patient, p.split, p.site, p.label) for p in plans])
    table.columns = pd.Index(["slide", "patient", "split", "site", "label"])
    assert table["slide"].is_unique
    for column in ("split", "site", "label"):
        assert (table.groupby("patient")[column].nunique() == 1).all()
    assert table.groupby("patient").size().max() <= 2
    for _, part in table.groupby("split"):
        counts = part["label"].value_counts().reindex(range(classes), fill_value=0)
        assert counts.max() - counts.min() <= 2
    assert set(table.loc[table["split"] == "test", "site"]) <= {4}
    assert set(table.loc[table["split"] != "test", "site"]) <= {0, 1, 2, 3}


def test_some_patients_have_two_slides() -> None:
    sizes = pd.Series([plan.patient for plan in plan_slides(small(slides=365))]).value_counts()
    assert 0.1 < (sizes == 2).mean() < 0.3


def test_the_site_follows_the_label_in_training_only() -> None:
    plans = plan_slides(small(slides=1460))
    agree = {split: np.mean([p.site % 2 == p.label for p in plans if p.split == split]) for split in ("train", "val")}
    assert agree["train"] == pytest.approx(0.8, abs=0.06)
    assert agree["val"] == pytest.approx(0.5, abs=0.1)


def test_a_longer_cohort_begins_with_the_shorter_one() -> None:
    short = list(make_synthetic(small(slides=5)))
    for before, after in zip(short, make_synthetic(small(slides=9)), strict=False):
        assert before.plan == after.plan
        np.testing.assert_array_equal(before.features, after.features)
        np.testing.assert_array_equal(before.layout.morphology, after.layout.morphology)


def test_the_seed_decides() -> None:
    first, again, other = (next(make_synthetic(small(seed=seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.features, again.features)
    assert first.features.shape != other.features.shape or not np.array_equal(first.features, other.features)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_truth_of_the_tiles(classes: int) -> None:
    config = small(slides=40, classes=classes, width=16)
    mixed = 0
    for slide in make_synthetic(config):
        layout, label = slide.layout, slide.plan.label
        n_tiles = len(layout.coords)
        assert slide.features.shape == (n_tiles, 16)
        assert slide.features.dtype == np.float32
        assert config.tiles_min <= n_tiles <= config.tiles_max
        assert len(np.unique(layout.coords, axis=0)) == n_tiles
        assert (layout.coords % 256 == 0).all()
        assert (layout.coords >= 0).all()
        assert (layout.coords + 256 <= layout.size_px).all()
        np.testing.assert_array_equal(layout.tumor, layout.focus > 0)
        assert set(layout.tissue) <= set(range(20))
        share = layout.tumor.mean()
        if label == 0:
            assert share == 0
            continue
        rounding = 0.5 / n_tiles
        assert config.witness_min - rounding <= share <= config.witness_max + rounding
        grade = (layout.morphology[layout.tumor] + SUB_MORPHOLOGIES - 1) // SUB_MORPHOLOGIES
        assert grade.max() == label
        mixed += grade.min() < label
        for focus in range(1, layout.focus.max() + 1):
            assert len(set(layout.morphology[layout.focus == focus])) == 1
    assert (mixed > 0) == (classes == 3)


@given(st.integers(20, 600), st.floats(0.01, 0.5), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_foci_are_connected_and_complete(n_tiles: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = draw_tissue(rng, n_tiles)
    n_lesion = max(1, round(share * n_tiles))
    focus = draw_foci(rng, positions, n_lesion)
    assert len(np.unique(positions, axis=0)) == n_tiles
    assert (focus > 0).sum() == n_lesion
    for number in range(1, focus.max() + 1):
        tiles = {tuple(position) for position in positions[focus == number].tolist()}
        assert tiles == _reached(tiles)


def _reached(tiles: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    start = min(tiles)
    seen, queue = {start}, deque([start])
    while queue:
        column, row = queue.popleft()
        for near in ((column + 1, row), (column - 1, row), (column, row + 1), (column, row - 1)):
            if near in tiles and near not in seen:
                seen.add(near)
                queue.append(near)
    return seen


def test_neighbors_mostly_share_their_tissue() -> None:
    config = small(tiles_min=600, tiles_max=600)
    layout = draw_layout(config, plan_slides(config)[0])
    tissue = {tuple(xy): kind for xy, kind in zip(layout.coords.tolist(), layout.tissue.tolist(), strict=True)}
    pairs = [(kind, tissue[x + 256, y]) for (x, y), kind in tissue.items() if (x + 256, y) in tissue]
    alike = np.mean([left == right for left, right in pairs])
    by_chance = (np.bincount(layout.tissue) / len(layout.tissue)) ** 2
    assert alike > by_chance.sum() + 0.2


@pytest.mark.parametrize(("difficulty", "expected"), [("medium", 4.0), ("hard", 2.5), (2.0, 2.0)])
def test_difficulty_is_the_distance_from_normal_tissue(difficulty: object, expected: float) -> None:
    config = small(difficulty=difficulty, classes=3)
    world = build_world(config)
    for morphology in range(SUB_MORPHOLOGIES):
        covariance = np.eye(config.width) + (world.wide[morphology].T * world.wide_sd**2) @ world.wide[morphology]
        for grade in (1, 2):
            appearance = config.clusters + (grade - 1) * SUB_MORPHOLOGIES + morphology
            step = world.centers[appearance] - world.centers[morphology]
            distance = np.sqrt(step @ np.linalg.solve(covariance, step))
            assert distance == pytest.approx(grade * expected)
            assert mahalanobis(step, world.wide[morphology], world.wide_sd) == pytest.approx(distance)


def test_tiles_spread_as_stated() -> None:
    world = build_world(small())
    tiles = world.tiles(np.random.default_rng(0), np.full(20000, 5))
    np.testing.assert_allclose(tiles.mean(axis=0), world.centers[5], atol=0.08)
    along = tiles @ world.wide[5][0]
    assert along.std() == pytest.approx(np.sqrt(1 + world.wide_sd[0] ** 2), rel=0.03)


def test_offsets_have_the_stated_length() -> None:
    world = build_world(small(site_shift=1.5, patient_shift=0.7))
    rng = np.random.default_rng(0)
    assert np.linalg.norm(world.site_offset(2)) == pytest.approx(1.5)
    assert np.linalg.norm(world.patient_offset(rng)) == pytest.approx(0.7)
    lengths = [np.square(world.stain_offset(rng)).sum() for _ in range(2000)]
    assert np.mean(lengths) == pytest.approx(1.0, rel=0.1)


def test_orthonormal_rows() -> None:
    rows = orthonormal_rows(np.random.default_rng(0), 6, 16)
    np.testing.assert_allclose(rows @ rows.T, np.eye(6), atol=1e-12)


def test_a_cohort_on_disk(tmp_path: Path) -> None:
    config = small()
    steps: list[tuple[int, int]] = []
    manifest = write_synthetic(tmp_path, config, lambda done, total: steps.append((done, total)))
    assert manifest == tmp_path / "cohort.csv"
    assert steps[-1] == (12, 12)
    cohort = pd.read_csv(manifest)
    assert list(cohort) == ["slide", "patient", "label", "split", "site"]
    assert set(cohort["label"]) == {"normal", "tumor"}
    truth = pd.read_parquet(tmp_path / "tile_truth.parquet")
    assert list(truth) == ["slide", "tile", "x", "y", "tumor", "morphology", "tissue", "focus"]
    for slide in make_synthetic(config):
        rows = truth[truth["slide"] == slide.plan.slide]
        with h5py.File(tmp_path / "features" / f"{slide.plan.slide}.h5") as file:
            assert file["features"].dtype == np.float16
            np.testing.assert_array_equal(file["features"][:], slide.features.astype(np.float16))
            np.testing.assert_array_equal(file["coords"][:], rows[["x", "y"]].to_numpy())
            assert file.attrs["mpp"] == 0.5
        np.testing.assert_array_equal(rows["tumor"], slide.layout.tumor)
        np.testing.assert_array_equal(rows["tile"], range(len(rows)))
        assert rows["tumor"].any() == (slide.plan.class_name == "tumor")
    assert SyntheticConfig(**yaml.safe_load((tmp_path / "synthetic.yaml").read_text())) == config
    assert not list(tmp_path.rglob("*.partial"))


def test_a_second_call_makes_only_what_is_missing(tmp_path: Path) -> None:
    write_synthetic(tmp_path, SMALL)
    kept, lost = (tmp_path / "features" / f"slide-000{n}.h5" for n in (0, 1))
    wanted = lost.read_bytes()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    write_synthetic(tmp_path, SMALL)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    lost.unlink()
    (tmp_path / "cohort.csv").unlink()
    write_synthetic(tmp_path, SMALL)
    assert lost.read_bytes() == wanted
    assert kept.stat().st_mtime_ns == before[kept]
    assert (tmp_path / "cohort.csv").is_file()


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    write_synthetic(tmp_path, small(slides=3))
    with pytest.raises(AsmilError, match="seed: there 0, asked 5"):
        write_synthetic(tmp_path, small(slides=3, seed=5))


def test_a_foreign_cohort_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cohort.csv").write_text("slide,label\n")
    with pytest.raises(AsmilError, match="cohort"):
        write_synthetic(tmp_path, SMALL)
    assert (tmp_path / "cohort.csv").read_text() == "slide,label\n"


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"classes": 4}, "classes"),
        ({"difficulty": "brutal"}, "difficulty"),
        ({"difficulty": 0}, "difficulty"),
        ({"tiles_min": 500, "tiles_max": 100}, "tiles_min"),
        ({"slide": 3}, "slides"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, object], word: str) -> None:
    with pytest.raises(AsmilError, match=word):
        parse_settings(SyntheticConfig, values)
