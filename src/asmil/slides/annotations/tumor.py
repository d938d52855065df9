"""Which regions of an annotation are tumor: by the names of their classes, with what must be cut out taken away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from shapely.geometry import MultiPolygon

from asmil.slides.annotations.joining import joined, without
from asmil.slides.annotations.regions import AnnotatedRegion, Annotations

TUMOR_NAMES = frozenset(
    {
        "_0",
        "_1",
        "tumor",
        "tumour",
        "metastases",
        "metastasis",
        "cancer",
        "carcinoma",
        "malignant",
        "lesion",
        "positive",
    }
)
EXCLUSION_NAMES = frozenset({"_2", "exclusion", "exclude", "excluded", "hole", "negative"})
ASAP_EXCLUSION_NAMES = EXCLUSION_NAMES | {"normal"}
"""CAMELYON17 draws normal tissue inside metastases, and paints it over them."""
NO_CLASS = "(no class)"


@dataclass(frozen=True)
class ClassNames:
    """The classes that the user calls tumor, and those to be cut out of it; where none is named, the usual names."""

    tumor: Collection[str] = ()
    exclude: Collection[str] = ()


@dataclass(frozen=True)
class TumorArea:
    """The tumor of a slide, without what is cut out of it, and how many regions of which class it was made from.

    unknown: classes that are neither, so that their regions were not used
    """

    shape: MultiPolygon
    tumor: Counter[str] = field(default_factory=Counter)
    cut_out: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


def tumor_area(annotations: Annotations, names: ClassNames | None = None) -> TumorArea:
    """Join the regions whose class is tumor, and take the excluded ones away from all of them.

    Names are compared without regard to case. Where the user names none: a file in which no region has a class (but
    for those to be cut out) is all tumor, and so are all layers of an Aperio file.
    """
    names = names or ClassNames()
    excluding = _lowered(names.exclude) or (ASAP_EXCLUSION_NAMES if annotations.kind == "asap" else EXCLUSION_NAMES)
    cut_out, others = _parted(annotations.regions, lambda region: region.cut_out or _is_named(region, excluding))
    including = _lowered(names.tumor) or TUMOR_NAMES
    all_tumor = not names.tumor and (annotations.kind == "aperio" or all(region.group is None for region in others))
    tumor, unknown = _parted(others, lambda region: all_tumor or _is_named(region, including))
    shape = without(joined([region.shape for region in tumor]), joined([region.shape for region in cut_out]))
    return TumorArea(shape, _count(tumor), _count(cut_out), _count(unknown))


def _parted(
    regions: Iterable[AnnotatedRegion], chosen: Callable[[AnnotatedRegion], bool]
) -> tuple[list[AnnotatedRegion], list[AnnotatedRegion]]:
    """Those that are chosen and the others; regions are never compared, since comparing outlines takes long."""
    parts: tuple[list[AnnotatedRegion], list[AnnotatedRegion]] = ([], [])
    for region in regions:
        parts[not chosen(region)].append(region)
    return parts


def _is_named(region: AnnotatedRegion, names: Collection[str]) -> bool:
    return region.group is not None and region.group.lower() in names


def _lowered(names: Collection[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _count(regions: Sequence[AnnotatedRegion]) -> Counter[str]:
    return Counter(region.group or NO_CLASS for region in regions)
