"""Who is in a synthetic cohort: the part, label, patient and site of every slide.

The first n slides of a longer cohort are the cohort of n slides: every choice is made by quota or from a
stream that the position of the slide addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from asmil.cohort.synthetic.settings import SyntheticConfig
from asmil.cohort.synthetic.streams import Stream, generator

PARTS = ("train", "val", "test")
SLIDES_IN_UNIT = 2


@dataclass(frozen=True, slots=True)
class SlidePlan:
    """One slide before it has tiles. `patient_address` singles out the patient's random stream."""

    index: int
    slide: str
    patient: str
    patient_address: tuple[int, int, int]
    split: str
    site: int
    label: int
    class_name: str

    @property
    def site_name(self) -> str:
        """The site as it is written into the manifest, counted from 1."""
        return f"site-{self.site + 1}"


def plan_slides(config: SyntheticConfig) -> list[SlidePlan]:
    """The slides of the cohort, in order.

    Within a part, slides come in units of two that share a label; with probability `paired` they share the
    patient too. Every `classes` successive units hold every label once, in random order.
    """
    first_slide_of: dict[tuple[int, int, int], int] = {}
    taken = dict.fromkeys(PARTS, 0)
    plans = []
    for index in range(config.slides):
        split = _split_in_need(config.quota, taken, index)
        part, rank = PARTS.index(split), taken[split]
        taken[split] += 1
        unit, member = divmod(rank, SLIDES_IN_UNIT)
        if _is_paired(config, part, unit):
            member = 0
        address = (part, unit, member)
        patient = first_slide_of.setdefault(address, index)
        label = _label(config, part, unit)
        plans.append(
            SlidePlan(
                index=index,
                slide=f"slide-{index:04d}",
                patient=f"patient-{patient:04d}",
                patient_address=address,
                split=split,
                site=_site(config, split, label, address),
                label=label,
                class_name=config.class_names[label],
            )
        )
    return plans


def _split_in_need(quota: tuple[int, int, int], taken: dict[str, int], index: int) -> str:
    """The part that lies furthest below its quota of the first `index + 1` slides; 200 : 65 : 100 after 73 slides."""
    shares = dict(zip(PARTS, quota, strict=True))
    return max(taken, key=lambda name: shares[name] * (index + 1) - sum(quota) * taken[name])


def _is_paired(config: SyntheticConfig, part: int, unit: int) -> bool:
    return bool(generator(config.seed, Stream.PAIRING, part, unit).random() < config.paired)


def _label(config: SyntheticConfig, part: int, unit: int) -> int:
    block, position = divmod(unit, config.classes)
    return int(generator(config.seed, Stream.LABELS, part, block).permutation(config.classes)[position])


def _site(config: SyntheticConfig, split: str, label: int, address: tuple[int, int, int]) -> int:
    """Site of a patient: an unseen one at test; in training, sites s = label (mod classes) are preferred."""
    rng = generator(config.seed, Stream.PATIENT, *address, 0)
    if split == "test":
        return config.sites + (int(rng.integers(config.test_sites)) if config.test_sites > 1 else 0)
    preferred = [site for site in range(config.sites) if site % config.classes == label]
    if split == "train" and preferred and rng.random() < config.site_bias:
        return int(rng.choice(preferred))
    return int(rng.integers(config.sites))
