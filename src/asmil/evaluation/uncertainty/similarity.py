"""Is a slide like the training slides? Distances in feature space with conformal p-values.

A slide is summarized by the mean x of its tile features (D numbers). Its distance to training patients with the mean m
and the covariance S of their summaries is Mahalanobis', d^2 = (x - m)' S^-1 (x - m), with S shrunk as Ledoit and Wolf
do and, outside its first directions, replaced by its mean variance. The patients are divided into folds: those of a
fold are held out, and S is fitted on the others. The p-value of a new slide compares its distance in each fold with
those of the patients held out; see `held_out`. It is small for a slide unlike all training slides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import eigh

from asmil.cohort.feature_structure import spaced
from asmil.cohort.manifest import Slide
from asmil.cohort.splits import Splits
from asmil.cohort.tile_hashes import slide_mean
from asmil.errors import AsmilError
from asmil.evaluation.statistics import combine_p
from asmil.evaluation.uncertainty.held_out import HeldOutScores, in_order_of_appearance, pooled_p_values
from asmil.runs.checkpoint import load_checkpoint, save_checkpoint
from asmil.runs.training_slides import patients_seen
from asmil.tables.arrays import Floats, Floats32, Integers

FILE = "similarity.safetensors"
"""In the run folder and in a bundle."""
FOLDS, DIRECTIONS = 5, 64
FEWEST_PATIENTS, MOST_PATIENTS = 20, 1000
"""With fewer training patients no p-value is below 0.05; of more, 1000 evenly spaced ones are used."""
FEWEST_IN_COHORT, COHORT_LEVEL = 10, 0.001
"""Patients that a cohort must have to be tested as a whole, and the level of this test."""
SMALL = 1e-9
"""Variances are not smaller than this part of the others."""


@dataclass(frozen=True, eq=False)
class Gaussian:
    """The distribution of summaries of slides.

    mean: D; directions: D x r, orthonormal or zero, as they are stored: in half precision
    variances: r + 1, along the directions and, last, in all others
    """

    mean: Floats32
    directions: Floats32
    variances: Floats32

    def distances(self, summaries: npt.ArrayLike) -> Floats:
        """n, of summaries n x D."""
        centered = np.asarray(summaries, dtype=np.float64) - self.mean
        along = centered @ self.directions.astype(np.float64)
        rest = np.maximum((centered**2).sum(axis=1) - (along**2).sum(axis=1), 0)
        squared: Floats = (along**2 / self.variances[:-1]).sum(axis=1) + rest / self.variances[-1]
        return np.sqrt(squared)


@dataclass(frozen=True, eq=False)
class Similarity:
    """What a run keeps to tell whether a slide is like its training slides, without names.

    gaussians: one per fold, fitted on the patients of the other folds
    folds, patients, distances: of every training slide (n): its fold, the number of its patient, and its distance to
        the patients of the other folds
    """

    gaussians: tuple[Gaussian, ...]
    folds: Integers
    patients: Integers
    distances: Floats

    @cached_property
    def _held_out(self) -> list[HeldOutScores]:
        folds = [self.folds == fold for fold in range(len(self.gaussians))]
        return [HeldOutScores.of(self.distances[fold], self.patients[fold]) for fold in folds]

    @property
    def width(self) -> int:
        """The number of features, D."""
        return len(self.gaussians[0].mean)

    def p_values(self, summaries: npt.ArrayLike) -> Floats:
        """n, of summaries of new slides n x D."""
        return pooled_p_values(self._held_out, [gaussian.distances(summaries) for gaussian in self.gaussians])

    def mean_distances(self, summaries: npt.ArrayLike) -> Floats:
        """n, the mean over folds of the distances of new slides n x D."""
        return np.asarray(np.mean([gaussian.distances(summaries) for gaussian in self.gaussians], axis=0))

    def p_value_of_joined(self, summaries: npt.ArrayLike) -> float:
        """Of m slides (m x D) of one patient: m times the smallest p-value, at most 1."""
        found = self.p_values(summaries)
        return min(1.0, len(found) * float(found.min()))

    def cohort_p_value(self, summaries: npt.ArrayLike, patients: Sequence[object]) -> float:
        """Whether a cohort as a whole is at other distances than the training patients; each patient counts once.

        In every fold, the mean distances of the new patients are compared with those of the held-out patients by the
        two-sample Kolmogorov-Smirnov test. Twice the mean of the p-values is valid under any dependence of the folds.
        """
        from scipy.stats import ks_2samp  # slow to import: half as long as torch

        found = []
        for fold, gaussian in enumerate(self.gaussians):
            held_out = self.folds == fold
            known = _patient_means(self.distances[held_out], self.patients[held_out])
            new = _patient_means(gaussian.distances(summaries), np.array([str(patient) for patient in patients]))
            found.append(float(ks_2samp(known, new).pvalue))
        return combine_p(found, "twice_mean")

    def save(self, folder: Path) -> None:
        """Write the file into a run folder or bundle."""
        tensors = {
            "means": torch.from_numpy(np.stack([each.mean for each in self.gaussians])),
            "directions": torch.from_numpy(np.stack([each.directions for each in self.gaussians])).half(),
            "variances": torch.from_numpy(np.stack([each.variances for each in self.gaussians])),
            "folds": torch.from_numpy(self.folds),
            "patients": torch.from_numpy(self.patients),
            "distances": torch.from_numpy(self.distances),
        }
        save_checkpoint(folder / FILE, tensors, {"patients": len(np.unique(self.patients))})


def read_similarity(folder: Path) -> Similarity | None:
    """The file of a run or bundle; None if it has none: an earlier version, or too few training patients."""
    path = folder / FILE
    if not path.exists():
        return None
    tensors, _ = load_checkpoint(path)
    try:
        stored = zip(*(tensors[name].float().numpy() for name in ("means", "directions", "variances")), strict=True)
        rest = (tensors[name].numpy() for name in ("folds", "patients", "distances"))
        return Similarity(tuple(Gaussian(*parts) for parts in stored), *rest)
    except (KeyError, ValueError, TypeError) as error:
        raise AsmilError(f"{path}: it does not describe training slides ({error}); restore it or train again") from None


def describe_similarity(slides: Sequence[Slide], splits: Splits) -> Similarity | None:
    """Fit the distances on the slides that have the role train or val in one of the folds of a run."""
    names = patients_seen(splits)
    seen = [slide for slide in slides if slide.slide in names]
    return fit_similarity(np.stack([slide_mean(slide.source) for slide in seen]), [slide.patient for slide in seen])


def fit_similarity(summaries: npt.ArrayLike, patients: Sequence[object]) -> Similarity | None:
    """Fit the distances on the summaries of training slides, n x D; None if there are too few patients.

    Slides with values that are not finite are left out.
    """
    given = np.asarray(summaries, dtype=np.float32)
    finite = np.isfinite(given).all(axis=1)
    names, numbers = np.unique(np.array([str(patient) for patient in patients])[finite], return_inverse=True)
    if len(names) < FEWEST_PATIENTS:
        return None
    chosen = np.isin(numbers, spaced(len(names), MOST_PATIENTS))
    given, numbers = given[finite][chosen], np.unique(numbers[chosen], return_inverse=True)[1].astype(np.int64)
    # patients by number, in random order: sites and outcomes are sorted in many tables
    folds = (np.random.default_rng(0).permutation(int(numbers.max()) + 1) % FOLDS)[numbers]
    gaussians, distances = [], np.zeros(len(given))
    for fold in range(FOLDS):
        held_out = folds == fold
        gaussians.append(_fit(_patient_means(given[~held_out], numbers[~held_out])))
        distances[held_out] = gaussians[-1].distances(given[held_out])
    order = np.lexsort((distances, folds))  # which says nothing about the order of the cohort
    return Similarity(tuple(gaussians), folds[order], in_order_of_appearance(numbers[order]), distances[order])


def _fit(summaries: Floats) -> Gaussian:
    """Summaries of patients, n x D."""
    n, width = summaries.shape
    mean = summaries.mean(axis=0)
    centered = summaries - mean
    products = centered @ centered.T / n  # n x n, with the same eigenvalues as the covariance
    count = min(DIRECTIONS, n - 1, width)
    eigenvalues, vectors = eigh(products, subset_by_index=(n - count, n - 1))
    kept = eigenvalues > SMALL * eigenvalues[-1]
    directions = centered.T @ (vectors[:, kept] / np.sqrt(n * eigenvalues[kept]))
    mean_variance = float(products.trace()) / width
    rest = (width * mean_variance - eigenvalues[kept].sum()) / max(width - kept.sum(), 1)
    shrinkage = _shrinkage(products, width)
    variances = (1 - shrinkage) * np.append(eigenvalues[kept], max(rest, 0)) + shrinkage * mean_variance
    smallest = max(SMALL * mean_variance, float(np.finfo(np.float32).tiny))
    # missing directions are zero, so that all folds have the same number of them
    stored = np.zeros((width, min(DIRECTIONS, width)), np.float32)
    stored[:, : kept.sum()] = directions.astype(np.float16)
    variances = np.insert(variances, kept.sum(), np.ones(stored.shape[1] - kept.sum()))
    return Gaussian(mean.astype(np.float32), stored, np.maximum(variances, smallest).astype(np.float32))


def _shrinkage(products: Floats, width: int) -> float:
    """Ledoit and Wolf's weight of the mean variance, from the inner products (n x n) of centered rows divided by n."""
    n = len(products)
    squared = float((products**2).sum())  # the squared Frobenius norm of the covariance
    spread = squared - float(products.trace()) ** 2 / width
    error = (n * float((products.diagonal() ** 2).sum()) - squared) / n
    return min(error / spread, 1.0) if spread > 0 else 1.0


def _patient_means(values: npt.NDArray[np.floating], patients: npt.NDArray[np.generic]) -> Floats:
    """The mean of the values (n, or n x D) of each patient's slides."""
    _, index, counts = np.unique(patients, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(sums, index, values.astype(np.float64))
    return np.asarray((sums.T / counts).T)
