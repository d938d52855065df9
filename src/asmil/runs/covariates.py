"""The covariate term of a training: a linear model of encoded covariates, which is added to the logits of the method.

    logits = method(bag) + W e(covariates)

e and W are fitted on the training bags before the method is trained, W with the loss of the task (`tasks/linear.py`).
W is then fixed, so that the method learns what the covariates do not explain. W e + b, without the method, is the model
of the covariates alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, FiniteFloat
from torch import Tensor

from asmil.cohort.covariates import Cells, Covariate, CovariateEncoder, parse_covariates, with_kinds
from asmil.cohort.manifest import Cohort
from asmil.cohort.units import Unit
from asmil.errors import AsmilError
from asmil.files import write_json
from asmil.runs.config import RunConfig, with_settings
from asmil.settings.documents import read_json
from asmil.tasks.base import Task, Truth
from asmil.tasks.linear import LinearModel, fit_linear

COVARIATES_FILE = "covariates.json"
"""In the folder of a training: its encoder and the weights of its term."""
TERMS_FILE = "predictions_of_terms.parquet"
"""In the folder of a training, and for all trainings in the run folder: predictions of each term alone."""
IMAGE, COVARIATES = "image", "covariates"
"""Values of the column `term` in the file of predictions."""


class CovariateTerm(BaseModel):
    """The encoder, and the linear model of what it returns.

    weight: C x E, bias: C; the bias is only used if the covariates predict alone
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder: CovariateEncoder
    weight: tuple[tuple[FiniteFloat, ...], ...]
    bias: tuple[FiniteFloat, ...]

    @classmethod
    def fit(cls, covariates: Sequence[Covariate], task: Task, train: Sequence[Cells], targets: Truth) -> CovariateTerm:
        """The term of some training bags and their targets."""
        encoder = CovariateEncoder.fit(covariates, train)
        linear = fit_linear(task, encoder.encode(train), targets)
        return cls(encoder=encoder, weight=linear.weight.tolist(), bias=linear.bias.tolist())

    @property
    def _linear(self) -> LinearModel:
        shape = (len(self.bias), len(self.encoder.labels))
        return LinearModel(np.array(self.weight, dtype=np.float64).reshape(shape), np.array(self.bias))

    def offsets(self, rows: Sequence[Cells]) -> Tensor:
        """n x C, what is added to the logits of n bags."""
        return torch.from_numpy(self._linear.term(self.encoder.encode(rows))).float()

    def logits(self, rows: Sequence[Cells]) -> Tensor:
        """n x C logits of the covariates alone."""
        return torch.from_numpy(self._linear.logits(self.encoder.encode(rows))).float()

    def save(self, folder: Path) -> None:
        """Write the term into the folder of a training."""
        write_json(folder / COVARIATES_FILE, self.model_dump(mode="json"))


def read_term(folder: Path) -> CovariateTerm:
    """The term of a finished training."""
    path, remedy = folder / COVARIATES_FILE, f"restore it, or remove {folder} and train again"
    term = read_json(path, CovariateTerm, remedy)
    n_weights = {len(row) for row in term.weight}
    if len(term.weight) != len(term.bias) or n_weights != {len(term.encoder.labels)}:
        raise AsmilError(f"{path}: the number of weights does not match the encoder; {remedy}")
    return term


def with_covariate_kinds(config: RunConfig, cohort: Cohort, units: Sequence[Unit]) -> RunConfig:
    """The settings with the kind of every covariate, as its values in the cohort decide."""
    covariates = parse_covariates(config.data.covariates)
    if not covariates:
        return config
    kinds = [str(covariate) for covariate in with_kinds(cohort.path, units, covariates)]
    return with_settings(config, {"data.covariates": kinds})


def cells_of(units: Sequence[Unit]) -> list[Cells]:
    """The covariates of each unit; those of a patient's slides are the same."""
    return [unit.slides[0].covariates for unit in units]
