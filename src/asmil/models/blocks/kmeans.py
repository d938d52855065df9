"""K-means: which of k groups a row belongs to."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asmil.models.blocks.exporting import refuse_in_export
from asmil.models.blocks.layers import floating


def cluster(
    rows: Tensor | npt.NDArray[np.floating], k: int, seed: int = 0, restarts: int = 10, fit_rows: int | None = None
) -> Tensor:
    """The cluster of every row (N x D -> N, integers from 0), by Euclidean distance.

    Rows that are fewer than k make fewer clusters: one each. The centers start by k-means++ and the best of `restarts`
    starts is kept, all drawn from `seed`. fit_rows: find the centers on this many rows drawn at random; every row then
    goes to the nearest center.
    """
    refuse_in_export("k-means")
    # Imported here because it takes a second.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    # In float32, or float64 if given: half precision is too coarse for distances.
    if isinstance(rows, Tensor):
        rows = floating(rows).detach().cpu().numpy()
    values = rows if rows.dtype == np.float64 else rows.astype(np.float32, copy=False)
    n_rows = len(values)
    k = min(k, n_rows)
    if k <= 1:
        return torch.zeros(n_rows, dtype=torch.long)
    fit_on = values
    if fit_rows is not None and fit_rows < n_rows:
        chosen = np.random.default_rng(seed).choice(n_rows, size=max(k, fit_rows), replace=False)
        fit_on = values[np.sort(chosen)]
    with warnings.catch_warnings():
        # Rows that repeat may leave fewer distinct ones than k; there are then fewer clusters, which is fine.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = KMeans(k, init="k-means++", n_init=restarts, random_state=seed).fit(fit_on)
    labels = fitted.labels_ if fit_on is values else fitted.predict(values)
    return torch.from_numpy(np.asarray(labels, dtype=np.int64))
