"""Whether the new slides are like the training slides: all of them, and those of every site."""

from __future__ import annotations

import numpy as np

from asmil.evaluation.statistics import holm
from asmil.evaluation.uncertainty.similarity import FEWEST_PATIENTS, FILE, read_similarity
from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Row, Section, Table
from asmil.reporting.formats import format_p, format_share

TITLE = "Are the slides like the training slides?"
UNLIKE, LEVEL = 0.05, 0.001
"""Slides with a smaller p-value are counted as unlike the training; level of the test of all slides."""
FEWEST = 10
"""Patients of a site that is tested."""


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
    rows = []
    for site in ["", *sorted(set(sites.tolist()) - {""})]:
        chosen = sites == site if site else np.ones(len(sites), np.bool_)
        n_patients = len(set(patients[chosen].tolist()))
        p = known.cohort_p_value(means[chosen], patients[chosen].tolist()) if n_patients >= FEWEST else None
        unlike = float((p_values[chosen] <= UNLIKE).mean())
        rows.append({"site": site or "all", "patients": n_patients, "unlike": unlike, "p": p})
    tested = [row for row in rows[1:] if row["p"] is not None]
    for row, corrected in zip(tested, holm([row["p"] for row in tested]) if tested else [], strict=True):
        row["p_holm"] = corrected
    whole = rows[0]
    differing = [row["site"] for row in tested if row["p_holm"] <= LEVEL]
    said = (
        f"{format_share(whole['unlike'])} of slides are unlike the training slides (expected: "
        f"{format_share(UNLIKE)}, if they are alike)."
    )
    if len(rows) > 1:
        said += f" Sites that differ as a whole (Holm's p at most {LEVEL:g}): {', '.join(differing) or 'none shown'}."
    shown: list[Row] = [
        [
            row["site"],
            str(row["patients"]),
            format_share(row["unlike"]),
            *(_p(row.get(name)) for name in ("p", "p_holm")),
        ]
        for row in rows
    ]
    caption = (
        "Distance of the mean of a slide's features to those of the training patients. p: Kolmogorov-Smirnov test of "
        f"the distances; sites of fewer than {FEWEST} patients are not tested."
    )
    table = Table(["site", "patients", f"slides with p <= {UNLIKE:g}", "p", "p (Holm)"], shown, caption=caption)
    warnings = []
    if whole["p"] is not None and whole["p"] <= LEVEL:
        warnings.append(
            f"The new slides differ from the training slides (p {format_p(whole['p'])}): other scanner, stain, "
            "laboratory or patients."
        )
    section = Section(TITLE, [said, table])
    return Part("similarity", section, {"level": UNLIKE, "groups": rows}, "", tuple(warnings))


def _p(value: float | None) -> str:
    return "" if value is None else format_p(value)
