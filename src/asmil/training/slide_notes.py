"""Caveats about the slide of a prediction: how it may differ from the training slides."""

from __future__ import annotations

from collections.abc import Sequence

from asmil.cohort.extraction_record import read_extraction
from asmil.cohort.source import FeatureInfo

FEW_TILES = 10
COARSER = 1.2
"""If the pixels of a slide are this many times larger than those of its tiles, the slide was upsampled."""


def slide_notes(infos: Sequence[FeatureInfo]) -> str:
    """Notes on the slides of one prediction, joined; empty if there is nothing to report."""
    notes = [note for info in infos for note in _notes(info)]
    tiles = sum(info.n_tiles for info in infos)
    if tiles < FEW_TILES and not all(info.may_be_slide_vector for info in infos):
        notes.append(f"only {tiles} tile{'s' * (tiles != 1)}")
    return "; ".join(dict.fromkeys(notes))


def _notes(info: FeatureInfo) -> list[str]:
    notes = []
    if info.mpp is not None and info.tile_mpp is not None and info.mpp > COARSER * info.tile_mpp:
        notes.append(f"upsampled: the slide has {info.mpp:.3g} um/px, but its tiles have {info.tile_mpp:.3g}")
    if info.mpp_source is not None and "guess" in info.mpp_source:
        notes.append(f"the resolution of the slide ({info.mpp:.3g} um/px) is guessed")
    record = read_extraction(info)
    return [*notes, *(record.tissue.notes if record is not None else ())]
