"""Who is in a cohort of synthetic slides: the part, label, patient and site of every slide.

The first n slides of a longer cohort are the cohort of n slides: choices are made by quota, or from a stream
that the position of the slide addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from asmil.slides.synthetic.settings import SyntheticSlidesConfig
from asmil.slides.synthetic.streams import Stream, generator

SPLIT_QUOTA = {"train": 5, "val": 2, "test": 3}
SHARED_PATIENT = 0.3


@dataclass(frozen=True, slots=True)
class SlidePlan:
    """One slide before it is drawn."""

    index: int
    slide: str
    patient: str
    split: str
    site: int
    has_tumor: bool

    @property
    def label(self) -> str:
        """The label as it is written into the manifest."""
        return "tumor" if self.has_tumor else "normal"

    @property
    def site_name(self) -> str:
        """The site as it is written into the manifest, counted from 1."""
        return f"site-{self.site + 1}"


def plan_slides(config: SyntheticSlidesConfig) -> list[SlidePlan]:
    """The slides of the cohort, in order.

    Of every two slides of a part with the same label, some are of one patient.
    """
    taken = dict.fromkeys(SPLIT_QUOTA, 0)
    of_label: dict[tuple[str, bool], int] = {}
    first_slide_of: dict[tuple[int, ...], int] = {}
    plans = []
    for index in range(config.slides):
        split = _split_in_need(taken, index)
        has_tumor = _is_tumor(taken[split], config.tumor)
        taken[split] += 1
        rank = of_label.get((split, has_tumor), 0)
        of_label[split, has_tumor] = rank + 1
        address = _patient_address(config.seed, list(SPLIT_QUOTA).index(split), has_tumor, rank)
        patient = first_slide_of.setdefault(address, index)
        site = int(generator(config.seed, Stream.PLAN, 1, *address).integers(config.sites))
        plans.append(SlidePlan(index, f"slide-{index:04d}", f"patient-{patient:04d}", split, site, has_tumor))
    return plans


def _split_in_need(taken: dict[str, int], index: int) -> str:
    """The part that lies furthest below its quota of the first `index + 1` slides."""
    total = sum(SPLIT_QUOTA.values())
    return max(taken, key=lambda name: SPLIT_QUOTA[name] * (index + 1) - total * taken[name])


def _is_tumor(rank: int, share: float) -> bool:
    """Whether the slide of this rank in its part has tumor; the first n hold ceil(n share) that have."""
    return ceil((rank + 1) * share) > ceil(rank * share)


def _patient_address(seed: int, part: int, has_tumor: bool, rank: int) -> tuple[int, ...]:
    pair, member = divmod(rank, 2)
    shared = generator(seed, Stream.PLAN, 0, part, int(has_tumor), pair).random() < SHARED_PATIENT
    return part, int(has_tumor), pair, 0 if shared else member
