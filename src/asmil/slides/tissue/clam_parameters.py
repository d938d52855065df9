"""CLAM's tables of parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from asmil.slides.settings import ClamConfig, ClamPreset

REFERENCE_PX = 512
"""The side of the square in which areas are told, level-0 pixels."""


@dataclass(frozen=True)
class ClamParameters:
    """What decides CLAM's search for tissue; the meaning of each is told by `ClamConfig`."""

    sthresh: int
    mthresh: int
    close: int
    a_t: float
    a_h: float
    max_n_holes: int
    otsu: bool = False
    reference_px: int = REFERENCE_PX

    def reference_area(self, downsample: tuple[float, float]) -> int:
        """The unit of `a_t` and `a_h` in pixels of a level."""
        return int(self.reference_px**2 / (downsample[0] * downsample[1]))


PRESETS: dict[ClamPreset, ClamParameters] = {
    "default": ClamParameters(sthresh=8, mthresh=7, close=4, a_t=100, a_h=16, max_n_holes=8),
    "bwh_biopsy": ClamParameters(sthresh=15, mthresh=11, close=2, a_t=1, a_h=1, max_n_holes=2),
    "bwh_resection": ClamParameters(sthresh=15, mthresh=11, close=4, a_t=100, a_h=16, max_n_holes=8),
    "tcga": ClamParameters(sthresh=8, mthresh=7, close=4, a_t=16, a_h=4, max_n_holes=8),
}


def resolve_clam(config: ClamConfig) -> ClamParameters:
    """The preset's parameters, with those that the user gave instead."""
    names = ("sthresh", "mthresh", "close", "a_t", "a_h", "max_n_holes")
    given = {name: value for name in names if (value := getattr(config, name)) is not None}
    return replace(PRESETS[config.preset], otsu=config.otsu, **given)
