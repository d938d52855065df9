"""Synthetic cohorts at the level of features, with the truth of every tile kept.

For a first run without slides, for tests, and for experiments in which the truth must be known. They contain:

- tissue of 20 kinds in coherent patches, on slides of several irregular fragments;
- tumor as a few foci that fill 0.5 to 20 percent of a slide, in three sub-morphologies, each close to a
  normal tissue (`difficulty` sets how close);
- nuisance that a careless model falls for: a stain offset of every slide, traits of a patient shared by the
  patient's slides, and a shift of every site, correlated with the label in the training part only. The
  test part comes from a site that training never saw.

The same slides can have classes, survival times with known hazards, a value, or several labels (`outcomes`).
Nothing here is tuned to a method.
"""

from __future__ import annotations

from asmil.cohort.synthetic.folder import write_synthetic
from asmil.cohort.synthetic.outcomes import SurvivalConfig
from asmil.cohort.synthetic.plan import SlidePlan, SyntheticConfig, plan_slides
from asmil.cohort.synthetic.slides import SyntheticSlide, make_synthetic

__all__ = [
    "SlidePlan",
    "SurvivalConfig",
    "SyntheticConfig",
    "SyntheticSlide",
    "make_synthetic",
    "plan_slides",
    "write_synthetic",
]
