"""On a GPU: common batches give the features of the CPU, in their places, whatever the memory allows."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from asmil.extraction.batching import Batcher
from asmil.slides.encoders.base import Encoder
from asmil.slides.encoders.registry import find_encoder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def drawn_tiles(n_tiles: int, tile_px: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n_tiles, tile_px, tile_px, 3), np.uint8)


def drawn_encoder(device: torch.device, precision: str = "float32") -> Encoder:
    entry = find_encoder("lunit_vits16")
    torch.manual_seed(0)
    return Encoder(entry.name, entry.build(), entry.width, "", entry.transform, device, precision)


def through_batches(encode, width: int, slides: list[np.ndarray], batch_size: int) -> list[np.ndarray]:
    batcher = Batcher(encode, width, CUDA, batch_size)
    results: dict[int, np.ndarray] = {}

    def feed(number: int, tiles: np.ndarray) -> None:
        with batcher.feed(len(tiles)) as filling:
            for start in range(0, len(tiles), 7):
                filling.add(tiles[start : start + 7], np.arange(start, min(start + 7, len(tiles))))
            results[number] = filling.features()

    threads = [threading.Thread(target=feed, args=item) for item in enumerate(slides)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    batcher.close()
    return [results[number] for number in range(len(slides))]


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 2e-3), ("bf16", 3e-2)])
def test_features_are_those_of_the_cpu(precision, tolerance):
    slides = [drawn_tiles(n_tiles, 224, n_tiles) for n_tiles in (33, 70)]
    encoder, reference = drawn_encoder(CUDA, precision), drawn_encoder(CPU)
    found = through_batches(encoder, encoder.width, slides, 32)
    for tiles, features in zip(slides, found, strict=True):
        expected = reference(torch.from_numpy(tiles)).numpy()
        error = np.linalg.norm(features - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert error.max() < tolerance


class Greedy(nn.Module):
    """Refuses more than five tiles, as a GPU that is full."""

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        if len(tiles) > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return tiles.float().mean(dim=(1, 2))


def test_a_batch_that_does_not_fit_is_halved():
    slides = [drawn_tiles(50, 8, 1), drawn_tiles(23, 8, 2)]
    found = through_batches(Greedy(), 3, slides, 16)
    for tiles, features in zip(slides, found, strict=True):
        np.testing.assert_allclose(features, tiles.astype(np.float64).mean(axis=(1, 2)), rtol=1e-5)
