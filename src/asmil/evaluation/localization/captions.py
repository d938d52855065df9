"""Titles of the localization measures, and the sentences that explain them."""

from __future__ import annotations

from asmil.evaluation.localization.localize import Localization
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling
from asmil.reporting.formats import format_count

FEW_PATIENTS = 10
TITLES = {
    "froc": ("FROC", "mean sensitivity over the false-positive targets"),
    "dice": ("Dice", "mean over tumor slides"),
    "specificity": ("specificity", "share of tiles below the cut, normal slides"),
    "no_miss_regions": ("no missed region", "share of tumor slides"),
    "no_miss_tiles": ("no missed tile", "share of tumor slides"),
    "region_recall": ("region recall", "regions touched by a positive tile"),
    "pooled_auc": ("tile AUC, pooled", "tiles of all slides together"),
    "pooled_ap": ("tile AP, pooled", "tiles of all slides together"),
    "tile_auc": ("tile AUC", "mean over tumor slides"),
    "tile_ap": ("tile AP", "mean over tumor slides"),
}
"""Title and short meaning of every measure."""

SCALINGS: dict[Scaling, str] = {
    "minmax": "min-max scaling of each slide, as in papers",
    "gated": "min-max times the tumor probability of the slide",
    "times_n": "attention × number of tiles (uniform attention: 1)",
    "cohort": "one scale for all slides",
    "rank": "rank among the tiles of the slide",
}


def convention(found: Localization) -> str:
    """How FROC was computed; without this its value says nothing."""
    protocol = found.protocol
    radius = f" (radius {protocol.radius} tiles)" if protocol.conversion == "nms" else ""
    return (
        f"FROC preset {found.settings.preset}, points by {protocol.conversion}{radius}, heat map '{found.heatmap_kind}'"
    )


def sizes(found: Localization) -> str:
    """What was evaluated."""
    summary = found.summary
    return (
        f"{summary.n_tumor} tumor and {format_count(summary.n_normal, 'normal slide')} of "
        f"{format_count(summary.n_patients, 'patient')}"
    )


def scaling_title(scaling: Scaling) -> str:
    """A scaling with its cut."""
    return f"{scaling}, cut\u00a0{THRESHOLDS[scaling]:g}"


def minmax_sentences(found: Localization) -> list[str]:
    """How min-max scaling affects these numbers."""
    summary = found.summary
    froc = summary.scaled["minmax"].froc
    sentences = [
        "Min-max scaling sets the highest tile of every slide to 1, also on normal slides. Specificity then measures "
        "how peaked the map is, not whether the slide looks normal: near-uniform noise gets about 0.5, a single peak "
        "the highest possible value. Peaked maps in turn have a low Dice."
    ]
    if summary.n_normal:
        forced = summary.n_normal / (froc.n_normal if froc.options.fp_slides == "normal" else froc.n_slides)
        sentences.append(
            f"Under min-max scaling specificity is at most {summary.best_specificity:.4f} here (the mean of 1 - 1/N "
            f"over normal slides), and the FROC curve starts at {forced:.2f} or more false positives per slide: every "
            "normal slide has a detection with score 1, unless all its tiles are equal."
        )
    return sentences


def warnings_of(found: Localization) -> list[str]:
    """What limits the numbers most."""
    found_warnings = []
    if found.settings.role != "test":
        found_warnings.append(f"Optimistic: the models have seen these slides (role {found.settings.role}).")
    counts = {"tumor": found.summary.n_tumor_patients, "normal": found.summary.n_normal_patients}
    found_warnings += [
        f"Only {format_count(count, 'patient')} with {kind} slides: the intervals are too narrow."
        for kind, count in counts.items()
        if 0 < count < FEW_PATIENTS
    ]
    for scaling, one in found.summary.scaled.items():
        if one.froc.reason:
            found_warnings.append(f"FROC is undefined under {scaling}: {one.froc.reason}.")
    return found_warnings


def reading(found: Localization) -> list[str]:
    """How to read the numbers."""
    scalings = found.protocol.scalings
    sentences = [
        "Scalings: " + "; ".join(f"{scaling}: {SCALINGS[scaling]}" for scaling in scalings) + ".",
        f"FROC values compare only under the same preset, conversion and scaling; here: {convention(found)}.",
        "FROC is the mean sensitivity for lesions at 1/4 to 8 false positives per slide. Lesions are the annotated "
        "regions with a margin of 37.5 um, joined where they touch; those below 275 um are isolated tumor cells, "
        "neither targets nor false positives. Dice, recall and the rates without a miss use the annotation as drawn.",
        "A region is missed if no positive tile overlaps it. No missed tile is stricter: every tile that overlaps "
        "tumor must be positive. Papers do not say which one they mean.",
        "Tile AUC and AP need no cut and are the same under every scaling that keeps the order of the tiles; a tile is "
        "a tumor tile if it overlaps tumor at all. They are means over slides with both kinds of tiles. The pooled "
        "versions use the tiles of all slides together, so they also test whether scores compare between slides.",
        f"Intervals are 95 % percentile intervals of {found.summary.resamples} bootstrap resamples of patients, each "
        "with all its slides.",
        f"Cuts are fixed ({'; '.join(map(scaling_title, scalings))}); none was chosen on these slides.",
    ]
    if "gated" in scalings:
        sentences.append(
            "Gated: the map of a slide that the model calls normal stays below the cut, so normal slides need no "
            "positive tile; the numbers then also depend on the classification."
        )
    sentences += [note[0].upper() + note[1:] + "." for note in found.notes]
    if found.skipped:
        sentences.append(f"Left out by the skip list: {', '.join(found.skipped)}.")
    return sentences
