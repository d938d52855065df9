"""Common batches of several slides: every feature arrives in its own place, and nobody waits for ever."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asmil.engine.jobs import WorkerBroken
from asmil.errors import AsmilError
from asmil.extraction.batching import Batcher

CPU = torch.device("cpu")


def tiles_of(slide: int, n_tiles: int) -> np.ndarray:
    """Tiles whose pixels say which slide and tile they are."""
    tiles = np.zeros((n_tiles, 4, 4, 3), np.uint8)
    tiles[..., 0] = slide
    tiles[..., 1] = (np.arange(n_tiles) % 251)[:, None, None]
    return tiles


def means(tiles: torch.Tensor) -> torch.Tensor:
    return tiles.float().mean(dim=(1, 2))


def feed_slide(batcher: Batcher, slide: int, n_tiles: int, group: int, results: dict) -> None:
    tiles = tiles_of(slide, n_tiles)
    order = np.random.default_rng(slide).permutation(n_tiles)
    with batcher.feed(n_tiles) as feed:
        for start in range(0, n_tiles, group):
            rows = order[start : start + group]
            feed.add(tiles[rows], rows)
        results[slide] = feed.features()


def run_slides(batcher: Batcher, sizes: list[int], group: int) -> dict:
    results: dict = {}
    threads = [
        threading.Thread(target=feed_slide, args=(batcher, slide, size, group, results))
        for slide, size in enumerate(sizes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a slide waits for ever"
    return results


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    group=st.integers(1, 30),
    batch_size=st.integers(1, 40),
)
def test_every_feature_arrives_in_its_place(sizes, group, batch_size):
    batcher = Batcher(means, 3, CPU, batch_size)
    results = run_slides(batcher, sizes, group)
    batcher.close()
    for slide, size in enumerate(sizes):
        np.testing.assert_array_equal(results[slide], means(torch.from_numpy(tiles_of(slide, size))).numpy())


def test_batches_hold_tiles_of_several_slides_and_all_but_the_last_are_full():
    seen = []
    both_wait = threading.Barrier(2)

    def encode(tiles: torch.Tensor) -> torch.Tensor:
        seen.append(tiles[:, 0, 0, 0].tolist())
        return means(tiles)

    batcher = Batcher(encode, 3, CPU, 8)

    def feed(slide: int) -> None:
        with batcher.feed(6) as filling:
            both_wait.wait(10)
            filling.add(tiles_of(slide, 6), np.arange(6))
            filling.features()

    threads = [threading.Thread(target=feed, args=(slide,)) for slide in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    batcher.close()
    assert [len(batch) for batch in seen] == [8, 4]
    assert set(seen[0]) == {0, 1}


def test_a_slide_that_gives_up_takes_its_tiles_with_it():
    batcher = Batcher(means, 3, CPU, 100)

    def give_up() -> None:
        with batcher.feed(5) as feed:
            feed.add(tiles_of(1, 3), np.arange(3))
            raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable"):
        give_up()
    results = run_slides(batcher, [7], 3)
    batcher.close()
    np.testing.assert_array_equal(results[0][:, 0], np.zeros(7))
    assert batcher._waiting_tiles == 0


def test_a_broken_encoder_is_told_to_every_slide_and_breaks_the_worker():
    def encode(tiles: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: device lost")

    batcher = Batcher(encode, 3, CPU, 4)
    for _ in range(2):
        with pytest.raises(WorkerBroken, match="device lost"):
            feed_slide(batcher, 0, 9, 9, {})
    batcher.close()


def test_a_mistake_that_the_encoder_finds_is_the_users():
    def encode(tiles: torch.Tensor) -> torch.Tensor:
        raise AsmilError("tiles of 4 x 4 px are too small")

    batcher = Batcher(encode, 3, CPU, 4)
    with pytest.raises(AsmilError, match="too small"):
        feed_slide(batcher, 0, 1, 1, {})
    batcher.close()


def test_a_fast_reader_waits_for_the_encoder():
    """Memory stays bounded: no more than a few batches are queued, however fast tiles come."""
    go_on = threading.Event()
    most = 0

    def encode(tiles: torch.Tensor) -> torch.Tensor:
        nonlocal most
        go_on.wait(10)
        most = max(most, batcher._waiting_tiles)
        return means(tiles)

    batcher = Batcher(encode, 3, CPU, 4)
    results: dict = {}
    thread = threading.Thread(target=feed_slide, args=(batcher, 0, 200, 2, results))
    thread.start()
    thread.join(0.3)
    queued = batcher._waiting_tiles
    go_on.set()
    thread.join(10)
    batcher.close()
    assert queued <= 3 * 4 + 2
    assert most <= 3 * 4 + 2
    assert len(results[0]) == 200
