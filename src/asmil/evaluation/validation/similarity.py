"""Whether the new slides are like the training slides: all of them, and those of every site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asmil.evaluation.statistics import holm
from asmil.evaluation.uncertainty.similarity import (
    COHORT_LEVEL,
    FEWEST_IN_COHORT,
    FEWEST_PATIENTS,
    FILE,
    read_similarity,
)
from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Row, Section, Table
from asmil.reporting.formats import format_p, format_share

TITLE = "Are the slides like the training slides?"
UNLIKE = 0.05
"""Slides with a p-value up to this are counted as unlike the training."""


@dataclass(frozen=True)
class SlidesOfSite:
    """The slides of a site, or all: the share unlike the training, and the p-value that they differ as a whole."""

    site: str
    patients: int
    unlike: float
    p: float | None


def similarity(validated: ValidatedPredictions) -> Part:
    """Distances in feature space to the training slides."""
    known = read_similarity(validated.run.path)
    summaries = [
        (slide.site or "", unit.patient, mean)
        for unit, prediction in validated.predicted
        for slide, mean in zip(unit.slides, prediction.feature_means, strict=True)
    ]
    if known is None or not summaries:
        reason = f"the model has no {FILE}: an earlier version, or fewer than {FEWEST_PATIENTS} training patients"
        return Part("similarity", Section(TITLE, [f"Unknown: {reason}."]), {"reason": reason})
    sites, patients = (np.array([entry[i] for entry in summaries]) for i in (0, 1))
    means = np.stack([mean for _, _, mean in summaries])
    p_values = known.p_values(means)
    groups = []
    for site in ["", *sorted(set(sites.tolist()) - {""})]:
        chosen = sites == site if site else np.ones(len(sites), np.bool_)
        n_patients = len(set(patients[chosen].tolist()))
        p = known.cohort_p_value(means[chosen], patients[chosen].tolist()) if n_patients >= FEWEST_IN_COHORT else None
        groups.append(SlidesOfSite(site or "all", n_patients, float((p_values[chosen] <= UNLIKE).mean()), p))
    whole, *of_sites = groups
    tested = {group.site: group.p for group in of_sites if group.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True)) if tested else {}
    differing = [site for site, p in corrected.items() if p <= COHORT_LEVEL]
    said = (
        f"{format_share(whole.unlike)} of slides are unlike the training slides (expected: "
        f"{format_share(UNLIKE)}, if they are alike)."
    )
    if of_sites:
        named = ", ".join(differing) or "none shown"
        said += f" Sites that differ as a whole (Holm's p at most {COHORT_LEVEL:g}): {named}."
    shown: list[Row] = [
        [each.site, str(each.patients), format_share(each.unlike), _p(each.p), _p(corrected.get(each.site))]
        for each in groups
    ]
    caption = (
        "Distance of the mean of a slide's features to those of the training patients. p: Kolmogorov-Smirnov test of "
        f"the distances; sites of fewer than {FEWEST_IN_COHORT} patients are not tested."
    )
    table = Table(["site", "patients", f"slides with p <= {UNLIKE:g}", "p", "p (Holm)"], shown, caption=caption)
    warnings = []
    if whole.p is not None and whole.p <= COHORT_LEVEL:
        warnings.append(
            f"The new slides differ from the training slides (p {format_p(whole.p)}): other scanner, stain, "
            "laboratory or patients."
        )
    content = {
        "level": UNLIKE,
        "groups": [{**vars(each), "p_holm": corrected.get(each.site)} for each in groups],
    }
    section = Section(TITLE, [said, table])
    return Part("similarity", section, content, "", tuple(warnings))


def _p(value: float | None) -> str:
    return "" if value is None else format_p(value)
