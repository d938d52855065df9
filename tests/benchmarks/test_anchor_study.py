import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import anchor_study_report as report
from anchor_study import BASES, FIRST_SEEDS, folder_name, planned


def lines(values: dict[str, list[float]], column: str = "f1") -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"base": "abmil", "term": term, "seed": seed, column: value}
            for term, of_seeds in values.items()
            for seed, value in enumerate(of_seeds)
        ]
    )


def test_three_seeds_of_everything_come_first_and_long_trainings_before_short_ones():
    plan = planned(seeds=5, controls=True)
    assert len(plan) == len(set(plan)) == 5 * (3 * len(BASES) + 3)
    first = [seed < FIRST_SEEDS for _, _, seed in plan]
    assert first == sorted(first, reverse=True)
    assert plan[0][0] == "transmil"
    assert {base for base, _, _ in planned(5, controls=False)} == set(BASES) == set(report.BASES)


def test_every_training_has_a_folder_of_its_own():
    plan = planned(seeds=2, controls=True)
    assert len({folder_name(*job) for job in plan}) == len(plan)
    assert folder_name("asmil (paper)", "anchor + nsf", 3) == "asmil-paper-anchor-nsf-seed-3"


def test_pairs_are_formed_by_seed_and_only_where_both_have_one():
    results = lines({"none": [0.5, 0.6, 0.7], "anchor": [0.6, 0.9]}).sample(frac=1, random_state=1)
    pairs = report.paired_values(results, "abmil", "anchor", "f1")
    assert pairs.tolist() == [[0.5, 0.6], [0.6, 0.9]]
    assert report.difference_cell(pairs).startswith("+0.200 (2/2 up, p ")
    assert report.difference_cell(report.paired_values(results, "abmil", "entropy 0.1", "f1")) == ""


def test_the_p_value_is_that_of_a_paired_t_test():
    before, after = np.array([0.5, 0.6, 0.7, 0.4]), np.array([0.55, 0.58, 0.8, 0.5])
    assert report.paired_t(after - before) == pytest.approx(stats.ttest_rel(after, before).pvalue)
    assert math.isnan(report.paired_t(np.array([0.1])))
    assert math.isnan(report.paired_t(np.array([0.1, 0.1])))


def test_ratios_are_averaged_on_logarithms():
    pairs = np.array([[1.0, 0.5], [2.0, 0.25]])
    assert report.ratio_cell(pairs).startswith("x 0.25 (0/2 up")
    assert report.ratio_cell(np.array([[0.0, 1.0]])) == ""


def test_the_papers_gains_are_ranges_over_its_data_sets():
    assert report.gain_cell("dsmil", "anchor + nsf", "f1") == "-0.001 to +0.035"
    assert report.gain_cell("asmil (paper)", "anchor", "auc") == "+0.027"
    assert report.gain_cell("abmil", "entropy 0.1", "f1") == ""


def test_ranking_auc_knows_order_and_ties():
    lesion = np.array([False, False, True, True])
    assert report.ranking_auc(lesion, np.array([0.1, 0.2, 0.3, 0.4])) == 1
    assert report.ranking_auc(lesion, np.array([0.4, 0.3, 0.2, 0.1])) == 0
    assert report.ranking_auc(lesion, np.ones(4)) == 0.5


def times() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"role": role, "slide": f"{role}-{slide}", "epoch": epoch, "ce": 1.0 - epoch / 10 + slide}
            | {"jsd_previous": math.nan if epoch == 0 else 0.1 * epoch, "effective_share": 0.5}
            for role in ("train", "val")
            for slide in range(2)
            for epoch in (0.0, 1.0, 2.0)
        ]
    )


def test_a_course_is_the_mean_over_slides_at_every_epoch():
    course = report.course_of(times())
    assert course["epoch"] == [0, 1, 2]
    assert course["val"]["ce"] == [1.5, 1.4, 1.3]
    assert course["train"]["jsd_previous"] == [None, 0.1, 0.2]
    other = {**course, "val": {**course["val"], "ce": [0.5, 0.4, 0.3]}}
    mean = report.mean_course([course, other])
    assert mean["val"]["ce"] == [1.0, 0.9, 0.8]
    assert mean["val"]["jsd_previous"] == [None, 0.1, 0.2]


def test_attention_numbers_are_kept_by_role():
    slides = pd.DataFrame(
        [
            {"role": role, **dict.fromkeys(report.PER_SLIDE, value)}
            for role, value in (("train", 1.0), ("train", 3.0), ("val", 5.0))
        ]
    )
    numbers = report.attention_numbers(times(), slides)
    assert (numbers["train_gini"], numbers["val_gini"]) == (2, 5)
    assert numbers["val_ce_end"] == pytest.approx(1.3)


def test_agreement_is_averaged_over_the_slides_of_a_role():
    table = pd.DataFrame(
        [
            {"slide": slide, "rank_correlation": value, "top1_overlap": value, "jsd": value}
            for slide, value in (("a", 0.2), ("a", 0.4), ("b", 0.9))
        ]
    )
    numbers = report.agreement_numbers(table, {"a": "train", "b": "val"})
    assert numbers["train_jsd"] == pytest.approx(0.3)
    assert numbers["val_top1_overlap"] == pytest.approx(0.9)


def full_results() -> pd.DataFrame:
    names = ["f1", "auc", "tile_auc", "tile_auc_attention", "seconds", "kept_epoch"]
    names += [f"{role}_{name}" for role in report.ROLES for name in report.ATTENTION]
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {"base": base, "term": term, "seed": seed, **{name: draw.uniform(0.1, 0.9) for name in names}}
            for base in ("transmil", "abmil")
            for term in ("anchor + nsf", "none")
            for seed in range(3)
        ]
    )


def test_the_summary_holds_every_variant_in_the_order_of_the_tables():
    text = report.summary(full_results(), [], "val")
    variants = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith(("| abmil", "| transmil"))]
    shown = [["| abmil", "none"], ["| abmil", "anchor + nsf"], ["| transmil", "none"], ["| transmil", "anchor + nsf"]]
    assert variants == [*shown, *shown, shown[1], shown[3]]
    for block in text.split("\n\n")[1::2]:
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_a_result_line_is_compact_and_free_of_nan():
    assert report.compact({"a": 0.123456789, "b": math.nan, "c": "word", "d": 3}) == {
        "a": 0.123457,
        "b": None,
        "c": "word",
        "d": 3,
    }


def test_the_figure_draws_every_term_of_every_method():
    course = report.course_of(times())
    terms = ("none", "anchor", "anchor + nsf")
    courses = [{"base": base, "term": term, **course} for base in ("abmil", "dsmil") for term in terms]
    picture = report.draw(courses, "val")
    assert picture.count('id="axes_') == 6
    for term in terms:
        assert term in picture
