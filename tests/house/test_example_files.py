"""The scripts and notebooks in `examples` run, and notebooks are stored without outputs."""

import importlib
import json
import re

import pytest
import torch

from patience import PATIENCE_S
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


def test_notebooks_are_stored_as_they_were_written():
    assert len(NOTEBOOKS) >= 3
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path.name


@pytest.mark.heavy
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_jupyter(path, tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="only the extra dev has it")
    nbclient = pytest.importorskip("nbclient", reason="only the extra dev has it")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(notebook, timeout=int(PATIENCE_S), resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # a cell that fails raises
    shown = {output.output_type for cell in notebook.cells for output in cell.get("outputs", ())}
    printed = " ".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    if path.stem == "arrays_with_scikit_learn":
        assert float(re.search(r"\} ([\d.]+)", printed)[1]) > 0.6
    elif path.stem == "features_to_report":
        assert (tmp_path / "report" / "report.html").is_file()
        assert "execute_result" in shown
    elif path.stem == "attention_map":
        assert (tmp_path / "attention.png").is_file()
        assert "display_data" in shown
