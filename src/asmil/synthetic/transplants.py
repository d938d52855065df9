"""Transplants: bags of real feature vectors, a few witnesses of one tissue in a background of another.

Features, their correlations and the effects of sites are real, and the truth of every tile is known. The background of
a bag is made by joining slides of one site; a positive bag also has witnesses, vectors of slides of the other cohort.

No source slide is in bags of two patients. The sites of both cohorts are divided into groups, and a group is the
`patient` of all bags that are made of its slides. Whatever is grouped by patient (the split of the manifest, folds,
validation sets, leaving out sites) therefore never has vectors of one source slide, patient or site on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, model_validator

from asmil.cohort.features import Provenance, read_bag, write_features
from asmil.cohort.manifest import load_cohort
from asmil.cohort.tile_truth import TRUTH_FILE
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError
from asmil.files import replacing, write_text
from asmil.settings.config import Settings
from asmil.synthetic.plan import MANIFEST, claim_cohort, generator, log_uniform, parts_by_quota, slide_name
from asmil.tables.columns import PARTS

SETTINGS_FILE = "transplants.yaml"
CLASS_NAMES = ("normal", "tumor")
QUOTA = dict(zip(PARTS, (200, 65, 100), strict=True))
TILE_PX, MPP = 1024, 0.5
"""Tiles lie on a square grid; their positions are made up."""


class TransplantConfig(Settings):
    """Settings of a cohort of transplants.

    slides: number of bags; they are split 200 : 65 : 100 into train, val and test
    tiles_min, tiles_max: the number of tiles is log-uniform between them, and at most that of the largest site
    witnesses: number of tiles of the other tissue in a positive bag
    prevalence: share of positive bags
    label_noise: probability that the label of a training or validation bag is wrong; labels of test bags are right
    site_bias: probability that a training bag comes from a site chosen by the label
    """

    slides: int = Field(60, ge=1)
    tiles_min: int = Field(50, ge=2)
    tiles_max: int = Field(10_000, ge=2)
    witnesses: int = Field(10, ge=1)
    prevalence: float = Field(0.5, gt=0, lt=1)
    label_noise: float = Field(0.0, ge=0, lt=0.5)
    site_bias: float = Field(0.0, ge=0, le=1)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> TransplantConfig:
        if self.tiles_min > self.tiles_max:
            raise ValueError(f"tiles_min {self.tiles_min} is above tiles_max {self.tiles_max}")
        if self.witnesses >= self.tiles_min:
            raise ValueError(f"witnesses {self.witnesses} must be fewer than tiles_min {self.tiles_min}")
        return self


class _Stream(IntEnum):
    """The purpose of a random stream; the numbers determine what a seed produces and must not change."""

    GROUPS = 20
    BAG = 21


@dataclass(frozen=True)
class Source:
    """A slide whose vectors are used."""

    slide: str
    site: str
    features: NDArray[np.float16]


Sites = dict[str, list[Source]]


@dataclass(frozen=True)
class Group:
    """Sites of both cohorts whose slides are used together, and the part of the cohort that they are used for."""

    name: str
    part: str
    background: Sites
    witnesses: list[Source]


@dataclass(frozen=True)
class PlannedBag:
    """One bag. background, witnesses: source slides, and which of their vectors are used; label: may be wrong"""

    slide: str
    group: Group
    site: str
    label: str
    background: list[tuple[Source, range]]
    witnesses: list[tuple[Source, range]]
    first_witness: int


def write_transplants(
    folder: Path | str,
    background: Path | str,
    witnesses_from: Path | str,
    config: TransplantConfig,
    progress: Progress | None = None,
    again: bool = False,
) -> Path:
    """Write the cohort into a folder and return the path of its manifest.

    Written are `transplants.yaml` (the settings), `features/<slide>.h5`, `tile_truth.parquet` (slide, tile, x, y,
    tumor, source: the slide that the vector is of) and, last, `cohort.csv`. A second call with the same settings writes
    missing files; different settings are an error, unless `again`.

    background, witnesses_from: manifests of two cohorts with features of the same encoder, and with sites
    """
    folder = Path(folder)
    tissues = [read_sites(Path(manifest)) for manifest in (background, witnesses_from)]
    noted = {**config.model_dump(mode="json"), "background": _hash(tissues[0]), "witnesses_from": _hash(tissues[1])}
    claim_cohort(folder / SETTINGS_FILE, noted, "transplants", again, (TRUTH_FILE, "features/slide-*.h5"))
    bags = plan_bags(config, make_groups(config, *tissues))
    tables = []
    for done, bag in enumerate(bags, start=1):
        features, truth = _assemble(bag)
        path = folder / "features" / f"{bag.slide}.h5"
        if not path.is_file():
            side = TILE_PX * MPP
            made = Provenance(
                encoder="transplants", tile_um=side, tile_px_level0=TILE_PX, mpp=MPP, mpp_source="made up"
            )
            write_features(path, features, truth[["x", "y"]].to_numpy(), made)
        tables.append(truth)
        if progress is not None:
            progress(done, len(bags))
    with replacing(folder / TRUTH_FILE) as partial:
        pd.concat(tables, ignore_index=True).to_parquet(partial, index=False)
    rows = [(bag.slide, bag.group.name, bag.label, bag.group.part, bag.site) for bag in bags]
    manifest = pd.DataFrame(rows, columns=["slide", "patient", "label", "split", "site"])
    write_text(folder / MANIFEST, manifest.to_csv(index=False))
    return folder / MANIFEST


def read_sites(manifest: Path) -> Sites:
    """The slides of a cohort with their vectors, by site."""
    sites: Sites = {}
    for slide in sorted(load_cohort(manifest, kind=None).slides, key=lambda slide: slide.slide):
        if slide.site is None:
            raise AsmilError(f"{manifest}: slide {slide.slide} has no site; fill the column site")
        features = read_bag(slide.source, slide.slide).features.numpy().astype(np.float16)
        sites.setdefault(slide.site, []).append(Source(slide.slide, slide.site, features))
    return sites


def make_groups(config: TransplantConfig, background: Sites, witnesses: Sites) -> list[Group]:
    """Divide the sites of both cohorts into groups, and the groups among train, val and test by their vectors."""
    _refuse_sources(background, witnesses)
    count = min(len(background), len(witnesses))
    rng = generator(config.seed, _Stream.GROUPS)
    backgrounds = _dealt(_shuffled(rng, background), dict.fromkeys(range(count), 1))
    foreign = _dealt(_shuffled(rng, witnesses), dict.fromkeys(range(count), 1))
    sizes = {str(number): sum(map(_vectors, sites.values())) for number, sites in backgrounds.items()}
    parts = _dealt(dict(sorted(sizes.items(), key=lambda item: -item[1])), QUOTA, size=int)
    groups = []
    for part, numbers in parts.items():
        for number in map(int, numbers):
            slides = [source for sites in foreign[number].values() for source in sites]
            if _vectors(slides) < config.witnesses:
                raise AsmilError(
                    f"--witnesses {config.witnesses}: the sites {', '.join(foreign[number])} have only "
                    f"{_vectors(slides)} vectors; give fewer witnesses"
                )
            groups.append(Group(f"group-{number:03d}", part, backgrounds[number], slides))
    return sorted(groups, key=lambda group: group.name)


def _refuse_sources(background: Sites, witnesses: Sites) -> None:
    slides = [{source.slide for sources in sites.values() for source in sources} for sites in (background, witnesses)]
    if both := sorted(slides[0] & slides[1]):
        raise AsmilError(f"slide {both[0]} is in both cohorts; give the background and the witnesses of two tissues")
    widths = {source.features.shape[1] for sites in (background, witnesses) for s in sites.values() for source in s}
    if len(widths) > 1:
        raise AsmilError(f"the two cohorts have features of widths {sorted(widths)}; give features of one encoder")
    if min(len(background), len(witnesses)) < len(PARTS):
        raise AsmilError(f"both cohorts need slides of at least {len(PARTS)} sites: one for train, val and test each")


def _shuffled(rng: np.random.Generator, sites: Sites) -> Sites:
    """The sites from large to small, but not in quite the same order for every seed."""
    weight = {site: _vectors(sites[site]) * rng.uniform(0.5, 1.0) for site in sorted(sites)}
    return {site: sites[site] for site in sorted(sites, key=lambda site: -weight[site])}


def _vectors(sources: Sequence[Source]) -> int:
    return sum(len(source.features) for source in sources)


def _dealt(items: Mapping[str, Any], quota: Mapping[Any, int], size: Any = _vectors) -> dict[Any, dict[str, Any]]:
    """The items of each share: one after the other goes to the share that is furthest below its quota."""
    taken = dict.fromkeys(quota, 0)
    dealt: dict[Any, dict[str, Any]] = {name: {} for name in quota}
    for key, item in items.items():
        name = min(quota, key=lambda name: taken[name] / quota[name])
        dealt[name][key] = item
        taken[name] += size(item)
    return dealt


def plan_bags(config: TransplantConfig, groups: Sequence[Group]) -> list[PlannedBag]:
    """The bags of the cohort, in order; bag i is the same in longer cohorts with the same seed."""
    by_part = {part: [group for group in groups if group.part == part] for part in PARTS}
    bags = []
    for index, (part, rank) in enumerate(parts_by_quota(config.slides, QUOTA)):
        rng = generator(config.seed, _Stream.BAG, index)
        positive = int((rank + 1) * config.prevalence) > int(rank * config.prevalence)
        size = round(log_uniform(rng, config.tiles_min, config.tiles_max))
        group, site = _choose_site(config, rng, by_part[part], positive, size)
        available = group.background[site]
        n_witnesses = config.witnesses if positive else 0
        joined = _join(rng, available, min(size, _vectors(available)) - n_witnesses)
        wrong = part != "test" and rng.random() < config.label_noise
        bags.append(
            PlannedBag(
                slide=slide_name(index),
                group=group,
                site=site,
                label=CLASS_NAMES[positive != wrong],
                background=joined,
                witnesses=_join(rng, group.witnesses, n_witnesses),
                first_witness=int(rng.integers(sum(len(taken) for _, taken in joined) + 1)),
            )
        )
    return bags


def _choose_site(
    config: TransplantConfig, rng: np.random.Generator, groups: Sequence[Group], positive: bool, size: int
) -> tuple[Group, str]:
    """A site that has enough vectors, or the largest; with `site_bias`, every second site is one of positive bags."""
    sites = sorted((site, group) for group in groups for site in group.background)
    if groups[0].part == "train" and rng.random() < config.site_bias:
        sites = sites[int(positive) :: 2] or sites
    enough = [(site, group) for site, group in sites if _vectors(group.background[site]) >= size]
    if enough:
        site, group = enough[int(rng.integers(len(enough)))]
    else:
        site, group = max(sites, key=lambda pair: _vectors(pair[1].background[pair[0]]))
    return group, site


def _join(rng: np.random.Generator, sources: Sequence[Source], count: int) -> list[tuple[Source, range]]:
    """Slides in random order with the vectors that are taken: all, of the last one as many in a row as are missing."""
    joined = []
    for index in rng.permutation(len(sources)).tolist():
        if count <= 0:
            break
        vectors = len(sources[index].features)
        taken = min(count, vectors)
        first = int(rng.integers(vectors - taken + 1))
        joined.append((sources[index], range(first, first + taken)))
        count -= taken
    return joined


def _assemble(bag: PlannedBag) -> tuple[NDArray[np.float16], pd.DataFrame]:
    """The features of a bag, and the truth of its tiles; the witnesses follow each other."""
    joined = [*bag.background, *bag.witnesses]
    features = np.concatenate([source.features[taken.start : taken.stop] for source, taken in joined])
    sources = np.repeat([source.slide for source, _ in joined], [len(taken) for _, taken in joined])
    n_background = sum(len(taken) for _, taken in bag.background)
    order = np.r_[: bag.first_witness, n_background : len(features), bag.first_witness : n_background]
    tile = np.arange(len(order))
    columns = int(np.ceil(np.sqrt(len(order))))
    position = {"x": tile % columns * TILE_PX, "y": tile // columns * TILE_PX}
    truth = {"tumor": order >= n_background, "source": sources[order]}
    return features[order], pd.DataFrame({"slide": bag.slide, "tile": tile, **position, **truth})


def _hash(sites: Sites) -> str:
    """SHA-256 of the names and vectors of all slides."""
    state = hashlib.sha256()
    for source in (source for site in sorted(sites) for source in sites[site]):
        state.update(f"{source.site}/{source.slide}".encode())
        state.update(np.ascontiguousarray(source.features).tobytes())
    return state.hexdigest()
