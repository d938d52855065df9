import threading
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asmil.cohort.features import FeatureSource
from asmil.cohort.loader import BagLoader
from asmil.errors import AsmilError
from feature_writers import make_slides


def reader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("asmil-bags")]


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    return make_slides(tmp_path_factory.mktemp("cohort"), 8, dtype="float16")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("prefetch", [0, 1, 4])
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.lists(st.integers(0, 7), max_size=20))
def test_bags_come_in_exactly_the_given_order(slides, prefetch, workers, order):
    loader = BagLoader(slides, cache="none", prefetch=prefetch, workers=workers)
    assert [bag.id for bag in loader.stream(order)] == [slides[index].slide for index in order]
    assert reader_threads() == []


def test_all_caches_give_the_same_bags(slides, tmp_path):
    def doubled(bag):
        return replace(bag, extras={"sum": bag.features.sum(dtype=torch.float32)})

    loaders = [
        BagLoader(slides, cache=cache, cache_folder=tmp_path, prepare=doubled)
        for cache in ("none", "memory", "disk", "auto")
    ]
    for _ in range(2):
        for bags in zip(*(loader.stream(range(8)) for loader in loaders), strict=True):
            for bag in bags[1:]:
                assert bag.features.dtype == torch.float16
                assert torch.equal(bag.features, bags[0].features)
                assert torch.equal(bag.coords, bags[0].coords)
                assert bag.extras["sum"] == bags[0].extras["sum"]


def test_memory_keeps_prepared_bags_and_none_reads_again(slides):
    prepared = []

    def note(bag):
        prepared.append(bag.id)
        return bag

    for cache, expected in (("memory", 8), ("none", 16)):
        prepared.clear()
        loader = BagLoader(slides, cache=cache, prepare=note)
        for _ in range(2):
            list(loader.stream(range(8)))
        assert len(prepared) == expected
    assert BagLoader(slides, cache="memory").bag(3).id == "s03"


def test_a_small_cohort_is_kept_in_memory(slides):
    assert BagLoader(slides, cache="auto").cache == "memory"


def test_errors_name_the_slide_and_leave_no_thread(slides, tmp_path):
    (tmp_path / "x.h5").write_bytes(b"nothing")
    broken = [
        *slides[:3],
        replace(slides[3], slide="the-broken-one", source=FeatureSource(tmp_path / "x.h5")),
    ]
    stream = BagLoader(broken, cache="none").stream(range(4))
    assert [next(stream).id for _ in range(3)] == ["s00", "s01", "s02"]
    with pytest.raises(AsmilError, match=r"the-broken-one.*x.h5"):
        next(stream)
    assert reader_threads() == []


def test_other_errors_keep_their_type_and_gain_a_note(slides):
    def fails(bag):
        raise ZeroDivisionError("inside prepare")

    with pytest.raises(ZeroDivisionError) as caught:
        list(BagLoader(slides, cache="none", prepare=fails).stream([2]))
    assert "slide 's02'" in caught.value.__notes__[0]


def test_closing_early_ends_the_threads(slides):
    stream = BagLoader(slides, cache="none", workers=2).stream(list(range(8)) * 50)
    next(stream)
    assert reader_threads()
    stream.close()
    assert reader_threads() == []


def test_reading_ahead_is_bounded(slides):
    read = []
    loader = BagLoader(slides, cache="none", prefetch=3, prepare=lambda bag: (read.append(bag.id), bag)[1])
    stream = loader.stream(range(8))
    next(stream)
    time.sleep(0.1)
    assert len(read) <= 4
    stream.close()


def test_wrong_settings_are_named(slides):
    with pytest.raises(AsmilError, match=r"'memroy'.*'memory'"):
        BagLoader(slides, cache="memroy")
    with pytest.raises(AsmilError, match="give cache_folder"):
        BagLoader(slides, cache="disk")
    assert list(BagLoader([], cache="disk").stream([])) == []


@pytest.mark.parametrize("cache", ["none", "memory", "disk"])
def test_what_prepare_adds_is_searched_for_once(slides, tmp_path, cache):
    searched = []

    def search(bag):
        if "neighbors" in bag.extras:
            return bag
        searched.append(bag.id)
        return replace(bag, extras={**bag.extras, "neighbors": {"near": torch.arange(len(bag))}})

    loader = BagLoader(slides, cache=cache, cache_folder=tmp_path, prepare=search)
    for _ in range(3):
        assert all(len(bag.extras["neighbors"]["near"]) == len(bag) for bag in loader.stream(range(8)))
    assert sorted(searched) == sorted(slide.slide for slide in slides)


def test_without_room_it_is_searched_for_again(slides):
    searched = []

    def search(bag):
        searched.append(bag.id)
        return replace(bag, extras={"neighbors": torch.arange(len(bag))})

    loader = BagLoader(slides, cache="none", prepare=search)
    loader._room_for_extras = 0
    for _ in range(2):
        list(loader.stream(range(8)))
    assert len(searched) == 16
