"""Sentences that stand beside localization numbers, wherever they are shown."""

from __future__ import annotations

from asmil.evaluation.localization.froc_curve import Froc
from asmil.evaluation.localization.run import Localization
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling

FEW_PATIENTS = 10
SCALING_WORDS: dict[Scaling, str] = {
    "minmax": "min-max of every slide by itself (as in papers)",
    "gated": "min-max times the slide's probability of tumor",
    "times_n": "attention × number of tiles (uniform: 1)",
    "cohort": "one scale for all slides",
    "rank": "rank among the tiles of the slide",
}


def convention(found: Localization) -> str:
    """How the FROC was made, without which its value says nothing."""
    judging = found.judging
    points = (
        f"{judging.conversion} (radius {judging.radius} tiles)" if judging.conversion == "nms" else judging.conversion
    )
    return f"FROC preset {found.settings.preset}, points by {points}, heat map '{found.heatmap_kind}'"


def sizes(found: Localization) -> str:
    """What was judged."""
    summary = found.summary
    return (
        f"{found.settings.role} part: {summary.n_tumor} tumor and {summary.n_normal} normal slides of "
        f"{summary.n_patients} patients"
    )


def scaling_title(scaling: Scaling) -> str:
    """A scaling with its cut."""
    return f"{scaling}, cut {THRESHOLDS[scaling]:g}"


def minmax_words(found: Localization) -> list[str]:
    """What min-max scaling does to these very numbers."""
    summary = found.summary
    froc = summary.scaled["minmax"].froc
    words = [
        "Min-max scaling puts the hottest tile of every slide at 1, that of a normal slide too. Specificity then "
        "measures how peaked the map is, not whether the slide looks normal: near-uniform noise gets about 0.5, a "
        "single spike the most there is. Peaked maps pay for it with a low Dice.",
    ]
    if summary.n_normal:
        forced = summary.n_normal / (froc.n_normal if froc.options.fp_slides == "normal" else froc.n_slides)
        words.append(
            f"Under min-max scaling specificity cannot exceed {summary.best_specificity:.4f} here (the mean of 1 - 1/N "
            f"over normal slides), and the FROC curve begins with at least {forced:.2f} false positives a slide, since "
            "no normal slide can be without a detection of score 1, unless all its tiles are equal."
        )
    return words


def few_patients(found: Localization) -> list[str]:
    """A warning for each kind of slides that is of too few patients."""
    counts = {"tumor": found.summary.n_tumor_patients, "normal": found.summary.n_normal_patients}
    return [
        f"Only {count} patient{'s' * (count > 1)} with {kind} slides: intervals are too narrow to be trusted."
        for kind, count in counts.items()
        if 0 < count < FEW_PATIENTS
    ]


def caveats(found: Localization) -> list[str]:
    """How to read the numbers; what min-max scaling does to them is told by `minmax_words`."""
    summary = found.summary
    sentences = [
        f"FROC values compare only under the same preset, conversion and scaling; these are: {convention(found)}.",
        "Lesions of FROC are the annotated regions with a margin of 37.5 um, joined where they touch; those below 275 "
        "um are isolated tumor cells, neither targets nor false positives. Dice, recall and the rates without a miss "
        "take the annotation as it was drawn.",
        "A region is missed if no positive tile overlaps it; the stricter reading, no missed tile, asks that every "
        "tile that overlaps tumor is positive. Papers do not say which they mean.",
        "Tile AUC and AP need no cut: a tile counts as tumor if it overlaps tumor at all. They are means over slides "
        "with both kinds of tiles; the pooled ones take the tiles of all slides together, normal slides included, and "
        "so ask whether scores compare between slides.",
        f"Intervals are 95 % percentile intervals of {summary.resamples} draws of patients with all their slides.",
        "Cuts are fixed beforehand ("
        + ", ".join(scaling_title(name) for name in found.judging.scalings)
        + "); none was "
        "chosen on these slides.",
    ]
    sentences += few_patients(found)
    if "gated" in found.judging.scalings:
        sentences.append(
            "Gated: the map of a slide that the model calls normal stays below the cut, so normal slides need not have "
            "a hot tile; the numbers then depend on the classification, too."
        )
    sentences += [note[0].upper() + note[1:] + "." for note in found.notes]
    if found.skipped:
        sentences.append(f"Left out by the user's list: {', '.join(found.skipped)}.")
    if found.problems:
        sentences.append(f"Not judged ({len(found.problems)}): " + "; ".join(found.problems) + ".")
    return sentences


def froc_words(froc: Froc) -> str:
    """The sensitivities behind a FROC score, or why there is none."""
    if froc.reason:
        return f"no FROC: {froc.reason}"
    pairs = zip(froc.fp_targets, froc.sensitivities, strict=True)
    return ", ".join(f"{target:g}: {sensitivity:.3f}" for target, sensitivity in pairs)
