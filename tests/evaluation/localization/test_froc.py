"""FROC by hand, by a plain form of the definition, and over resamples of slides."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.errors import AsmilError
from asmil.evaluation.localization import (
    FP_TARGETS,
    PRESETS,
    FrocOptions,
    FrocSlide,
    froc,
    froc_of_hits,
    judge_detections,
    resampled_froc,
)

SQUARES = np.zeros((20, 30), dtype=np.int32)
SQUARES[2:6, 2:6], SQUARES[10:14, 2:6], SQUARES[2:6, 20:24] = 1, 2, 3
IN_1, IN_2, IN_3, OUTSIDE = (100, 100), (100, 350), (700, 100), (500, 500)
CONVENTIONS = [
    FrocOptions(*choice)
    for choice in product(("floor", "round"), ("drop_lowest", "positive"), ("all", "normal"), ("linear", "up", "down"))
]

scores = st.integers(1, 8).map(lambda score: score / 8)
places = st.sampled_from([IN_1, IN_2, IN_3, OUTSIDE])
detections = st.lists(st.tuples(scores, places), max_size=6).map(lambda rows: [(s, x, y) for s, (x, y) in rows])
cohorts = st.lists(st.tuples(detections, st.sampled_from([None, (), (3,), (1, 2, 3)])), min_size=1, max_size=5)


def slide_of(name, found, itc=()):
    """A tumor slide with three squares, or a normal one where `itc` is None."""
    return FrocSlide(name, found, None if itc is None else SQUARES, frozenset(itc or ()))


def slides_of(cohort):
    return [slide_of(str(number), found, itc) for number, (found, itc) in enumerate(cohort)]


def plain_froc(slides, options):
    """The definition, threshold by threshold; None where it says nothing."""
    false, lesions, excluded, n_normal = [], [], 0, sum(slide.labels is None for slide in slides)
    for slide in slides:
        best = {}
        for score, x, y in slide.detections:
            label = 0 if slide.labels is None else int(slide.labels[y // 32, x // 32])
            if label == 0 and (slide.labels is None or options.fp_slides == "all"):
                false.append(score)
            elif label and label not in slide.itc:
                best[label] = max(best.get(label, 0.0), score)
        if slide.labels is not None:
            lesions += [best.get(label, 0.0) for label in (1, 2, 3) if label not in slide.itc]
            excluded += len(slide.itc)
    averaged = n_normal if options.fp_slides == "normal" else len(slides)
    if not lesions or not averaged:
        return None
    distinct = sorted({*false, *lesions, *([0.0] if excluded else [])})
    kept = distinct[1:] if options.thresholds == "drop_lowest" else [score for score in distinct if score > 0]
    points = [(sum(s >= t for s in false) / averaged, sum(s >= t for s in lesions) / len(lesions)) for t in kept]
    points = [*points, (0.0, 0.0)]
    if options.rule == "linear":
        rising = np.array(points[::-1])
        return points, np.interp(options.fp_targets, rising[:, 0], rising[:, 1])
    at_targets = []
    for target in options.fp_targets:
        if options.rule == "down":
            at_targets.append(max(found for fp, found in points if fp <= target))
        else:
            at_targets.append(next((found for fp, found in reversed(points) if fp >= target), points[0][1]))
    return points, np.array(at_targets)


@given(cohorts, st.sampled_from(CONVENTIONS))
@settings(max_examples=200)
def test_the_plain_form_gives_the_same(cohort, options) -> None:
    slides = slides_of(cohort)
    found, plain = froc(slides, options=options), plain_froc(slides, options)
    if plain is None:
        assert np.isnan(found.score)
        assert found.reason
        return
    points, at_targets = plain
    np.testing.assert_allclose(np.column_stack([found.average_fp, found.sensitivity]), points)
    np.testing.assert_allclose(found.sensitivities, at_targets)
    assert found.score == pytest.approx(at_targets.mean())
    assert found.reason == ""


@given(cohorts, st.sampled_from(CONVENTIONS), st.lists(st.integers(0, 3), min_size=5, max_size=5))
@settings(max_examples=100)
def test_a_resample_scores_like_the_slides_repeated(cohort, options, counts) -> None:
    slides = slides_of(cohort)
    hits = [judge_detections(slide, options.index) for slide in slides]
    repeated = [hit for hit, count in zip(hits, counts, strict=False) for _ in range(count)]
    found = resampled_froc(hits, options, [counts[: len(hits)]])
    np.testing.assert_allclose(found, [froc_of_hits(repeated, options).score])


def test_every_lesion_found_costs_the_2016_rule_its_best_point() -> None:
    slides = [slide_of("tumor", [(0.25, *IN_1), (0.75, *OUTSIDE)], itc=()), slide_of("normal", [(0.5, 0, 0)], None)]
    labels = np.where(SQUARES == 1, SQUARES, 0)
    slides[0] = FrocSlide("tumor", slides[0].detections, labels)
    assert froc(slides, "challenge2016").score == 0.0
    assert froc(slides, options=replace(PRESETS["challenge2016"], thresholds="positive")).score == pytest.approx(2 / 3)
    assert froc(slides, "release").score == 0.5
    assert froc(slides, "asmil_text").score == pytest.approx(2 / 3)


def test_a_result_names_its_preset_and_counts() -> None:
    slides = [slide_of("tumor", [(0.5, *IN_1)], itc=(3,)), slide_of("normal", [], None)]
    found = froc(slides)
    assert (found.preset, found.n_lesions, found.n_slides, found.n_normal) == ("release", 2, 2, 1)
    assert found.fp_targets == FP_TARGETS
    assert found.thresholds.tolist() == [0.5, np.inf]
    assert froc(slides, options=FrocOptions(rule="down")).preset == "own options"


def test_hits_keep_the_best_score_and_ignore_isolated_tumor_cells() -> None:
    rows = [(0.5, *IN_1), (0.75, *IN_1), (0.9, *IN_3), (0.25, *OUTSIDE), (0.6, *OUTSIDE)]
    hits = judge_detections(slide_of("s", rows, itc=(3,)))
    assert hits.lesion_scores.tolist() == [0.75, 0.0, 0.0]
    assert hits.is_target.tolist() == [True, True, False]
    assert hits.false_positives.tolist() == [0.25, 0.6]
    assert hits.n_lesions == 2


def test_floor_and_round_differ_by_half_a_mask_pixel() -> None:
    rows = [(0.5, 63, 100), (0.75, 191, 100)]  # columns 1.97 and 5.97 of a square at 2 .. 5
    assert judge_detections(slide_of("s", rows), "round").lesion_scores[0] == 0.5
    assert judge_detections(slide_of("s", rows), "floor").lesion_scores[0] == 0.75
    assert judge_detections(slide_of("s", [(0.5, 80, 80)]), "round").lesion_scores[0] == 0.5  # 2.5 is 2
    assert judge_detections(slide_of("s", [(0.5, 176, 80)]), "round").lesion_scores[0] == 0.0  # 5.5 is 6


def test_one_past_the_end_is_the_end_and_further_out_is_in_no_lesion() -> None:
    labels = np.ones((4, 4), dtype=np.int32)
    hits = judge_detections(FrocSlide("s", [(0.5, 127, 127)], labels))
    assert (hits.lesion_scores.tolist(), hits.n_outside) == ([0.5], 0)
    hits = judge_detections(FrocSlide("s", [(0.5, 500, 10), (0.25, -40, 10)], labels))
    assert (hits.false_positives.tolist(), hits.n_outside) == ([0.5, 0.25], 2)


def test_lesion_scores_of_the_challenge_s_code_are_float32() -> None:
    slide = slide_of("s", [(0.9, *IN_1), (0.9, *OUTSIDE), (0.3, *OUTSIDE)])
    assert judge_detections(slide, "floor").lesion_scores[0] == np.float32(0.9)
    found = froc([slide], "challenge2016")
    assert found.average_fp.tolist() == [2.0, 1.0, 1.0, 0.0]  # 0.9 of the lesion and 0.9 of the false positive
    assert found.sensitivity == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([(0.0, 1, 1)], "slide s9: .*score 0"),
        ([(-2.5, 1, 1)], "-2.5"),
        ([(np.nan, 1, 1)], "slide s9.*finite"),
        ([(0.5, 1)], "score, x, y"),
        ([("high", 1, 1)], "slide s9: detections"),
    ],
)
def test_scores_that_look_like_a_miss_are_refused(rows, named) -> None:
    with pytest.raises(AsmilError, match=named):
        froc([slide_of("s9", rows, None)])


@pytest.mark.parametrize(
    ("labels", "downsample", "named"),
    [
        (np.zeros((0, 0), dtype=int), 32, "labels"),
        (np.ones(5, dtype=int), 32, "labels"),
        (-np.ones((5, 5), dtype=int), 32, "labels"),
        ([[0.5, 1.0]], 32, "labels"),
        ([[np.nan, 1.0]], 32, "labels: .*0, 0"),
        (np.ones((5, 5), dtype=int), 0, "downsample"),
    ],
)
def test_masks_that_are_none_are_refused(labels, downsample, named) -> None:
    with pytest.raises(AsmilError, match=f"slide s9: {named}"):
        froc([FrocSlide("s9", [(0.5, 1, 1)], labels, downsample=downsample)])


def test_labels_can_be_lists() -> None:
    assert froc([FrocSlide("s", [(0.5, 33, 1)], [[0, 1], [0, 1]])]).score == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rule": "upp"}, "rule .*'upp'.*'up'"),
        ({"index": "ceil"}, "index .*'ceil'"),
        ({"thresholds": "all"}, "thresholds .*'all'"),
        ({"fp_slides": "tumor"}, "fp_slides .*'tumor'"),
        ({"fp_targets": ()}, "fp_targets"),
        ({"fp_targets": (np.nan,)}, "fp_targets"),
    ],
)
def test_unknown_options_are_refused(options, named) -> None:
    with pytest.raises(AsmilError, match=named):
        FrocOptions(**options)


def test_an_unknown_preset_is_named_with_the_nearest() -> None:
    with pytest.raises(AsmilError, match="'release'"):
        froc([], "relese")


@pytest.mark.parametrize(
    ("slides", "preset", "named"),
    [
        ([], "release", "lesion"),
        ([slide_of("n", [(0.5, 1, 1)], None)], "release", "lesion"),
        ([slide_of("t", [(0.5, *IN_1)], itc=(1, 2, 3))], "release", "isolated tumor cells"),
        ([slide_of("t", [(0.5, *IN_1)])], "asmil_text", "normal slides"),
    ],
)
def test_an_undefined_score_is_nan_with_a_reason(slides, preset, named) -> None:
    found = froc(slides, preset)
    assert np.isnan(found.score)
    assert np.isnan(found.sensitivities).all()
    assert np.isnan([found.average_fp, found.sensitivity]).all(axis=1).any(), "no point of the curve is defined"
    assert named in found.reason


def test_min_max_scaling_leaves_nothing_below_one_false_positive_a_normal_slide() -> None:
    normal = [slide_of(f"n{number}", [(1.0, 5, 5)], None) for number in range(3)]
    found = froc([slide_of("t", [(1.0, *IN_1), (0.9, *IN_2), (0.8, *IN_3)]), *normal], "asmil_text")
    assert found.sensitivities.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
