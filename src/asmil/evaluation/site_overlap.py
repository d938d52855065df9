"""Whether the test slides of a run come from the same sites as its training slides."""

from __future__ import annotations

from dataclasses import dataclass

from asmil.errors import AsmilError
from asmil.reporting.formats import format_count
from asmil.runs.description import rows_sha256
from asmil.runs.run import Run

UNKNOWN_SITES = "The sites of the test slides are unknown, so the performance at a new site is unknown."


@dataclass(frozen=True)
class SiteOverlap:
    """Numbers of test slides: of sites with training slides in their fold, of other sites, and of unknown sites.

    test_sites, train_sites: numbers of sites of the test slides and of the training slides
    """

    seen: int
    unseen: int
    unknown: int
    test_sites: int
    train_sites: int

    @property
    def sentence(self) -> str:
        """Whether the metrics were measured at sites without training slides."""
        if not self.seen + self.unseen:
            return UNKNOWN_SITES
        tested = format_count(self.seen + self.unseen + self.unknown, "test slide")
        sites = f"({format_count(self.test_sites, 'site')}; training: {format_count(self.train_sites, 'site')})"
        unknown = f" The site of {self.unknown} is unknown." if self.unknown else ""
        if not self.unseen:
            seen = f"{self.seen} of {tested} come from sites of the training slides {sites}"
            return f"{seen}, so the performance at a new site is unknown.{unknown}"
        return f"{self.unseen} of {tested} come from sites without training slides {sites}.{unknown}"


def site_overlap(run: Run) -> SiteOverlap | None:
    """The overlap, from the manifest of the run; None if it has no sites, or has changed since the training.

    A slide that is tested in several folds counts as unseen only if its site is unseen in all of them.
    """
    if not run.cohort.is_there:
        return None
    try:
        cohort, _ = run.cohort.read(run.kind)
        splits = run.splits
    except AsmilError:
        return None
    if splits is None or rows_sha256(run.kind, cohort) != run.settings.cohort.rows_sha256:
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
