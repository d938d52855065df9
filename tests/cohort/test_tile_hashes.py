"""Slides that are recognized by their tiles, whatever the order, the layout and the number type."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asmil import AsmilError
from asmil.cohort.check import check_cohort
from asmil.cohort.features import FeatureSource, Provenance, write_features
from asmil.cohort.leakage import duplicate_problems, refuse_leakage
from asmil.cohort.manifest import Cohort
from asmil.cohort.open_features import WORTH_TORCH, as_halves
from asmil.cohort.splits import make_splits
from asmil.cohort.tile_hashes import KEPT, are_one_slide, copies, sketch_of, tile_hashes, tile_sketch
from feature_writers import grid, make_slides, tiles, write_manifest, write_tensor

TILES = 40


def permuted(values):
    return values[np.random.default_rng(9).permutation(len(values))]


NEAR_COPIES = {
    "permuted": permuted,
    "one tile fewer": lambda values: values[1:],
    "a third fewer, permuted": lambda values: permuted(values)[: 2 * len(values) // 3],
    "some tiles more": lambda values: np.concatenate([values, tiles(77, 10)]),
    "permuted, in half precision": lambda values: permuted(values).astype(np.float16),
}


@pytest.mark.parametrize("change", NEAR_COPIES.values(), ids=NEAR_COPIES.keys())
def test_a_near_copy_under_another_patient_is_refused(tmp_path, change):
    slides = make_slides(tmp_path, 12, TILES)
    copy = change(tiles(1, TILES))
    write_features(tmp_path / "features" / "s08.h5", copy, grid(len(copy)), Provenance(encoder="uni"), "float32")
    cohort = Cohort(tmp_path / "cohort.csv", tuple(slides))
    with pytest.raises(AsmilError, match=r"'s01' and 's08'.*'p01' and 'p08'"):
        refuse_leakage(cohort, make_splits(cohort))
    report = check_cohort(write_manifest(tmp_path, slides))
    assert [("s01" in str(one), "s08" in str(one)) for one in report.errors] == [(True, True)]
    assert check_cohort(write_manifest(tmp_path, slides), deep=False).ok  # which reads only headers


def test_a_near_copy_without_coordinates_is_recognized(tmp_path):
    slides = make_slides(tmp_path, 4, TILES)
    path = tmp_path / "tensors" / "s03.pt"
    write_tensor(path, torch.from_numpy(permuted(tiles(0, TILES))))
    slides[3] = replace(slides[3], source=FeatureSource(path))
    (problem,) = duplicate_problems(slides)
    assert problem.severity == "error"
    assert all(name in str(problem) for name in ("'s00'", "'s03'", "s03.pt"))


def test_two_extractions_of_one_patient_are_a_warning(tmp_path):
    slides = make_slides(tmp_path, 4, TILES)
    write_features(tmp_path / "features" / "s03.h5", tiles(0, TILES)[1:], grid(TILES - 1), Provenance(), "float32")
    slides[3] = replace(slides[3], patient=slides[0].patient)
    (problem,) = duplicate_problems(slides)
    assert problem.severity == "warning"


def test_blank_tiles_do_not_make_slides_alike(tmp_path):
    """Every slide has the same 30 blank tiles of three kinds and 12 of its own; two are nearly blank."""
    blank = np.repeat(tiles(99, 3), 10, axis=0)
    slides = make_slides(tmp_path, 14, 12)
    for number, slide in enumerate(slides):
        own = tiles(number, 1 if number < 2 else 12)
        write_features(slide.source.path, np.concatenate([blank, own]), grid(30 + len(own)), Provenance(), "float32")
    assert duplicate_problems(slides) == []


def test_a_sketch_estimates_the_share_of_tiles_of_large_slides():
    draw = np.random.default_rng(4)
    values = draw.integers(0, 2**63, 60_000).astype(np.uint64)
    whole, part, other = sketch_of(values[:50_000]), sketch_of(values[:5_000]), sketch_of(values[50_000:])
    assert len(whole.hashes) == KEPT
    assert are_one_slide(whole, sketch_of(draw.permutation(values[:50_000])[1:]))
    assert are_one_slide(whole, part)
    assert not are_one_slide(whole, other)
    assert not are_one_slide(whole, sketch_of(np.concatenate([values[:2_000], values[50_000:]])))
    assert list(copies([other, whole, part], ["a", "b", "c"])) == [(1, 2)]


def test_few_tiles_must_all_be_the_same():
    one, two = sketch_of(np.array([5, 7], np.uint64)), sketch_of(np.array([7, 5, 5], np.uint64))
    assert are_one_slide(one, two)
    assert not are_one_slide(one, sketch_of(np.array([5, 7, 9], np.uint64)))
    assert not are_one_slide(sketch_of(np.zeros(0, np.uint64)), sketch_of(np.zeros(0, np.uint64)))


def test_hashes_do_not_change_between_versions_and_types(tmp_path):
    """They are stored with runs."""
    values = np.arange(14, dtype=np.float32).reshape(2, 7) / 8
    found = tile_hashes(torch.from_numpy(values))
    assert found.tolist() == tile_hashes(torch.from_numpy(values.astype(np.float16))).tolist()
    assert found.tolist() == FROZEN
    write_features(tmp_path / "a.h5", values, grid(2), Provenance())
    assert tile_sketch(FeatureSource(tmp_path / "a.h5")).hashes.tolist() == sorted(FROZEN)


FROZEN = [13788082305948318306, 17014300124154883554]


@pytest.mark.parametrize("rows", [3, WORTH_TORCH // 64])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int32"])
def test_half_precision_does_not_depend_on_the_library_that_rounds(rows, kind):
    values = np.random.default_rng(0).normal(size=(rows, 64)) * 10.0 ** np.arange(-16, 16).repeat(2)
    with np.errstate(over="ignore"):
        values = (values.clip(-1e9, 1e9) if kind == "int32" else values).astype(kind)
    halves = torch.from_numpy(values).half().numpy()
    np.testing.assert_array_equal(as_halves(values).view(np.uint16), halves.view(np.uint16))
