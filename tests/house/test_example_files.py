"""The scripts and notebooks in `examples` run, and notebooks are stored without outputs."""

import importlib
import json

import pytest
import torch

from shared_data import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with torch.random.fork_rng(devices=[]):
        yield


def test_a_plain_loop_trains_with_an_anchor():
    module = importlib.import_module("plain_loop")
    model, anchor, losses = module.train(epochs=3)
    assert losses[-1] < losses[0]
    bag, _ = module.synthetic_bags()[1]
    assert not torch.equal(anchor.attend(bag), model.attend(bag))


def test_a_lightning_module_restores_its_anchor(tmp_path):
    pytest.importorskip("lightning", reason="only the extra dev has it")
    module = importlib.import_module("lightning_module")
    trained, path = module.train(str(tmp_path), epochs=1)
    loaded = module.AnchoredMIL.load_from_checkpoint(path, weights_only=True)
    torch.testing.assert_close(loaded.state_dict(), trained.state_dict(), rtol=0, atol=0)
    assert any(name.startswith("anchor.") for name in loaded.state_dict())
    fresh = module.AnchoredMIL()
    assert not torch.equal(fresh.anchor.copy.tokens, loaded.anchor.copy.tokens)


@pytest.mark.heavy
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in code:
        assert not cell["outputs"]
        exec(compile("".join(cell["source"]), f"{path.name}:{cell['id']}", "exec"), names)
    made = {"arrays_with_scikit_learn": (), "features_to_report": ("report",), "attention_map": ("attention.png",)}
    assert all((tmp_path / name).exists() for name in made.get(path.stem, ()))
    assert names.get("accuracy", 1.0) > 0.6
    matplotlib.pyplot.close("all") if hasattr(matplotlib, "pyplot") else None


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3
