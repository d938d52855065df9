"""The share of affinely dependent bags: those in which matching bag features does not determine the attention.

Tiles x_1..x_N in R^D are affinely dependent if a psi other than 0 has sum psi_i = 0 and sum psi_i x_i = 0. Attention
can then move along psi without changing the bag feature. With s the singular values of X without its column means,

    tolerance = max(N, D) * eps * max(s_1, max |X|)
    rank      = number of s above the tolerance
    dependent <=> rank < N - 1                      always so, whatever the features, for N >= D + 2

eps is that of the type in which the features are stored, since their rounding is noise of that size. If the softmax of
bag features is matched, sum psi_i x_i = c (1, ..., 1) is enough: each row's mean is removed first, and N >= D + 1
decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asmil.cohort.features import read_bag
from asmil.cohort.manifest import Slide, read_manifest
from asmil.cohort.problems import Problem, problems_of
from asmil.cohort.reader import open_features
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError
from asmil.tables.arrays import Integers

Form = Literal["plain", "softmax"]
FORMS: tuple[Form, ...] = ("plain", "softmax")


@dataclass(frozen=True)
class AffineVerdict:
    """Whether a bag is dependent, and what decided it.

    by_count: N alone decides; rank and singular values are None if they were not needed
    exact_rank: the rank if the stored values are assumed to be exact, not rounded
    smallest_relevant: the (N - 1)-th singular value, None if there is none
    """

    n: int
    d: int
    by_count: bool
    dependent: bool
    rank: int | None = None
    exact_rank: int | None = None
    largest: float | None = None
    smallest_relevant: float | None = None
    tolerance: float | None = None

    @property
    def needed(self) -> int:
        """The rank of an independent bag."""
        return self.n - 1

    @property
    def within_rounding(self) -> bool:
        """Whether the bag is dependent only if the rounding of the stored values is taken into account."""
        return self.dependent and self.exact_rank is not None and self.exact_rank >= self.needed


def count_decides(n: int, d: int, form: Form = "plain") -> bool:
    """Whether n tiles of d features are dependent for any values of the features."""
    return n >= d + (2 if form == "plain" else 1)


def affine_dependence(
    features: NDArray[Any], eps: float, form: Form = "plain", magnitude: float | None = None
) -> AffineVerdict:
    """The verdict on N x D features, with rank and singular values even if the count decides.

    eps: of the type in which the features are stored
    magnitude: max |X| of the tolerance (default: of the features as they are given, for both forms)
    """
    values = np.asarray(features, dtype=np.float64)
    n, d = values.shape
    magnitude = float(np.abs(values).max()) if magnitude is None else magnitude
    if form == "softmax":
        values = values - values.mean(axis=1, keepdims=True)
    singular = np.linalg.svd(values - values.mean(axis=0), compute_uv=False)
    scale = max(n, d) * max(float(singular[0]), magnitude)
    rank = int((singular > scale * eps).sum())
    by_count = count_decides(n, d, form)
    return AffineVerdict(
        n=n,
        d=d,
        by_count=by_count,
        dependent=by_count or rank < n - 1,
        rank=rank,
        exact_rank=int((singular > scale * np.finfo(np.float64).eps).sum()),
        largest=float(singular[0]),
        smallest_relevant=float(singular[n - 2]) if 1 < n <= len(singular) + 1 else None,
        tolerance=scale * eps,
    )


def distinct_tiles(features: Tensor) -> Integers:
    """The rows (ascending) of N x D features that remain when copies of earlier tiles are removed."""
    raw = (features + 0).contiguous().view(torch.uint8).numpy()  # adding 0 turns -0 into 0
    _, first = np.unique(raw.view(f"V{raw.shape[1]}").ravel(), return_index=True)
    return np.sort(first)


@dataclass(frozen=True)
class SlideDependence:
    """The verdicts on a slide; `distinct` has those on its distinct tiles, if requested."""

    slide: str
    dtype: str
    verdicts: Mapping[Form, AffineVerdict]
    distinct: Mapping[Form, AffineVerdict] | None = None

    def row(self) -> dict[str, Any]:
        """One row of a table."""
        bag = self.verdicts["plain"]
        row: dict[str, Any] = {"slide": self.slide, "n_tiles": bag.n, "width": bag.d, "dtype": self.dtype}
        row |= _columns("", self.verdicts)
        if self.distinct is not None:
            row |= {"n_distinct": self.distinct["plain"].n} | _columns("distinct_", self.distinct)
        return row


@dataclass(frozen=True)
class Share:
    """The number of dependent slides, and what decided; slides that the count decides are all dependent.

    within_rounding: dependent slides that would be independent if the stored values were exact
    """

    slides: int
    dependent: int
    by_count: int
    by_rank: int
    within_rounding: int

    @property
    def share(self) -> float:
        """Dependent slides among all."""
        return self.dependent / self.slides if self.slides else float("nan")

    @property
    def share_if_exact(self) -> float:
        """The same if the stored values are assumed to be exact."""
        return (self.dependent - self.within_rounding) / self.slides if self.slides else float("nan")

    def to_dict(self) -> dict[str, float | None]:
        """All numbers; the shares of no slide are None."""
        shares = {"share": self.share, "share_if_exact": self.share_if_exact} if self.slides else {}
        return {"share": None, "share_if_exact": None} | shares | asdict(self)


@dataclass(frozen=True)
class CohortDependence:
    """The verdicts on all readable slides, and the problems of the others."""

    slides: tuple[SlideDependence, ...]
    problems: tuple[Problem, ...]

    def share(self, form: Form) -> Share:
        """The share of dependent slides."""
        return share_of([slide.verdicts[form] for slide in self.slides])

    def distinct_share(self, form: Form) -> Share:
        """The share of slides whose distinct tiles are dependent; zero slides if that was not requested."""
        return share_of([slide.distinct[form] for slide in self.slides if slide.distinct is not None])


def share_of(verdicts: list[AffineVerdict]) -> Share:
    """Count the verdicts of one form."""
    by_count = sum(verdict.by_count for verdict in verdicts)
    return Share(
        slides=len(verdicts),
        dependent=sum(verdict.dependent for verdict in verdicts),
        by_count=by_count,
        by_rank=len(verdicts) - by_count,
        within_rounding=sum(verdict.within_rounding for verdict in verdicts),
    )


def cohort_dependence(
    manifest: Path | str,
    features: Path | str | None = None,
    deduplicate: bool = False,
    progress: Progress | None = None,
) -> CohortDependence:
    """The verdict on every slide of a manifest; of bags that are decided by their size, only the header is read.

    deduplicate: also test the distinct tiles of every slide, which reads all features
    progress: called with the number of slides done and of all slides
    """
    cohort, problems, _ = read_manifest(manifest, features, kind=None)
    slides = []
    for done, slide in enumerate(cohort.slides, start=1):
        try:
            slides.append(slide_dependence(slide, deduplicate))
        except AsmilError as error:
            problems += problems_of(error, f"slide '{slide.slide}'")
        if progress is not None:
            progress(done, len(cohort))
    return CohortDependence(tuple(slides), tuple(problems))


def slide_dependence(slide: Slide, deduplicate: bool = False) -> SlideDependence:
    """The verdicts on one slide of a cohort."""
    with open_features(slide.source, mmap=True) as file:
        n, d, dtype = file.info.n_tiles, file.info.width, file.info.dtype
    if count_decides(n, d, "plain") and d > 0 and not deduplicate:
        return SlideDependence(slide.slide, dtype, {form: AffineVerdict(n, d, True, True) for form in FORMS})
    stored = read_bag(slide.source, slide.slide, slide.mpp).features
    distinct = None
    if deduplicate:
        rows = distinct_tiles(stored)
        distinct = dict(_verdicts(stored[torch.from_numpy(rows)]))
    return SlideDependence(slide.slide, dtype, dict(_verdicts(stored)), distinct)


def _verdicts(stored: Tensor) -> Iterator[tuple[Form, AffineVerdict]]:
    n, d = stored.shape
    eps = torch.finfo(stored.dtype).eps
    for form in FORMS:
        if count_decides(n, d, form):
            yield form, AffineVerdict(n, d, by_count=True, dependent=True)
        else:
            yield form, affine_dependence(stored.double().numpy(), eps, form)


def _columns(prefix: str, verdicts: Mapping[Form, AffineVerdict]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for form, verdict in verdicts.items():
        known = asdict(verdict) | {"needed": verdict.needed}
        columns |= {f"{prefix}{form}_{name}": value for name, value in known.items() if name not in ("n", "d")}
    return columns
