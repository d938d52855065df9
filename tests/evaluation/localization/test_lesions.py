"""Evaluation masks against scipy's distances and numpy's eigenvalues, and the rules of CAMELYON16."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from asmil.errors import AsmilError
from asmil.evaluation.localization import evaluation_mask

masks = hnp.arrays(bool, st.tuples(st.integers(1, 24), st.integers(1, 24)), elements=st.booleans()).map(
    lambda mask: mask & (np.add.outer(np.arange(mask.shape[0]) * 7, np.arange(mask.shape[1]) * 3) % 5 == 0)
)


@given(masks, st.sampled_from([3.0, 5.0, 7.776, 12.5, 37.5, 50.0]))
@settings(max_examples=60)
def test_lesions_are_what_lies_near_tumor(tumor, um_per_pixel) -> None:
    found = evaluation_mask(tumor, um_per_pixel)
    near = np.zeros_like(tumor)
    if tumor.any():
        near = ndimage.distance_transform_edt(~tumor) < 75 / (um_per_pixel * 2)
    labels, count = ndimage.label(ndimage.binary_fill_holes(near), structure=np.ones((3, 3)))
    np.testing.assert_array_equal(found.labels, labels)
    assert len(found.areas_px) == count
    for label in range(1, count + 1):
        points = np.argwhere(labels == label)
        largest = np.linalg.eigvalsh(np.atleast_2d(np.cov(points.T, ddof=0)))[-1]
        assert found.areas_px[label - 1] == len(points)
        assert found.major_axes_px[label - 1] == pytest.approx(4 * np.sqrt(max(largest, 0)), abs=1e-9)
        assert (label in found.itc) == (found.major_axes_px[label - 1] < 275 / um_per_pixel)


def test_lesions_whose_margins_touch_are_one_and_the_inside_of_a_ring_belongs_to_it() -> None:
    tumor = np.zeros((60, 60), dtype=bool)
    tumor[5:8, 5:8] = tumor[5:8, 17:20] = True  # 9 px between them, 4 px margin on both sides
    assert len(evaluation_mask(tumor).areas_px) == 2
    tumor[5:8, 16] = True
    assert len(evaluation_mask(tumor).areas_px) == 1
    ring = np.hypot(*(np.mgrid[:60, :60] - 30))
    assert evaluation_mask((ring > 18) & (ring < 20)).labels[30, 30] == 1


def test_a_distance_of_exactly_the_margin_is_outside() -> None:
    tumor = np.zeros((1, 30), dtype=bool)
    tumor[0, 10] = True
    assert evaluation_mask(tumor, 7.5).areas_px.tolist() == [9]  # 37.5 um are 5 px: 4 on either side
    assert evaluation_mask(tumor, 7.49).areas_px.tolist() == [11]


def test_small_lesions_are_isolated_tumor_cells_by_the_slide_s_own_spacing() -> None:
    tumor = np.zeros((80, 80), dtype=bool)
    tumor[10:14, 10:14] = tumor[40:75, 40:75] = True
    found = evaluation_mask(tumor)
    assert found.itc == {1}
    assert found.n_lesions == 1
    assert evaluation_mask(tumor, um_per_pixel=80.0).itc == frozenset()
    assert evaluation_mask(tumor, itc_um=0.0).itc == frozenset()


def test_an_empty_mask_has_no_lesions() -> None:
    found = evaluation_mask(np.zeros((5, 7), dtype=bool))
    assert not found.labels.any()
    assert found.n_lesions == 0
    assert found.itc == frozenset()


def test_what_is_no_mask_is_refused() -> None:
    with pytest.raises(AsmilError, match="two axes"):
        evaluation_mask(np.zeros((2, 2, 3), dtype=bool))
    with pytest.raises(AsmilError, match="um_per_pixel"):
        evaluation_mask(np.zeros((2, 2), dtype=bool), um_per_pixel=0)
