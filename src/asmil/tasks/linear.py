"""A linear model of a task: logits = D V x + b, fitted with the loss of the task itself.

D (C x R, `Task.directions`) says which logits an input may move. For classes, labels and values, and for the Cox loss,
it is the identity: the model is logistic regression, linear regression or Cox's model. The logits of time bins move
together, so that the model has as many weights as Cox's: with hazards, all odds are multiplied by the same factor; with
incidences, events move to earlier or later bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from asmil.tables.arrays import Floats
from asmil.tasks.base import Task, Truth

MOST_STEPS = 200


@dataclass(frozen=True)
class LinearModel:
    """logits = W x + b; weight: W = D V, C x E; bias: C."""

    weight: Floats
    bias: Floats

    def term(self, inputs: Floats) -> Floats:
        """W x, n x C, of n x E inputs."""
        return np.asarray(inputs @ self.weight.T)

    def logits(self, inputs: Floats) -> Floats:
        """n x C."""
        return np.asarray(self.term(inputs) + self.bias)


def fit_linear(task: Task, inputs: Floats, targets: Truth) -> LinearModel:
    """Minimize the sum of the losses of the task + |V|^2 / 2, as scikit-learn's LogisticRegression does by default.

    A bag has one loss, or one per known label. Labels are thus fitted like a model each.
    inputs: n x E, standardized; targets: n, in the form of the task. b is not penalized.
    """
    from scipy.optimize import minimize  # takes half a second, and few commands fit anything

    rows, wanted, directions = torch.from_numpy(inputs), torch.as_tensor(targets), torch.from_numpy(task.directions)
    n_inputs, n_terms = rows.shape[1], max(1, task.loss_terms(wanted))
    n_outputs, n_directions = directions.shape

    def parts(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return flat[n_outputs:].view(n_directions, n_inputs), flat[:n_outputs]

    def loss_and_gradient(values: Floats) -> tuple[float, Floats]:
        with torch.enable_grad():
            flat = torch.tensor(values, requires_grad=True)
            weight, bias = parts(flat)
            logits = rows @ weight.T @ directions.T + bias
            loss = task.loss(logits, wanted) + weight.square().sum() / (2 * n_terms)
        (gradient,) = torch.autograd.grad(loss, flat)
        return float(loss.detach()), gradient.numpy()

    start = np.zeros(n_outputs + n_directions * n_inputs)
    options = {"maxiter": MOST_STEPS, "ftol": 1e-13, "gtol": 1e-7}
    weight, bias = parts(
        torch.from_numpy(minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options).x)
    )
    return LinearModel((directions @ weight).numpy(), bias.numpy())
