"""Synthetic slides that look enough like H&E to try the pipeline end to end.

A slide is drawn in three steps. The *layout* (`layout.py`) places tissue, its compartments and tumor on a coarse
map; the *cells* (`cells.py`) place nuclei, glands, vacuoles and vessels in it; the *rendering*
(`rendering.py`) turns both, block by block, into concentrations of hematoxylin and eosin and these into
colors. Lengths are in microns until a block is rendered.
"""

from __future__ import annotations

from asmil.synthetic.slides.folder import write_synthetic_slides
from asmil.synthetic.slides.plan import SlidePlan, SyntheticSlidesConfig, plan_slides

__all__ = ["SlidePlan", "SyntheticSlidesConfig", "plan_slides", "write_synthetic_slides"]
