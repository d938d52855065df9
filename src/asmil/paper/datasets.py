"""The data sets of the paper: how they are split, how many slides they have, and synthetic stand-ins of the same shape.

A stand-in has the counts, classes and sites of the data set, and rates of tumor tiles as far as they are published
(CAMELYON: few tiles; BRACS: many). Its features are synthetic, so its results say nothing about the data set itself.
In none of the data sets is the site known to depend on the label, so it does not in the stand-ins, unless a site bias
is asked for: a shortcut that training can learn and that is useless on the sites of the test set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from asmil.errors import AsmilError, did_you_mean
from asmil.experiments.settings import CohortConfig
from asmil.synthetic.bags import SurvivalConfig, SyntheticConfig
from asmil.tasks.base import TaskKind

Size = Literal["quick", "small", "full"]
BACKBONES = {
    "resnet18_imagenet": "hard",
    "vit_s_ssl": "medium",
    "resnet18_simclr": "medium",
    "pathgen_clip_vit_l": "easy",
    "uni_vit_l": "easy",
}
"""The difficulty of the stand-in for the features of each encoder."""
USUAL_BACKBONE = "vit_s_ssl"
FORMER_SITE_BIAS = 0.6
"""Of the stand-ins of versions without the setting."""


@dataclass(frozen=True)
class Dataset:
    """A data set as the paper splits it.

    parts: slides of train, val and test; val 0: a tenth of train is drawn anew for every seed
    classes: of a stand-in, 2 or 3
    sites, test_sites: of the training and of the test set
    tokens: FEAT tokens of ASMIL, as the paper chose
    censored: share of censored patients, for survival
    """

    id: str
    parts: tuple[int, int, int]
    task: TaskKind = "classification"
    classes: Literal[2, 3] = 2
    sites: int = 2
    test_sites: int = 1
    witness: tuple[float, float] = (0.005, 0.2)
    tokens: int = 8
    censored: float = 0.5
    folds: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def slides(self) -> int:
        return sum(self.parts)


_TENTH = {"data.val_share": 0.1}
DATASETS = {
    data_set.id: data_set
    for data_set in (
        # the paper names 130 and 129 test slides; the official test set has 129
        Dataset("camelyon16", (270, 0, 129), witness=(0.002, 0.1), settings=_TENTH),
        # the paper does not say how many classes it uses; the stand-in has two
        Dataset("camelyon17", (300, 0, 200), sites=3, test_sites=2, witness=(0.002, 0.1), tokens=16, settings=_TENTH),
        Dataset("bracs", (395, 65, 87), classes=3, sites=1, witness=(0.05, 0.4)),
        # folds of 5-fold cross-validation by patient; features of CONCH
        *(
            Dataset(f"tcga_{name}", (patients, 0, 0), task="survival", sites=4, censored=censored, folds=5)
            for name, patients, censored in (
                ("blca", 373, 0.54),
                ("brca", 956, 0.86),
                ("gbmlgg", 569, 0.67),
                ("luad", 453, 0.65),
                ("ucec", 480, 0.83),
            )
        ),
    )
}


def dataset(name: str) -> Dataset:
    """A data set by its id; the error for an unknown id names the nearest."""
    if name not in DATASETS:
        raise AsmilError(f"the paper has no data set {name!r}: {did_you_mean(name, DATASETS)}")
    return DATASETS[name]


@dataclass(frozen=True)
class Scale:
    """How large a run of a recipe is."""

    slides: float
    most_slides: int
    width: int
    tiles: tuple[int, int]
    epochs: int
    seeds: int
    settings: Mapping[str, Any] = field(default_factory=dict)


_RARE_CHECKPOINTS = {"training.checkpoint_seconds": 600}
SCALES: dict[Size, Scale] = {
    "quick": Scale(0.06, 30, 32, (20, 60), 2, 2, _RARE_CHECKPOINTS),
    "small": Scale(0.35, 150, 128, (100, 1000), 20, 3, _RARE_CHECKPOINTS),
    "full": Scale(1.0, 10_000, 384, (200, 5000), 50, 5),
}
QUICK_CENSORED = 0.5


def stand_in(data_set: Dataset, size: Size, backbone: str = USUAL_BACKBONE, site_bias: float = 0.0) -> CohortConfig:
    """A synthetic cohort with the sizes of a data set; `quick` and `small` keep the proportions of its parts.

    site_bias: probability that a training patient comes from a site chosen by the label
    """
    scale = SCALES[size]
    slides = max(20, min(scale.most_slides, round(scale.slides * data_set.slides)))
    survives = data_set.task == "survival"
    synthetic = SyntheticConfig(
        slides=slides,
        quota=(1, 0, 0) if survives else data_set.parts,
        classes=data_set.classes,
        width=scale.width,
        tiles_min=scale.tiles[0],
        tiles_max=scale.tiles[1],
        witness_min=max(data_set.witness[0], 1.0 / scale.tiles[0]),
        witness_max=max(data_set.witness[1], 1.0 / scale.tiles[0]),
        difficulty=BACKBONES.get(backbone, "medium"),
        sites=data_set.sites,
        test_sites=data_set.test_sites,
        site_bias=site_bias,
        seed=sum(map(ord, data_set.id)) % 1000,  # the same for all kinds of features
    )
    # a fold of a smoke size has too few events for time bins where nearly all patients are censored
    censored = min(data_set.censored, QUICK_CENSORED) if size == "quick" else data_set.censored
    survival = SurvivalConfig(censored=censored) if survives else SurvivalConfig()
    return CohortConfig(synthetic=synthetic, task=data_set.task, survival=survival, settings=dict(data_set.settings))
