"""The memory of a bag is known before it is used up."""

import pytest
import torch

from asmil import AsmilError, Bag, build
from asmil.machine.memory import available_bytes
from asmil.models import inference
from asmil.models.inference import LiveBytes, bytes_needed, infer
from asmil.models.registry import methods

WHOLE = [name for name in methods() if not build(name, 32, 2).can_stream]
WIDTH = 64


def bag_of(n_tiles, width=WIDTH):
    place = torch.arange(n_tiles)
    coords = torch.stack([place % 128, place // 128], dim=1) * 256
    return Bag(torch.randn(n_tiles, width, generator=torch.Generator().manual_seed(0)), coords=coords, id="slide-7")


def test_bytes_are_counted_while_they_are_alive():
    kept = torch.zeros(1000)
    with LiveBytes() as live:
        kept.mul_(2).view(10, 100)  # makes nothing
        for _ in range(3):
            kept + 1
        assert live.peak == 4000
        first = kept + 1
        second = first + 1
    assert live.peak == live.now == 8000
    del first, second
    assert live.now == 0


@pytest.mark.heavy
@pytest.mark.parametrize("method", WHOLE)
def test_the_estimate_is_near_what_a_larger_bag_needs(method):
    model = build(method, WIDTH, 2).eval()
    bag = model.prepare(bag_of(9216))
    with torch.inference_mode(), LiveBytes() as live:
        model(bag)
    assert live.peak <= bytes_needed(model, bag) <= 1.6 * live.peak


@pytest.mark.heavy
def test_a_bag_that_does_not_fit_is_refused_with_its_name_and_need(monkeypatch):
    model, bag = build("transmil", WIDTH, 2), bag_of(5000)
    monkeypatch.setattr(inference, "ESTIMATED_FROM_TILES", 4500)
    expected = infer(model, bag).logits
    monkeypatch.setattr(inference, "available_bytes", lambda: 1000)
    with pytest.raises(AsmilError, match=r"slide-7.*GB.*5000"):
        infer(model, bag)
    monkeypatch.setattr(inference, "ESTIMATED_FROM_TILES", 5000)
    torch.testing.assert_close(infer(model, bag).logits, expected)


def test_methods_that_read_in_chunks_are_never_refused(monkeypatch):
    monkeypatch.setattr(inference, "ESTIMATED_FROM_TILES", 10)
    monkeypatch.setattr(inference, "available_bytes", lambda: 0)
    assert infer(build("abmil", WIDTH, 2), bag_of(5000), chunk_tiles=1000).logits.isfinite().all()


@pytest.mark.parametrize(
    "files",
    [
        {"memory.max": "3000\n", "memory.current": "1000\n"},
        {"memory/memory.limit_in_bytes": "3000", "memory/memory.usage_in_bytes": "1000"},
    ],
)
def test_the_limit_of_a_container_counts(tmp_path, files):
    free = available_bytes(tmp_path)
    assert free > 10_000
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == 2000


def test_a_container_without_a_limit_has_the_memory_of_the_machine(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes(tmp_path) > 10_000


@pytest.mark.parametrize("method", ["abmilx", "wikg"])
def test_a_training_step_keeps_no_matrix_of_all_pairs_of_tiles(method):
    n_tiles = 6000
    model, bag = build(method, 8, 2, inner=8).train(), bag_of(n_tiles, 8)
    with LiveBytes() as live:
        model(bag).logits.sum().backward()
    assert live.peak < 4 * n_tiles**2 / 2
