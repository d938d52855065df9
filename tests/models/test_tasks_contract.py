"""Every registered method trains with every task, not only with classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asmil import AsmilError, Bag, build, methods
from asmil.tasks.survival import Survival

WIDTH = 24
EDGES = [0.0, 10.0, 20.0, 40.0]
TARGETS = torch.tensor([[5.0, 1.0], [25.0, 0.0], [12.0, 1.0]], dtype=torch.float64)
TASKS = {
    "incidence": Survival(EDGES),
    "hazard": Survival(EDGES, "hazard", alpha=0.3),
    "cox": Survival(None, "cox"),
}
NO_SINGLE_OUTPUT = {
    "clam_mb": "CLAM .*two",
    "clam_sb": "CLAM .*two",
    "hdmil": "HDMIL .*two",
    "dtfd": "dtfd .*single output",
}
"""Methods that tell classes apart by their outputs, so that Cox cannot train them, and what their refusal says."""


def make_bag(tiles: int) -> Bag:
    draw = np.random.default_rng(tiles)
    coords = np.stack([np.arange(tiles) % 7, np.arange(tiles) // 7], axis=1) * 256 + draw.integers(0, 90, (tiles, 2))
    return Bag(draw.normal(size=(tiles, WIDTH)).astype(np.float32), coords, id=f"patient-{tiles}")


@pytest.mark.parametrize("name", sorted(methods()))
@pytest.mark.parametrize("loss", TASKS)
def test_a_step_of_survival(name, loss):
    task = TASKS[loss]
    if task.n_outputs == 1 and name in NO_SINGLE_OUTPUT:
        with pytest.raises(AsmilError, match=NO_SINGLE_OUTPUT[name]):
            build(name, in_features=WIDTH, n_outputs=1)
        return
    torch.manual_seed(1)
    for stage in build(name, in_features=WIDTH, n_outputs=task.n_outputs).stages():
        model = stage.model.train()
        model.use_generator(torch.Generator().manual_seed(0))
        bags = [model.prepare(make_bag(tiles)) for tiles in (30, 20, 25)]
        outputs = [model(bag) for bag in bags]
        found = model.loss(outputs, TARGETS, task)
        assert torch.isfinite(found.total)
        assert found.parts.keys() >= {task.loss_name}
        found.total.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert any(gradient.abs().max() > 0 for gradient in gradients)
        model.after_step(bags[-1], outputs[-1], TARGETS[-1:])
