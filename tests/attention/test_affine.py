import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asmil.attention import affine
from asmil.attention.affine import affine_dependence, cohort_dependence, count_decides, distinct_tiles, slide_dependence
from asmil.cohort.features import FeatureSource
from asmil.cohort.manifest import Slide
from feature_writers import make_slides, write_clam, write_manifest, write_tensor
from shared_data import SHARED_DATA, shared_file

EPS = float(np.finfo(np.float32).eps)
seeds = st.integers(0, 10_000)


def random_bag(seed, n, d):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32).astype(np.float64)


def dependent(features, form="plain", eps=EPS):
    return affine_dependence(features, eps, form).dependent


@given(seeds, st.integers(1, 12), st.integers(1, 8))
def test_size_decides_for_random_bags(seed, n, d):
    """Random tiles are in general position: dependent if and only if there are too many."""
    features = random_bag(seed, n, d)
    for form, free in (("plain", d), ("softmax", d - 1)):
        verdict = affine_dependence(features, EPS, form)
        assert verdict.dependent == verdict.by_count == count_decides(n, d, form) == (n >= free + 2)
        assert verdict.rank == min(n - 1, free)


@given(seeds, st.integers(2, 10), st.sampled_from(["plain", "softmax"]))
def test_moving_scaling_and_reordering_tiles_changes_no_rank(seed, n, form):
    draw = np.random.default_rng(seed)
    features = random_bag(seed, n, 3) @ random_bag(seed + 1, 3, 12)
    expected = affine_dependence(features, EPS, form).rank
    assert expected == min(n - 1, 3)
    moved = 3 * draw.permutation(features, axis=0) + draw.standard_normal(12)
    assert affine_dependence(moved, EPS, form).rank == expected
    assert affine_dependence(features[:, draw.permutation(12)], EPS, form).rank == expected


@given(seeds, st.integers(2, 10))
def test_a_constant_on_all_channels_of_a_tile_is_invisible_to_softmax_only(seed, n):
    """Tiles that differ by such constants alone are one tile for the softmax of a bag feature."""
    draw = np.random.default_rng(seed)
    features = random_bag(seed, 1, 16) + np.arange(n)[:, None] * draw.uniform(0.5, 2)
    assert affine_dependence(features, EPS, "softmax").rank == 0
    assert dependent(features, "softmax")
    assert dependent(features) == (n > 2)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_two_equal_tiles_make_any_bag_dependent(n):
    features = random_bag(0, n, 40)
    assert not dependent(features)
    features[-1] = features[0]
    assert dependent(features)


def test_one_tile_is_independent():
    verdict = affine_dependence(np.array([[1.0, 2.0, 3.0]]), EPS)
    assert (verdict.dependent, verdict.rank, verdict.needed, verdict.smallest_relevant) == (False, 0, 0, None)


def test_rounding_of_the_stored_type_is_allowed_for():
    """On a plane of five dimensions, up to the rounding of float32: independent only if the values were exact."""
    plane = (random_bag(1, 20, 5) @ random_bag(2, 5, 64)).astype(np.float32)
    verdict = affine_dependence(plane, EPS)
    assert (verdict.rank, verdict.exact_rank, verdict.dependent, verdict.within_rounding) == (5, 19, True, True)
    assert not dependent(plane, eps=float(np.finfo(np.float64).eps))


def test_a_common_offset_makes_the_rounding_larger():
    features = random_bag(3, 6, 30)
    near, far = (affine_dependence(features + offset, EPS).tolerance for offset in (0.0, 1e5))
    assert far > 1000 * near
    assert affine_dependence(features + 1e5, EPS, "softmax").tolerance == far


def test_half_precision_is_too_coarse_to_tell_wide_bags_apart():
    features = random_bag(4, 10, 1024)
    verdict = affine_dependence(features, torch.finfo(torch.float16).eps)
    assert verdict.dependent
    assert verdict.within_rounding
    assert verdict.tolerance >= verdict.largest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_copies_are_found_in_every_type(dtype):
    features = torch.tensor([[1.0, 2], [0, 0], [1, 2], [-0.0, 0], [2, 1], [1, 2]], dtype=dtype)
    assert distinct_tiles(features).tolist() == [0, 1, 4]


def attention_pair(features, attention, form="plain"):
    """Both ends of the segment of attentions, through the one given, that have its bag feature (or its softmax)."""
    seen = features if form == "plain" else features - features.mean(axis=1, keepdims=True)
    kept = np.column_stack([seen, np.ones(len(features))])
    psi = np.random.default_rng(0).choice([-1.0, 1.0], len(features))
    for _ in range(2):  # the second time takes out what rounding left
        psi -= kept @ np.linalg.lstsq(kept, psi)[0]
    steps = [min((attention[way * psi < 0] / np.abs(psi[way * psi < 0])), default=0.0) for way in (1, -1)]
    return attention + steps[0] * psi, attention - steps[1] * psi


def random_attention(seed, n, spread=1.0):
    scores = spread * np.random.default_rng(seed).standard_normal(n)
    return np.exp(scores) / np.exp(scores).sum()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("n", "d"), [(18, 16), (66, 64), (80, 64), (386, 384)])
@pytest.mark.parametrize(("spread", "at_least"), [(0.0, 0.1), (1.0, 0.01)])
def test_two_attentions_have_the_same_bag_feature(n, d, seed, spread, at_least):
    """A tenth of all weight can be moved from flat attention; there is less room where tiles have little weight."""
    features = random_bag(seed, n, d)
    first, second = attention_pair(features, random_attention(seed, n, spread))
    for attention in (first, second):
        assert attention.min() > -1e-12
        assert attention.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(first - second).sum() / 2 > at_least
    assert np.abs(first @ features - second @ features).max() < 1e-10


@pytest.mark.parametrize("seed", range(3))
def test_one_tile_less_is_enough_where_softmax_is_matched(seed):
    features = random_bag(seed, 33, 32)
    pair = attention_pair(features, random_attention(seed, 33, spread=0.0), "softmax")
    assert np.abs(pair[0] - pair[1]).sum() / 2 > 0.1
    difference = (pair[0] - pair[1]) @ features
    assert np.abs(difference).max() > 1e-4
    assert np.ptp(difference) < 1e-10


def test_two_attentions_have_the_same_bag_feature_on_real_bags():
    """MUSK2, 166 features: of 102 bags the eight with 168 instances or more are dependent, and no other."""
    with np.load(shared_file(SHARED_DATA / "classic" / "musk2.npz")) as data:
        features, owner = data["features"].astype(np.float64), data["bag"]
    bags = [features[owner == bag] for bag in range(102)]
    large = [bag for bag in bags if affine_dependence(bag, EPS).dependent]
    assert [len(bag) for bag in large] == [len(bag) for bag in bags if len(bag) >= 168]
    assert len(large) == 8
    for bag in large:
        first, second = attention_pair(bag, random_attention(0, len(bag), spread=0.0))
        assert np.abs(first - second).sum() / 2 > 0.1
        assert np.abs(first @ bag - second @ bag).max() < 1e-10 * np.abs(bag).max()


def test_sparse_attention_can_be_pinned():
    """A tile without weight on either side of psi leaves no room: the claim needs positive attention."""
    features = random_bag(5, 18, 16)
    first, second = attention_pair(features, random_attention(5, 18))
    psi = first - second
    sparse = random_attention(5, 18)
    sparse[[psi.argmin(), psi.argmax()]] = 0
    sparse /= sparse.sum()
    pinned, also = attention_pair(features, sparse)
    assert np.array_equal(pinned, sparse)
    assert np.array_equal(also, sparse)


def slide_of(path):
    return Slide("s", "p", None, FeatureSource(path))


def test_only_the_header_of_a_large_bag_is_read(tmp_path, monkeypatch):
    path = tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        file["features"] = np.zeros((20_000, 64), np.float16)
        file["coords"] = np.zeros((20_000, 2), np.int64)
    monkeypatch.setattr(affine, "read_bag", lambda *_: pytest.fail("the features were read"))
    found = slide_dependence(slide_of(path))
    assert {form: verdict.by_count for form, verdict in found.verdicts.items()} == {"plain": True, "softmax": True}


def test_the_border_between_count_and_rank(tmp_path):
    for n, decided in ((6, (False, False)), (7, (False, True)), (8, (True, True))):
        path = tmp_path / f"{n}.pt"
        write_tensor(path, torch.from_numpy(random_bag(n, n, 6)))
        verdicts = slide_dependence(slide_of(path)).verdicts
        assert (verdicts["plain"].by_count, verdicts["softmax"].by_count) == decided
        assert verdicts["plain"].dependent == (n == 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_eps_is_that_of_the_stored_type(tmp_path, dtype):
    features = torch.from_numpy(random_bag(0, 4, 6)).to(dtype)
    write_tensor(tmp_path / "s.pt", features)
    found = slide_dependence(slide_of(tmp_path / "s.pt"))
    assert found.dtype == str(dtype).removeprefix("torch.")
    expected = affine_dependence(features.double().numpy(), torch.finfo(dtype).eps)
    assert found.verdicts["plain"] == expected
    assert expected.tolerance / torch.finfo(dtype).eps == pytest.approx(6 * expected.largest)


def test_a_cohort_is_counted_and_bad_slides_are_named(tmp_path):
    slides = make_slides(tmp_path, 8, tiles_each=5)
    paths = [slide.source.path for slide in slides]
    paths[0].unlink()
    broken = random_bag(0, 5, 6)
    broken[1, 2] = np.nan
    write_clam(paths[1], broken, np.zeros((5, 2), np.int64))
    with h5py.File(paths[2], "w") as file:
        file["features"] = np.empty((0, 6), np.float32)
    with h5py.File(paths[3], "w") as file:
        file["features"] = np.empty((9, 0), np.float32)
    write_clam(paths[4], random_bag(4, 7, 6), np.zeros((7, 2), np.int64))
    write_clam(paths[5], random_bag(5, 20, 6), np.zeros((20, 2), np.int64))
    seen = []
    found = cohort_dependence(write_manifest(tmp_path, slides), progress=lambda *done: seen.append(done))
    assert [slide.slide for slide in found.slides] == ["s04", "s05", "s06", "s07"]
    told = "\n".join(map(str, found.problems))
    for part in (
        "slide 's00'",
        "s01: 1 of 5 tiles",
        "slide s02",
        "s03: ",
    ):
        assert part in told
    assert len(found.problems) == 4
    assert seen[-1] == (7, 7)
    plain, softmax = found.share("plain"), found.share("softmax")
    assert (plain.slides, plain.dependent, plain.by_count, plain.by_rank) == (4, 1, 1, 3)
    assert (softmax.dependent, softmax.by_count, softmax.share) == (2, 2, 0.5)
    assert found.distinct_share("plain").slides == 0


def test_copies_are_taken_out_if_asked(tmp_path):
    slides = make_slides(tmp_path, 2, tiles_each=5)
    path = slides[0].source.path
    tiles = random_bag(0, 5, 6).astype(np.float32)
    write_clam(path, np.vstack([tiles, tiles, tiles[:1]]), np.zeros((11, 2), np.int64))
    found = cohort_dependence(write_manifest(tmp_path, slides), deduplicate=True)
    assert found.share("plain").dependent == 1
    distinct = found.distinct_share("plain")
    assert (distinct.slides, distinct.dependent, distinct.by_rank) == (2, 0, 2)
    row = found.slides[0].row()
    assert (row["n_tiles"], row["n_distinct"], row["plain_dependent"]) == (11, 5, True)
    assert (row["distinct_plain_dependent"], row["distinct_plain_rank"], row["distinct_plain_needed"]) == (False, 4, 4)
