"""The plan of a synthetic cohort: the split, label, patient and site of every slide.

The first n slides of a longer cohort are the cohort of n slides, see `asmil.synthetic_plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from asmil.cohort.synthetic.settings import SyntheticConfig
from asmil.synthetic_plan import PlannedSlide, generator, parts_by_quota, patient_name, slide_name

PARTS = ("train", "val", "test")
SLIDES_IN_UNIT = 2


class Stream(IntEnum):
    """The purpose of a random stream; the numbers determine what a seed produces and must not change."""

    TISSUE = 0
    STAIN = 1
    MORPHOLOGY = 2
    SITE = 3
    LABELS = 4
    PAIRING = 5
    PATIENT = 6
    SLIDE_LAYOUT = 7
    SLIDE_FEATURES = 8
    OUTCOME = 9


@dataclass(frozen=True, slots=True)
class SlidePlan(PlannedSlide):
    """One planned slide, without tiles. `patient_address` identifies the patient's random stream."""

    patient_address: tuple[int, int, int]
    label: int
    class_name: str


def plan_slides(config: SyntheticConfig) -> list[SlidePlan]:
    """The slides of the cohort, in order.

    Within a split, slides come in pairs that share a label; with probability `paired` they also share the
    patient. Every `classes` successive pairs contain every label once, in random order.
    """
    first_slide_of: dict[tuple[int, int, int], int] = {}
    plans = []
    quota = dict(zip(PARTS, config.quota, strict=True))
    for index, (split, rank) in enumerate(parts_by_quota(config.slides, quota)):
        part = PARTS.index(split)
        unit, member = divmod(rank, SLIDES_IN_UNIT)
        if _is_paired(config, part, unit):
            member = 0
        address = (part, unit, member)
        patient = first_slide_of.setdefault(address, index)
        label = _label(config, part, unit)
        plans.append(
            SlidePlan(
                index=index,
                slide=slide_name(index),
                patient=patient_name(patient),
                patient_address=address,
                split=split,
                site=_site(config, split, label, address),
                label=label,
                class_name=config.class_names[label],
            )
        )
    return plans


def _is_paired(config: SyntheticConfig, part: int, unit: int) -> bool:
    return bool(generator(config.seed, Stream.PAIRING, part, unit).random() < config.paired)


def _label(config: SyntheticConfig, part: int, unit: int) -> int:
    block, position = divmod(unit, config.classes)
    return int(generator(config.seed, Stream.LABELS, part, block).permutation(config.classes)[position])


def _site(config: SyntheticConfig, split: str, label: int, address: tuple[int, int, int]) -> int:
    """Site of a patient: an unseen site for testing; in training, sites s = label (mod classes) are preferred."""
    rng = generator(config.seed, Stream.PATIENT, *address, 0)
    if split == "test":
        return config.sites + (int(rng.integers(config.test_sites)) if config.test_sites > 1 else 0)
    preferred = [site for site in range(config.sites) if site % config.classes == label]
    if split == "train" and preferred and rng.random() < config.site_bias:
        return int(rng.choice(preferred))
    return int(rng.integers(config.sites))
