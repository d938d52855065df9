"""Memory of a GPU, shared by several processes."""

import pytest

from asmil.machine import memory


@pytest.fixture
def sharers():
    yield memory.share_gpus
    memory.share_gpus(1)


def test_programs_on_one_gpu_together_plan_with_no_more_than_it_has(sharers):
    total, each = 140 << 30, 1 << 30
    assert memory.gpu_part(free=total, used=0, total=total) == total
    sharers(15)
    fits = memory.how_many_fit(memory.gpu_part(free=total, used=0, total=total), each, 64)
    assert fits > 1
    assert 15 * fits * each <= memory.SHARE_OF_GPU * total
    assert memory.gpu_part(free=5 << 30, used=0, total=total) == 5 << 30, "others may have filled it"
    assert memory.gpu_part(free=total, used=total, total=total) == 0


def test_a_program_keeps_to_its_part_of_a_gpu_that_it_shares(sharers, monkeypatch):
    limits = []
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", lambda share, device: limits.append(share))
    sharers(15, "cpu")
    sharers(1, "cuda:0")
    assert limits == []
    sharers(15, "cuda:0")
    assert 0.5 < 15 * sum(limits) < 1
