"""The classic sets and UCSB breast as cohorts: one slide per bag. `asmil classic` reads the same files directly."""

from __future__ import annotations

import numpy as np
import pandas as pd

from asmil.classic.reading import SUFFIXES, read_set
from asmil.datasets.cohort_plan import CohortPlan, array_writer, published_digests
from asmil.datasets.downloads import Downloads

CLASSES = ("negative", "positive")
FILES = {
    "musk1": ("musk1", "clean1"),
    "musk2": ("musk2", "clean2"),
    "fox": ("fox",),
    "tiger": ("tiger",),
    "elephant": ("elephant",),
    "ucsb_breast": ("ucsb_breast", "ucsb_breast_cancer"),
}
"""The names of the files of a set, without their endings."""


def plan_bag_set(downloads: Downloads, dataset: str, name: str, classes: tuple[str, str] = CLASSES) -> CohortPlan:
    """A set from a file of any format that `asmil classic` reads.

    Some published files have the label as one more feature; it is left out if the others are the published ones.
    """
    path = downloads.find(*(f"{stem}{suffix}" for stem in FILES[name] for suffix in SUFFIXES))
    bag_set = read_set(path or downloads.need(*(f"{stem}.*" for stem in FILES[name])))
    published = published_digests()[f"{dataset}/{name}"]["bags"]
    if bag_set.n_features > 1 and bag_set.without_last_column().fingerprint() == published:
        bag_set = bag_set.without_last_column()
    slides = [f"{name}-{bag:03d}" for bag in range(bag_set.n_bags)]
    table = pd.DataFrame({"slide": slides, "label": np.array(classes)[bag_set.label]})
    bags = dict(zip(slides, bag_set.bags(), strict=True))
    return CohortPlan(table, {"bags": bag_set.fingerprint()}, array_writer(bags))
