"""Slides at several magnifications, one file each, that are joined by coordinates."""

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from asmil.cohort.check import check_cohort
from asmil.cohort.features import Provenance, inspect_features, read_bag, write_features
from asmil.cohort.fingerprint import feature_contents, fingerprint
from asmil.cohort.loader import BagLoader
from asmil.cohort.locate import find_features
from asmil.cohort.magnifications import MAGNIFICATIONS_FILE, containing_tiles
from asmil.cohort.manifest import cohort_from_features, load_cohort
from asmil.cohort.pack.packing import pack_features
from asmil.cohort.source import FeatureSource
from asmil.errors import AsmilError
from asmil.slides.tiling import parent_tiles
from feature_writers import WIDTH, tiles, write_stamp, write_trident

SIDE, RATIO = 64, 4


def fine_grid(columns=6, rows=5):
    x, y = np.meshgrid(np.arange(columns) * SIDE, np.arange(rows) * SIDE)
    return np.stack([x.ravel(), y.ravel()], axis=1)


def write_parts(folder, slide="a", ratios=(1, RATIO), seed=0):
    """The tiles of a slide at several magnifications; returns their features and coordinates, finest first."""
    corners, written = fine_grid(), []
    for ratio in ratios:
        coords = parent_tiles(corners, SIDE, SIDE * ratio)
        features = tiles(seed + ratio, len(coords), np.float16)
        known = Provenance(encoder="made", tile_um=64.0 * ratio, tile_px=64, tile_px_level0=SIDE * ratio)
        write_features(folder / f"{ratio}" / f"{slide}.h5", features, coords, known)
        written.append((features, coords))
    (folder / MAGNIFICATIONS_FILE).write_text(yaml.safe_dump({"folders": [str(ratio) for ratio in ratios]}))
    return written


corners = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=60, unique=True)


@given(cells=corners, side=st.integers(1, 700), ratio=st.integers(2, 16), random=st.randoms(use_true_random=False))
def test_every_tile_lies_in_exactly_one_parent(cells, side, ratio, random):
    coords, parent_side = np.array(cells) * side, side * ratio
    parents = parent_tiles(coords, side, parent_side)
    inside = (coords[:, None] >= parents) & (coords[:, None] + side <= parents + parent_side)
    holders = inside.all(axis=2)
    assert (holders.sum(axis=1) == 1).all()
    assert holders.any(axis=0).all(), "a parent without tiles"
    random.shuffle(order := list(range(len(parents))))
    rows = containing_tiles(coords + side / 2, parents[order].astype(float), parent_side)
    assert (np.array(order)[rows] == holders.argmax(axis=1)).all()


def test_a_point_outside_of_all_tiles_has_none():
    assert containing_tiles(np.array([[5.0, 5.0], [25.0, 5.0]]), np.array([[0.0, 0.0]]), 10.0).tolist() == [0, -1]


def test_the_features_of_the_parents_are_appended(tmp_path):
    (fine, coords), (middle, middle_coords), (coarse, coarse_coords) = write_parts(tmp_path, ratios=(1, 2, 4))
    source = find_features(tmp_path)["a"]
    bag, info = read_bag(source, "a", verify=True), inspect_features(source)
    np.testing.assert_array_equal(bag.coords, coords)
    assert info.width == bag.width == 3 * WIDTH
    for tile, corner in zip(bag.features.numpy(), coords, strict=True):
        own, parent, grandparent = np.split(tile, 3)
        assert own in fine
        np.testing.assert_array_equal(parent, middle[(middle_coords == corner // 128 * 128).all(axis=1)][0])
        np.testing.assert_array_equal(grandparent, coarse[(coarse_coords == corner // 256 * 256).all(axis=1)][0])
    np.testing.assert_array_equal(bag.features[:, :WIDTH], fine)
    assert FeatureSource.parse(str(source)) == source


def test_a_cohort_of_several_magnifications_is_checked_loaded_and_packed(tmp_path):
    for number, slide in enumerate("abcdef"):
        write_parts(tmp_path / "features", slide, seed=100 * number)
    (tmp_path / "cohort.csv").write_text("slide,label\na,x\nb,y\nc,x\nd,y\ne,x\nf,y\n")
    report = check_cohort(tmp_path / "cohort.csv")
    assert not report.problems
    assert report.summary.width == 2 * WIDTH
    assert report.summary.bytes_on_disk == sum(path.stat().st_size for path in tmp_path.rglob("*.h5"))
    cohort = load_cohort(tmp_path / "cohort.csv")
    loaded = BagLoader(cohort.slides).bag(1).features
    packed = pack_features(cohort.slides, tmp_path / "pack").pack
    of_pack = cohort_from_features(packed.folder)["b"].source
    torch.testing.assert_close(read_bag(of_pack, "b").features, loaded)
    assert inspect_features(of_pack).coarser == inspect_features(cohort["b"].source).coarser


def test_a_change_of_the_coarser_tiles_is_noticed(tmp_path):
    _, (features, coords) = write_parts(tmp_path)
    slides = cohort_from_features(tmp_path).slides
    source = slides[0].source
    packed = pack_features(slides, tmp_path / "pack").pack
    before, stored = fingerprint(source), feature_contents(source)["features"].stored()
    write_features(tmp_path / "4" / "a.h5", features + 1, coords, Provenance(tile_px_level0=SIDE * RATIO))
    assert fingerprint(source) != before
    assert not feature_contents(source)["features"].is_same(stored)
    with pytest.raises(AsmilError, match=r"a: features"):
        pack_features(slides, packed.folder)


def test_tiles_without_parents_and_missing_files_are_named(tmp_path):
    for slide in ("a", "b", "c"):
        _, (features, coords) = write_parts(tmp_path / "features", slide)
    known = Provenance(tile_px_level0=SIDE * RATIO)
    write_features(tmp_path / "features" / "4" / "b.h5", features[1:], coords[1:], known)
    (tmp_path / "features" / "4" / "c.h5").unlink()
    (tmp_path / "cohort.csv").write_text("slide,label\na,x\nb,y\nc,x\n")
    problems = [str(problem) for problem in check_cohort(tmp_path / "cohort.csv").problems]
    assert any("b.h5" in problem and "16 of 30" in problem for problem in problems)
    assert any("4/c.h5" in problem for problem in problems)
    assert not any("a.h5" in problem for problem in problems)


@pytest.mark.parametrize("folders", ["20x", ["1"], [], [1, 2], ["1", "."], ["1", "nowhere"]])
def test_a_wrong_list_of_folders_is_one_sentence(tmp_path, folders):
    write_parts(tmp_path)
    (tmp_path / MAGNIFICATIONS_FILE).write_text(yaml.safe_dump({"folders": folders}))
    with pytest.raises(AsmilError, match=r"magnifications\.yaml|nowhere"):
        find_features(tmp_path)


def test_folders_of_trident_are_joined(tmp_path):
    fine, coarse = tmp_path / "20x_512px" / "features_uni_v1", tmp_path / "5x_512px" / "features_uni_v1"
    coords = fine_grid(8, 8) // SIDE * 512
    write_trident(fine / "a.h5", tiles(0, 64), coords)
    larger = parent_tiles(coords, 512, 2048)
    write_trident(coarse / "a.h5", tiles(1, len(larger)), larger, magnification=5, side=2048)
    (tmp_path / MAGNIFICATIONS_FILE).write_text(
        yaml.safe_dump({"folders": ["20x_512px/features_uni_v1", "5x_512px/features_uni_v1"]})
    )
    source = find_features(tmp_path)["a"]
    assert inspect_features(source).coarser == "4 x uni_v1"
    assert read_bag(source, "a").width == 2 * WIDTH


def test_microns_and_pixels_are_not_joined(tmp_path):
    write_parts(tmp_path)
    write_stamp(tmp_path / "4" / "a.h5", tiles(0, 4), np.zeros((4, 2)))
    with pytest.raises(AsmilError, match="um"):
        inspect_features(find_features(tmp_path)["a"])


def test_features_without_coordinates_are_not_joined(tmp_path):
    write_parts(tmp_path)
    (tmp_path / "4" / "a.h5").unlink()
    torch.save(torch.zeros(4, WIDTH), tmp_path / "4" / "a.pt")
    with pytest.raises(AsmilError, match=r"a\.pt"):
        inspect_features(find_features(tmp_path)["a"])
