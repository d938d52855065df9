"""Synthetic slides: the layout with the truth of every tile, and the features on top of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.synthetic.bags.plan import SlidePlan, Stream, SyntheticConfig, plan_slides
from asmil.synthetic.bags.tissue import MARGIN_TILES, draw_foci, draw_patches, draw_tissue
from asmil.synthetic.bags.world import SUB_MORPHOLOGIES, World, build_world
from asmil.synthetic.plan import generator, log_uniform
from asmil.tables.arrays import Floats, Integers

TILE_PX = 256
TISSUE_EVENNESS = 1.0
SLIDE_LIKE_PATIENT = 30.0
MIXED_MALIGNANT_SLIDES = 0.8
ATYPICAL_FOCI = 0.3


@dataclass(frozen=True)
class SlideLayout:
    """Positions and truth of the N tiles of a slide.

    coords: N x 2 top-left corners in level-0 pixels; size_px: width and height of the slide
    tissue: N kinds of normal tissue (below a lesion: the kind it replaced)
    morphology: N, 0 = normal tissue, 1 .. 3 = tumor (three classes: 1 .. 3 atypical, 4 .. 6 malignant)
    focus: N, 0 = none, 1, 2, ... = the focus a tile belongs to
    """

    coords: Integers
    size_px: tuple[int, int]
    tissue: Integers
    morphology: Integers
    focus: Integers

    @property
    def tumor(self) -> npt.NDArray[np.bool_]:
        """N: whether a tile is in a lesion of any morphology."""
        return np.asarray(self.morphology > 0)


@dataclass(frozen=True)
class SyntheticSlide:
    """A slide with its N x D features."""

    plan: SlidePlan
    layout: SlideLayout
    features: npt.NDArray[np.float32]


def make_synthetic(config: SyntheticConfig) -> Iterator[SyntheticSlide]:
    """The slides of a cohort, one by one; slide i is the same in longer cohorts with the same seed."""
    world = build_world(config)
    for plan in plan_slides(config):
        layout = draw_layout(config, plan)
        yield SyntheticSlide(plan, layout, draw_features(world, plan, layout))


def draw_layout(config: SyntheticConfig, plan: SlidePlan) -> SlideLayout:
    """Tissue, foci and morphologies of a slide."""
    rng = generator(config.seed, Stream.SLIDE_LAYOUT, plan.index)
    patient = generator(config.seed, Stream.PATIENT, *plan.patient_address, 1)
    patient_tissue = patient.dirichlet(np.full(config.clusters, TISSUE_EVENNESS))
    patient_morphology = patient.dirichlet(np.ones(SUB_MORPHOLOGIES))

    n_tiles = round(log_uniform(rng, config.tiles_min, config.tiles_max))
    positions = draw_tissue(rng, n_tiles)
    composition = rng.dirichlet(SLIDE_LIKE_PATIENT * patient_tissue + 1 / config.clusters)
    tissue = draw_patches(rng, positions, composition)
    focus = np.zeros(n_tiles, dtype=np.int64)
    if plan.label > 0:
        witness_rate = log_uniform(rng, config.witness_min, config.witness_max)
        focus = draw_foci(rng, positions, max(1, round(witness_rate * n_tiles)))
    morphology = _morphology_of_foci(rng, plan.label, int(focus.max()), patient_morphology)[focus]
    columns, rows = positions.max(axis=0) + 1 + MARGIN_TILES
    return SlideLayout(
        coords=positions * TILE_PX,
        size_px=(int(columns) * TILE_PX, int(rows) * TILE_PX),
        tissue=tissue,
        morphology=morphology,
        focus=focus,
    )


def draw_features(world: World, plan: SlidePlan, layout: SlideLayout) -> npt.NDArray[np.float32]:
    """N x D features of a slide: its tiles, and the offsets of slide, patient and site."""
    seed = world.config.seed
    rng = generator(seed, Stream.SLIDE_FEATURES, plan.index)
    patient = generator(seed, Stream.PATIENT, *plan.patient_address, 2)
    offset = world.stain_offset(rng) + world.patient_offset(patient) + world.site_offset(plan.site)
    features = world.tiles(rng, world.appearance(layout.tissue, layout.morphology))
    features += offset.astype(np.float32)
    return features


def _morphology_of_foci(rng: np.random.Generator, label: int, n_foci: int, preference: Floats) -> Integers:
    """Morphology of focus 0 (none), 1, 2, ...; the first focus always has the grade of the label.

    A slide with label g has morphologies of grade g; with three classes, most malignant slides (grade 2) also
    contain some atypical foci (grade 1).
    """
    kind = rng.choice(SUB_MORPHOLOGIES, size=n_foci, p=preference)
    grade = np.full(n_foci, label)
    if label > 1 and rng.random() < MIXED_MALIGNANT_SLIDES:
        grade[1:] -= rng.random(max(0, n_foci - 1)) < ATYPICAL_FOCI
    return np.concatenate([[0], 1 + kind + SUB_MORPHOLOGIES * (grade - 1)]).astype(np.int64)
