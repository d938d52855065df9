"""What a user can choose when a run is localized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from asmil.cohort.splits import Roles
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.localization.points import Conversion
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling
from asmil.slides.annotations import ClassNames


@dataclass(frozen=True)
class LocalizeSettings:
    """All that a user can choose.

    annotations or truth: a folder of annotations, or a table of tiles; one of them is needed
    cohort, features: in place of the manifest that the run was trained on, and of its features
    scalings: besides `minmax`; none: `gated`, or `times_n` where no class is normal
    normal: labels of normal slides
    classes, mask_value: which annotated classes, and which value of a mask, are tumor
    skip_list: a file of slides to leave out
    """

    annotations: Path | None = None
    truth: Path | None = None
    cohort: Path | None = None
    features: Path | None = None
    role: Roles = "test"
    preset: str = "release"
    conversion: Conversion = "nms"
    radius: int = 3
    scalings: tuple[Scaling, ...] = ()
    heatmap: str | None = None
    normal: tuple[str, ...] = ()
    classes: ClassNames = field(default_factory=ClassNames)
    mask_value: int | None = None
    skip_list: Path | None = None
    resamples: int = 2000
    seed: int = 0
    device: str = "auto"


def known_scalings(names: Iterable[str]) -> tuple[Scaling, ...]:
    """The names as scalings; others are refused."""
    chosen = tuple(names)
    for name in chosen:
        if name not in THRESHOLDS:
            raise AsmilError(f"--scaling {name}: there is no such scaling; {did_you_mean(name, THRESHOLDS)}")
    return cast(tuple[Scaling, ...], chosen)
