"""Synthetic cohorts of features with known truth for every tile.

They are meant for a first run without slides, for tests, and for experiments that need the truth. They contain:

- tissue of 20 kinds in coherent patches, on slides of several irregular fragments;
- tumor as a few foci that fill 0.5 to 20 percent of a slide, in three sub-morphologies, each close to a
  normal tissue (`difficulty` sets how close);
- nuisance factors that mislead a careless model: a stain offset of every slide, traits of a patient shared by the
  patient's slides, and a shift of every site, correlated with the label in the training set only. The
  test set comes from a site that training never saw.

The same slides can have classes, survival times with known hazards, a value, or several labels (`outcomes`).
Nothing is tuned to a particular method.
"""

from __future__ import annotations

from asmil.synthetic.bags.folder import write_synthetic
from asmil.synthetic.bags.outcomes import SurvivalConfig
from asmil.synthetic.bags.plan import SlidePlan, SyntheticConfig, plan_slides
from asmil.synthetic.bags.slides import SyntheticSlide, make_synthetic

__all__ = [
    "SlidePlan",
    "SurvivalConfig",
    "SyntheticConfig",
    "SyntheticSlide",
    "make_synthetic",
    "plan_slides",
    "write_synthetic",
]
