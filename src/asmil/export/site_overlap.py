"""Whether the test slides of a run come from sites that its training slides come from, too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asmil.cohort.splits import Splits
from asmil.errors import AsmilError
from asmil.runs.cohort import RunCohort
from asmil.runs.folder import RunDescription, rows_sha256
from asmil.runs.layout import RunLayout


@dataclass(frozen=True)
class SiteOverlap:
    """Counts of test slides: of sites with training slides in their fold, of other sites, and without a known site.

    test_sites, train_sites: how many sites the test slides and the training slides come from
    """

    seen: int
    unseen: int
    unknown: int
    test_sites: int
    train_sites: int


def site_overlap(run: Path, description: RunDescription) -> SiteOverlap | None:
    """The overlap, by the manifest of the run; None if it names no site, or is not what the run was trained on.

    A slide that several folds test is of an unseen site only if it is in all of them.
    """
    trained_on = RunCohort.of(description.to_dict())
    if not trained_on.is_there:
        return None
    try:
        cohort, _ = trained_on.read(description.config.task.kind)
        splits = Splits.load(RunLayout(run).splits)
    except AsmilError:
        return None
    if rows_sha256(description.config.task.kind, cohort) != description.cohort.get("rows_sha256"):
        return None
    site_of = {slide.slide: slide.site for slide in cohort.slides}
    if not any(site_of.values()):
        return None
    seen, tested, train_sites = set[str](), set[str](), set[str | None]()
    for fold in range(splits.n_folds):
        sites = {site_of.get(slide) for slide in splits.slides(fold, "train")} - {None}
        slides = splits.slides(fold, "test")
        tested.update(slides)
        seen.update(slide for slide in slides if site_of.get(slide) in sites)
        train_sites |= sites
    unknown = {slide for slide in tested if site_of.get(slide) is None}
    test_sites = {site_of[slide] for slide in tested - unknown}
    return SiteOverlap(len(seen), len(tested - seen - unknown), len(unknown), len(test_sites), len(train_sites))
