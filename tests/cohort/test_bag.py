"""A bag that exists can be computed with: its values are finite in float32, its tiles lie on a slide."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asmil.cohort.bag import COORDS_UM, LARGEST_FEATURE, Bag
from asmil.cohort.features import FeatureSource, read_bag
from asmil.cohort.units import joined_bag
from asmil.errors import AsmilError
from feature_writers import WIDTH, grid, tiles, write_clam, write_tensor


@pytest.mark.parametrize(
    "value",
    [torch.tensor(1e200, dtype=torch.float64), torch.tensor(3e38), torch.tensor(-2e15), torch.tensor(-torch.inf)],
)
def test_what_overflows_in_a_model_is_refused(value):
    features = torch.ones(9, 4, dtype=value.dtype)
    features[5, 1] = value
    with pytest.raises(AsmilError, match=r"S-1: 1 of 9 tiles.*tile 5"):
        Bag(features, id="S-1")


@pytest.mark.parametrize(("dtype", "value"), [(np.float64, 1e200), (np.float32, 3e38), (np.float32, np.nan)])
def test_files_with_such_values_are_refused(tmp_path, dtype, value):
    features = tiles(dtype=dtype)
    features[3, 2] = value
    write_clam(tmp_path / "a.h5", features, grid())
    write_tensor(tmp_path / "b.pt", torch.from_numpy(features))
    for name in ("a.h5", "b.pt"):
        with pytest.raises(AsmilError, match=rf"S-7: 1 of 12 tiles.*tile 3.*{name}"):
            read_bag(FeatureSource(tmp_path / name), "S-7")


@given(
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(0, 7),
)
def test_a_bag_is_refused_exactly_if_a_value_is_beyond_the_limit(dtype, value, place):
    features = torch.zeros(2, 4, dtype=torch.float64)
    features.view(-1)[place] = value
    features = features.to(dtype)
    stored = float(features.view(-1)[place])
    if abs(stored) <= LARGEST_FEATURE:
        assert torch.isfinite(Bag(features).features.float().square().sum() * 1e6)
    else:
        with pytest.raises(AsmilError):
            Bag(features)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30, -2e9])
def test_coordinates_off_any_slide_are_refused(tmp_path, value):
    coords = grid().astype(np.float64)
    coords[4, 1] = value
    with pytest.raises(AsmilError, match=r"S-1.*1 of 12 tiles.*tile 4"):
        Bag(tiles(), coords, id="S-1")
    with pytest.raises(AsmilError, match=r"S-1.*tile 4"):
        Bag(tiles(), id="S-1", extras={COORDS_UM: torch.from_numpy(coords)})
    write_clam(tmp_path / "a.h5", tiles(), coords)
    with pytest.raises(AsmilError, match=r"a\.h5.*1 of 12 .*tile 4"):
        read_bag(FeatureSource(tmp_path / "a.h5"), "S-1")


def test_microns_stay_with_their_tiles():
    bags = [Bag(tiles(seed), id=str(seed), extras={COORDS_UM: torch.rand(12, 2)}) for seed in range(2)]
    chosen = torch.tensor([4, 1])
    assert torch.equal(bags[0].subset(chosen).places, bags[0].places[chosen])
    joined = joined_bag(bags, "p")
    assert torch.equal(joined.places, torch.cat([bag.places for bag in bags]))
    assert joined.width == WIDTH
    assert joined_bag([bags[0], Bag(tiles(3))], "p").places is None
