import json

import pytest
import torch

from asmil import AsmilError, build
from asmil.runs import checkpoint


def test_tensors_and_state_come_back_and_nothing_partial_is_left(tmp_path):
    path = tmp_path / "checkpoints" / "last.safetensors"
    tensors = {"a": torch.randn(3, 2).t(), "b": torch.arange(4), "c": torch.tensor(0.1, dtype=torch.float64)}
    state = {"epoch": 3, "best": {"score": 0.1 + 0.2, "epoch": 1}}
    checkpoint.save_checkpoint(path, tensors, state)
    loaded, told = checkpoint.load_checkpoint(path)
    assert told == state == json.loads(path.with_suffix(".json").read_text())
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert sorted(p.name for p in path.parent.iterdir()) == ["last.json", "last.safetensors"]


def test_optimizer_state_comes_back_to_the_bit():
    model = build("abmil", 8, 2)
    first, second = (torch.optim.Adam(model.parameters(), lr=1e-3) for _ in range(2))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    first.step()
    checkpoint.restore_optimizer(second, checkpoint.optimizer_tensors(first))
    for key, value in checkpoint.optimizer_tensors(first).items():
        assert torch.equal(checkpoint.optimizer_tensors(second)[key], value)


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"])
def test_a_damaged_checkpoint_is_named(tmp_path, content):
    path = tmp_path / "last.safetensors"
    path.write_bytes(content)
    with pytest.raises(AsmilError, match=r"last\.safetensors"):
        checkpoint.load_checkpoint(path)
    with pytest.raises(AsmilError, match=r"none\.safetensors"):
        checkpoint.load_checkpoint(tmp_path / "none.safetensors")


def test_weights_of_another_method_are_refused(tmp_path):
    theirs = build("asmil", 8, 2).state_dict()
    with pytest.raises(AsmilError, match=r"ABMIL \(\d+ missing"):
        checkpoint.restore_model(build("abmil", 8, 2), theirs, tmp_path / "x")
    wider = build("abmil", 16, 2).state_dict()
    with pytest.raises(AsmilError, match="of another shape"):
        checkpoint.restore_model(build("abmil", 8, 2), wider, tmp_path / "x")
