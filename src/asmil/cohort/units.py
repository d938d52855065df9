"""The unit of prediction: a slide, or a patient with all slides joined into one bag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from asmil.cohort.bag import COORDS_UM, Bag
from asmil.cohort.manifest import Slide
from asmil.cohort.source import LOWRES, LOWRES_TILES
from asmil.errors import AsmilError

UnitKind = Literal["slide", "patient"]


@dataclass(frozen=True)
class Unit:
    """One bag of a cohort: named after its slide, or after the patient whose slides it joins."""

    name: str
    patient: str
    slides: tuple[Slide, ...]

    @staticmethod
    def of_slide(slide: Slide) -> Unit:
        return Unit(slide.slide, slide.patient, (slide,))


def units_of(slides: Sequence[Slide], kind: UnitKind) -> tuple[Unit, ...]:
    """The slides one by one, or grouped by patient, in the order of their first appearance in the manifest."""
    if kind == "slide":
        return tuple(map(Unit.of_slide, slides))
    by_patient: dict[str, list[Slide]] = {}
    for slide in slides:
        by_patient.setdefault(slide.patient, []).append(slide)
    return tuple(Unit(patient, patient, tuple(group)) for patient, group in by_patient.items())


def joined_bag(bags: Sequence[Bag], name: str) -> Bag:
    """The tiles of one or several slides as one bag; with several, `slide_index` is the slide of each tile.

    Coordinates stay relative to each slide. They are left out if a slide has none, and so are microns and
    low-magnification tiles.
    """
    if len(bags) == 1:
        return replace(bags[0], id=name)
    widths = {bag.width for bag in bags}
    if len(widths) > 1:
        raise AsmilError(
            f"{name}: its slides have {' and '.join(map(str, sorted(widths)))} features per tile; use one encoder"
        )
    sizes = torch.tensor([len(bag) for bag in bags])
    coords = [bag.coords for bag in bags if bag.coords is not None]
    lowres = [bag.extras[LOWRES][LOWRES_TILES] for bag in bags if LOWRES_TILES in bag.extras.get(LOWRES, {})]
    microns = [bag.extras[COORDS_UM] for bag in bags if COORDS_UM in bag.extras]
    extras: dict[str, Any] = {}
    if len(lowres) == len(bags):
        extras[LOWRES] = {LOWRES_TILES: torch.cat(lowres)}
    if len(microns) == len(bags):
        extras[COORDS_UM] = torch.cat(microns)
    return Bag(
        torch.cat([bag.features for bag in bags]),
        torch.cat(coords) if len(coords) == len(bags) else None,
        name,
        torch.repeat_interleave(torch.arange(len(bags)), sizes),
        extras,
        validated=True,
    )
