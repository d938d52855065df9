"""The engine of verbs that work on stored features, slide by slide."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asmil.engine.jobs import Engine

FEW_SLIDES = 2
"""Up to so many slides are computed in this process: starting others would take longer."""


def slide_engine(
    engine: str, address: str | None, workers: int | None, device: str, item_timeout: float | None, n_slides: int
) -> Engine:
    """The engine for a number of slides, from the options of the user."""
    from asmil.engine.inline import InlineEngine
    from asmil.extraction.machine import ExtractionMachine

    if engine == "local" and workers is None and item_timeout is None and n_slides <= FEW_SLIDES and address is None:
        return InlineEngine(1, device)
    return ExtractionMachine(engine, address, workers, device, item_timeout=item_timeout).prepare(n_slides)[0]
