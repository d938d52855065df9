"""The answers of the study on real tissue follow from its records by the rules of its plan."""

import pandas as pd
import pytest
import yaml

import real_tissue
from real_tissue_report import NOT_RUN, Study, forest
from shared_data import REPOSITORY

COHORTS = ("brca", "nsclc")


def rows(values, reference, p=()):
    """A record: values of each variant on both cohorts; p: Holm's p-values on both, 1 if not given."""
    table = []
    for variant, of_cohorts in values.items():
        for place, cohort in enumerate(COHORTS):
            difference = of_cohorts[place] - values[reference][place]
            one = {"cohort": cohort, "variant": variant, "reference": reference, "value": of_cohorts[place], "f1": 0.5}
            if variant != reference:
                found = dict(p).get(variant, (1.0, 1.0))[place]
                one |= {"difference": difference, "difference_low": difference - 0.02}
                one |= {"difference_high": difference + 0.02, "p": found, "p_holm": found}
            table.append(one)
    return pd.DataFrame(table)


@pytest.fixture
def study(tmp_path):
    def write(**tables):
        for name, table in tables.items():
            table.to_csv(tmp_path / f"{name}.csv", index=False)
        return Study(tmp_path)

    return write


TUNED = {
    "abmil": (0.80, 0.90),
    "linear": (0.85, 0.91),
    "dsmil": (0.70, 0.89),
    "asmil": (0.75, 0.95),
    "abmil, nsf": (0.84, 0.92),
}


def tuned(**p):
    return rows(TUNED, "abmil", {"linear": (0.01, 0.9), "dsmil": (0.01, 0.9), "asmil": (0.01, 0.01), **p})


def lower_on_both():
    return rows(TUNED | {"asmil": (0.75, 0.89)}, "abmil", {"asmil": (0.2, 0.06)})


def test_without_records_every_question_says_so(study):
    empty = study()
    answers = [
        empty.which_method,
        empty.survival,
        empty.where_it_looks,
        empty.what_stabilizes,
        empty.what_changes_asmil,
        empty.few_witnesses,
    ]
    tables = [empty.subtyping_table, empty.splits_table, empty.survival_table, empty.maps_table, empty.anchor_table]
    tables += [empty.colon_table, empty.below_abmil]
    assert {answer() for answer in (*answers, *tables, empty.changes_table)} == {NOT_RUN}
    assert empty.evidence() == empty.recommended() == {}


def test_a_verdict_needs_a_shown_difference_and_the_same_sign_on_both_cohorts(study):
    found = study(subtyping=tuned())
    assert found.verdicts == {"linear": "better", "dsmil": "worse", "asmil": "undecided", "abmil, nsf": "undecided"}
    assert "0.850" in found.which_method()
    assert found.evidence().keys() == {"abmil", "linear", "dsmil", "asmil"}
    assert found.subtyping_table().count("**") == 2 * 4
    assert forest(found).count("</svg>") == 1


def test_the_readme_says_what_asmil_is_good_for(study):
    arms = {"abmil, none": (0.8, 0.9), "abmil, nsf 1": (0.9, 0.95)}
    anchor = rows(arms, "abmil, none").assign(jsd_late=[0.2, 0.2, 0.1, 0.1], effective_share=[0.5, 0.5, 0.8, 0.8])
    splits = rows({"abmil": (0.8, 0.9), "asmil": (0.61, 0.9)}, "abmil", {"asmil": (0.01, 1.0)})
    splits["cohort"] += ", sites"
    transplants = rows({"abmil": (0.9, 0.9), "abmil, nsf": (0.53, 0.9)}, "abmil", {"abmil, nsf": (0.01, 1.0)})
    found = study(subtyping=tuned().query("variant != 'asmil' or cohort == 'brca'"), anchor=anchor, splits=splits)
    assert "10 tiles" not in found.in_three_sentences()
    assert "on NSCLC, ASMIL was not tuned" in found.in_three_sentences()
    found = study(subtyping=tuned())
    assert "not tuned" not in found.in_three_sentences()
    found = study(transplants=transplants.assign(cohort="witnesses 10").iloc[::2])
    text = found.in_three_sentences()
    for fact in ("not shown to differ", "0.750 (BRCA)", "0.610", "makes attention move less", "0.80", "0.90 to 0.53"):
        assert fact in text
    assert "a lower AUC than ABMIL on every cohort" in study(subtyping=lower_on_both()).in_three_sentences()
    found = study(anchor=anchor.assign(jsd_late=[0.1, 0.1, 0.2, 0.2], p_holm=0.01))
    assert "does not make" in found.in_three_sentences()
    assert "raises AUC for abmil, nsf 1" in found.in_three_sentences()


@pytest.mark.parametrize(
    ("gain", "p", "temperature", "word"),
    [(0.05, 0.01, 0.045, "explained by"), (0.05, 0.01, 0.01, "not explained"), (0.05, 0.2, 0.05, "undecided")],
)
def test_flattening_explains_a_gain_if_an_arm_has_most_of_it(study, gain, p, temperature, word):
    values = {"abmil, none": (0.8, 0.9), "abmil, nsf 1": (0.8 + gain, 0.9)}
    values["abmil, temperature 2"] = (0.8 + temperature, 0.9)
    found = study(anchor=rows(values, "abmil, none", {"abmil, nsf 1": (p, 1.0)}))
    assert found.flattening().startswith(word)
    assert f"{gain:+.3f}" in found.flattening()


PLANS = [yaml.safe_load((REPOSITORY / "studies" / f"real_{name}.yaml").read_text()) for name in ("asmil", "subtyping")]


def all_changes(**values):
    """A record of question 5 in which every change harms on BRCA, where alone it was run; save those that are given."""
    found = {name: (0.6, float("nan")) for name in PLANS[0]["variants"]}
    found |= {"abmil": (0.8, 0.9), "paper": (0.7, 0.8), "no_anchor": (0.7, 0.8)} | values
    return rows(found, "abmil").dropna(subset="value")


HELP = {"paper, 1 token": (0.71, 0.82), "paper, 2 tokens": (0.75, 0.85), "paper, lr 3e-5": (0.72, 0.83)}


def test_what_helps_on_both_cohorts_is_combined_with_an_anchor(study):
    found = study(asmil=all_changes(**HELP, **{"paper, dropout 0.5": (0.9, 0.7)}))
    assert set(found.changes().query("helps")["change"]) == {"1 token", "2 tokens", "lr 3e-5"}
    sweep = real_tissue.combined_sweep(found, *PLANS)
    anchor = {"anchor.normalizer": "nsf", "anchor.weight": 0.1}
    assert sweep["variants"]["asmil, paper combined, nsf 0.1"]["settings"] == {"model.tokens": 2, **anchor}
    assert sweep["variants"]["asmil, no_anchor combined, nsf 0.1"]["settings"] == anchor
    assert list(sweep["cohorts"]) == ["brca"]


def test_only_runs_that_could_help_are_waited_for(study):
    open_one = {"paper, EMA of weights": (0.71, float("nan")), "paper, lr 3e-4": (0.71, float("nan"))}
    found = study(asmil=all_changes(**open_one))
    assert found.changes().query("open")["change"].tolist() == ["EMA of weights"]
    with pytest.raises(SystemExit, match="paper, EMA of weights"):
        real_tissue.main(["combine", str(found.folder), "--out", str(found.folder / "sweep.yaml")])
    elsewhere = rows({"paper": (0.5, 0.6), "paper, EMA of weights": (0.9, 0.61)}, "paper").query("cohort == 'nsclc'")
    found = study(asmil_cpu=elsewhere)
    (ema,) = found.changes().query("start == 'paper' and change == 'EMA of weights'").to_dict("records")
    assert (ema["brca"], ema["nsclc"], ema["helps"]) == (pytest.approx(0.01), pytest.approx(0.01), True)
    assert not found.changes()["open"].any()
    assert "0.800 and 0.600" in found.between_machines()


def test_a_setting_is_recommended_only_if_it_is_as_good_as_abmil_and_linear_and_shown_to_be_above_the_paper(study):
    candidates = {"asmil, paper": (0.75, 0.85), "asmil, new": (0.848, 0.912), "asmil, near": (0.84, 0.95)}
    shown = {"asmil, new": (0.01, 0.5), "asmil, near": (0.01, 0.01)}
    found = study(subtyping=tuned(), recommended=rows(candidates, "asmil, paper", shown))
    assert found.candidates() == ["asmil, new"]
    assert found.recommended() == {"asmil": "asmil, new"}
    found = study(recommended=rows(candidates, "asmil, paper"), subtyping=tuned(**{"abmil, nsf": (0.01, 0.9)}))
    assert found.recommended() == {"abmil": "abmil, nsf"}
    assert "none, since asmil, new is not shown" in found.recommendation()
    found = study(recommended=rows(candidates, "asmil, paper", shown).query("cohort == 'brca'"))
    assert "asmil" not in found.recommended()
    assert "not decided" in found.recommendation()


def test_no_setting_is_recommended_when_all_combinations_have_lost_on_a_cohort(study):
    first, *others = yaml.safe_load((REPOSITORY / "studies" / "real_recommended.yaml").read_text())["variants"]
    lost = rows({first: (0.84, 0.95), **dict.fromkeys(others, (0.83, 0.95))}, first).query("cohort == 'brca'")
    found = study(subtyping=tuned(), recommended=lost)
    assert "ASMIL: none" in found.recommendation()
    assert f"{first} 0.840" in found.recommendation()
    found = study(recommended=lost.iloc[:-1])
    assert "not decided" in found.recommendation()


def test_maps_before_training_and_permuted_labels_are_checked(study):
    maps = pd.DataFrame(
        [
            {"cohort": cohort, "variant": variant, "kind": kind, "auc": auc, "initial_auc": before, "ap": 0.5}
            for cohort in ("nuclei", "grid")
            for variant, kind, auc, before in (("abmil", "attention", 0.8, 0.5), ("abmil", "gradient", 0.9, 0.5))
        ]
    ).assign(auc_low=0.4, auc_high=0.95, agreement=0.9, area=0.1)
    maps = pd.concat([maps, maps.assign(variant="dsmil", auc=0.55, initial_auc=0.3)])
    slides = pd.DataFrame({"cohort": "nuclei, permuted labels", "variant": ["abmil", "dsmil"], "value": 0.5})
    found = study(maps_colon=maps, colon=slides.assign(value_low=[0.4, 0.51], value_high=0.6))
    assert "dsmil on nuclei" in found.untrained()
    assert "abmil" not in found.untrained()
    assert "dsmil" in found.permuted()
    assert "gradient" not in found.maps_table()


def test_slides_of_colon_stand_beside_the_printed_numbers_without_permuted_labels(study):
    table = rows({"abmil": (0.8, 0.95), "dsmil": (0.9, 0.7)}, "abmil", {"dsmil": (0.9, 0.01)})
    found = study(
        colon=table.assign(cohort=table["cohort"].map({"brca": "nuclei, permuted labels", "nsclc": "nuclei"}))
    )
    printed, own = found.colon_table().splitlines()[2:]
    assert all(text in printed for text in ("| abmil |", "0.950", "0.968"))
    assert all(text in own for text in ("| dsmil |", "0.700", "**"))
    assert "0.800" not in found.colon_table()
    assert "dsmil" in found.of_slides()


def test_changes_run_on_one_cohort_do_not_count(study):
    changes = rows({"abmil": (0.8, 0.9), "paper": (0.7, 0.8), "paper, 1 token": (0.9, 0.9)}, "abmil")
    found = study(asmil=changes.query("cohort == 'brca' or variant != 'paper, 1 token'"))
    assert not found.changes()["helps"].any()
    assert "1 token" not in found.changes_table()
    with pytest.raises(SystemExit, match="paper, 1 token"):
        real_tissue.main(["combine", str(found.folder), "--out", str(found.folder / "sweep.yaml")])


def test_the_planned_combinations_are_those_of_the_records(tmp_path):
    planned = REPOSITORY / "studies" / "real_recommended.yaml"
    records = REPOSITORY / "docs" / "results" / "real_tissue"
    real_tissue.main(["combine", str(records), "--out", str(tmp_path / "sweep.yaml")])
    assert (tmp_path / "sweep.yaml").read_text() == planned.read_text()


def test_differences_of_transplants_are_told_by_the_number_of_witnesses(study):
    values = {"abmil": (0.8, 0.9), "asmil": (0.5, 0.9), "additive_mil": (0.8, 0.95)}
    table = rows(values, "abmil", {"asmil": (0.01, 1), "additive_mil": (1, 0.01)})
    named = {"brca": "witnesses 3", "nsclc": "witnesses 10"}
    found = study(transplants=table.assign(cohort=table["cohort"].map(named)))
    assert "with 3, worse: asmil | with 10, better: additive_mil" in found.few_witnesses()
    assert found.transplants_table().count("**") == 2 * 2
    assert found.transplants_table().index("witnesses 3") < found.transplants_table().index("witnesses 10")


def test_results_stand_beside_the_printed_ones(study):
    published = pd.DataFrame({"cohort": ["survival-brca", "brca", "brca"], "method": ["AMIL", "mil", "mil"]})
    published = published.assign(share_of_training=[1.0, 1.0, 0.25], value=[0.487, 0.778, 0.672])
    of_survival = rows({"abmil": (0.6, 0.6), "linear": (0.7, 0.7)}, "abmil", {"linear": (0.01, 1.0)})
    of_survival = of_survival[of_survival["cohort"] == "brca"]
    splits = rows({"abmil": (0.8, 0.9)}, "abmil").assign(cohort=["brca, official", "brca, quarter"])
    found = study(survival=of_survival, splits=splits, published=published)
    assert "linear is better on BRCA" in found.survival()
    table = found.survival_table()
    assert all(number in table for number in ("**0.700**", "0.487", "0.583"))
    assert all(number in found.splits_table() for number in ("0.778", "0.672", "0.900"))


def test_a_partial_record_keeps_the_rows_of_an_earlier_one_with_their_reference():
    scores = {"value_low": 0.7, "value_high": 0.95, "patients": 100, "reference": "abmil"}
    earlier = rows({"abmil": (0.81, 0.9), "dsmil": (0.85, 0.92)}, "abmil", {"dsmil": (0.03, 1)}).assign(**scores)
    table = rows({"abmil": (0.8, 0.9), "simlp": (0.7, 0.8)}, "abmil", {"simlp": (0.04, 1)}).assign(**scores)
    table["reference_value"] = [float("nan"), float("nan"), 0.8, 0.9]
    joined = real_tissue.joined(table, earlier)
    found = joined.set_index(["cohort", "variant"])
    assert sorted(found.index) == sorted((c, v) for c in COHORTS for v in ("abmil", "dsmil", "simlp"))
    assert found.loc[("brca", "dsmil"), "p_holm"] == pytest.approx(0.06)
    assert found["value"]["brca", "abmil"] == 0.8
    assert found["reference_value"]["brca", "dsmil"] == 0.81
    assert found["reference_value"]["brca", "simlp"] == 0.8
    again = real_tissue.joined(earlier.iloc[:2], joined).set_index(["cohort", "variant"])
    assert again["reference_value"].sort_index().equals(found["reference_value"].sort_index())
    assert real_tissue.joined(table, None)["p_holm"].min() == pytest.approx(0.04)
    with pytest.raises(SystemExit, match="abmil on brca"):
        real_tissue.joined(table, earlier.assign(patients=99))
