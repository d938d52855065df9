"""The state of the process that decides bits: set inside a block, for all threads, and restored after it."""

import subprocess
import sys
import threading

import pytest
import torch

from asmil.machine.arithmetic import exact_arithmetic

TINY = torch.finfo(torch.float32).tiny


def zeros_among_denormals(n: int = 200_000) -> float:
    """The share of denormal products that are zero; so many that all of torch's threads compute some."""
    return float((torch.full((n,), TINY) * 0.5 == 0).double().mean())


@pytest.fixture(params=[1, 2])
def threads(request, monkeypatch):
    """In a process of asmil's own, as the command has it."""
    monkeypatch.setattr("asmil.machine.process._owned", True)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    zeros_among_denormals()  # torch's helper threads have begun, as they do in a process that did other things before
    yield request.param
    torch.set_flush_denormal(False)
    torch.set_num_threads(before)
    with exact_arithmetic():  # helper threads that began under the state of a test end
        pass


def test_denormals_are_zero_in_every_thread_and_as_before_afterwards(threads):
    assert zeros_among_denormals() == 0
    with exact_arithmetic():
        assert zeros_among_denormals() == 1
        with exact_arithmetic():
            assert zeros_among_denormals() == 1
        assert zeros_among_denormals() == 1
    assert zeros_among_denormals() == 0


def test_a_caller_that_flushes_denormals_still_does_afterwards(threads):
    torch.set_flush_denormal(True)
    with exact_arithmetic():
        assert zeros_among_denormals() == 1
    assert zeros_among_denormals() == 1


def test_an_error_restores_the_state_too(threads):
    @exact_arithmetic(threads=3 - threads)
    def fails() -> None:
        assert torch.get_num_threads() == 3 - threads
        assert zeros_among_denormals() == 1
        raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.get_num_threads() == threads
    assert zeros_among_denormals() == 0


def test_threads_that_begin_inside_compute_in_the_same_way(threads):
    found = []
    with exact_arithmetic():
        reader = threading.Thread(target=lambda: found.append(zeros_among_denormals(8)))
        reader.start()
        reader.join()
    assert found == [1]


def test_a_block_in_another_thread_has_its_own_beginning_and_end(threads):
    found = []

    def work() -> None:
        with exact_arithmetic():
            found.append(zeros_among_denormals())
        found.append(zeros_among_denormals())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert found == [1, 0]
    assert zeros_among_denormals() == 0


def test_a_program_keeps_its_helper_threads(threads, monkeypatch):
    """In a library call only the calling thread changes, and nothing is read or paused for the others."""
    monkeypatch.setattr("asmil.machine.process._owned", False)
    monkeypatch.setattr("asmil.machine.arithmetic._pause_helpers", lambda: pytest.fail("paused"))
    with exact_arithmetic():
        assert zeros_among_denormals(8) == 1
        assert zeros_among_denormals() == (1 if threads == 1 else 0.5)
    assert zeros_among_denormals() == 0
    monkeypatch.setattr("asmil.machine.arithmetic._pause_helpers", lambda: None)
    monkeypatch.setattr("asmil.machine.process._owned", True)


@pytest.mark.parametrize(
    "optimizer", ["adam", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("adamw", "lookahead_radam"))]
)
def test_training_imports_no_compiler(optimizer):
    """torch's compiler takes seconds to import; torch's own optimizers stay as they are."""
    code = (
        "import sys, asmil, numpy as np, torch\n"
        "before = dict(vars(torch.optim.Optimizer))\n"
        "bags = [np.random.default_rng(i).normal(size=(5, 8)).astype('float32') for i in range(4)]\n"
        f"settings = {{'training.optimizer': {optimizer!r}}}\n"
        "asmil.MILClassifier('abmil', epochs=1, validation_share=0, settings=settings).fit(bags, [0, 1] * 2)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "assert vars(torch.optim.Optimizer) == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
