"""The claims of the paper: every one has a rule, and rules decide by what they are given."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from asmil.cli.main import app
from asmil.errors import AsmilError
from asmil.paper.claims import counts, in_print, mathematics, runs, tissue
from asmil.paper.claims.listing import claims, rule
from asmil.paper.claims.measured import Measured
from asmil.paper.claims.ruling import Ruling
from asmil.paper.recipes import RECIPES
from asmil.reporting import Interval

STUDIES = Path(__file__).parents[2] / "studies"


def test_every_claim_has_exactly_one_rule():
    in_code = [name for rules in (mathematics, in_print, counts, runs) for name in rules.RULES]
    as_data = [claim.id for claim in claims() for data in (claim.compare, claim.ruling) if data is not None]
    assert sorted([*in_code, *as_data]) == sorted(claim.id for claim in claims())


def test_comparisons_name_rows_and_data_sets_of_their_tables():
    for claim in claims():
        if claim.compare is not None:
            recipe = RECIPES[claim.compare.table]
            named = {name for pair in claim.compare.all_pairs() for name in pair}
            assert named <= {row.name for row in recipe.rows}, claim.id
            assert named, claim.id
            assert set(claim.compare.datasets) <= set(recipe.datasets), claim.id


@pytest.mark.parametrize("name", [*mathematics.RULES, *in_print.RULES])
def test_mathematics_and_print_are_decided(name):
    ruling = {**mathematics.RULES, **in_print.RULES}[name]()
    assert ruling.decided or name in ("online-nsf-vanishing", "sparse-more-gain", "four-methods-unstable")
    assert ruling.why


def test_known_verdicts():
    verdicts = {name: decide().verdict for name, decide in in_print.RULES.items()}
    assert verdicts["gain-c17"] == verdicts["gain-bracs"] == verdicts["plug-in-max"] == "supported"
    assert verdicts["gain-c16"] == verdicts["classic-4-of-5"] == verdicts["flops-vs-mhim"] == "not supported"
    assert mathematics.RULES["kl-gradient"]().verdict == "supported"
    assert mathematics.RULES["thm-smx-temperature-high"]().verdict == "not supported"


def claim_of(name):
    return next(claim for claim in claims() if claim.id == name)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("jsd-asmil-vs-transmil", "supported"),
        ("jsd-unstable-baselines", "undecided"),
        ("cheaper-than-transmil", "undecided"),
        ("mhim-training-memory", "not testable here"),
        ("drop-less-spread", "undecided"),
        ("anchor-significant", "undecided"),
        ("sota-vit", "not supported"),
        ("small-foci-missed", "supported"),
        ("entmax-slower", "supported"),
    ],
)
def test_the_papers_own_measure_decides_and_substitutes_do_not(name, verdict):
    assert rule(claim_of(name), Measured()).verdict == verdict


def test_claims_name_planned_rows_of_the_records_of_real_tissue():
    for claim in claims():
        for record, cohort, variant in claim.tissue.above if claim.tissue else ():
            plan = yaml.safe_load((STUDIES / f"real_{record}.yaml").read_text())
            assert cohort in plan["cohorts"], claim.id
            assert variant in plan["variants"], claim.id


def on_tissue(monkeypatch, *rows, otherwise="supported"):
    """The ruling on a claim that names three rows, of which some have a difference and a p-value."""
    about = {"reference": "abmil", "metric": "auc", "patients": 100, "difference_low": -0.2, "difference_high": 0.2}
    monkeypatch.setattr(tissue, "_records", lambda: {("r", "c", name): {**about, **row} for name, row in rows})
    claimed = tissue.OnTissue(above=(("r", "c", "one"), ("r", "c", "two"), ("r", "c", "three")))
    return claimed.judged(Ruling(otherwise, "run", "by trainings"))


def test_real_tissue_refutes_a_claim_by_a_clear_difference_only(monkeypatch):
    worse, better = {"difference": -0.1, "p": 0.02}, {"difference": 0.1, "p": 0.001}
    alone = on_tissue(monkeypatch, ("one", worse))
    assert (alone.verdict, alone.how) == ("not supported", "tissue")
    assert "2 not run" in alone.why
    corrected = on_tissue(monkeypatch, ("one", worse), ("two", {"difference": 0.0, "p": 0.5}), ("three", worse))
    assert (corrected.verdict, corrected.how) == ("supported", "run")  # 3 x 0.02 is above 0.05
    assert on_tissue(
        monkeypatch, *((name, better) for name in ("one", "two", "three")), otherwise="undecided"
    ).verdict == ("undecided")
    other = Ruling("undecided", "run", "by trainings")
    assert tissue.OnTissue(above=(("r", "c", "unknown"),)).judged(other) == other


def test_results_of_the_user_come_before_real_tissue(tmp_path):
    assert rule(claim_of("ood-hospitals"), Measured()).how == "tissue"
    results(tmp_path / "subtyping", {}, table="subtyping")
    assert rule(claim_of("ood-hospitals"), Measured(tmp_path)).how == "run"


def test_stored_averages_that_grow_otherwise_refute_the_claim(monkeypatch):
    monkeypatch.setattr(counts, "_stored_bytes", lambda slides, tiles: 4 * slides)
    assert counts.temporal_memory().verdict == "not supported"


def difference(mean, p, cell="f1", seeds=5):
    return runs.Difference("a − b", (cell,), mean, Interval(mean - 0.1, mean + 0.1), p, seeds)


def test_p_values_are_corrected_over_the_differences_of_a_claim():
    one, two, none = runs.corrected([difference(0.2, 0.03), difference(-0.2, 0.04), difference(0.2, math.nan)])
    assert (one.sign, two.sign, none.sign) == (0, 0, 0)
    assert one.p == pytest.approx(0.06)
    (alone,) = runs.corrected([difference(-0.2, 0.03)])
    assert alone.sign == -1
    assert difference(0.2, 0.001, seeds=2).sign == 0


def results(folder, values, size="full", table="components"):
    folder.mkdir(parents=True)
    (folder / "paper.json").write_text(json.dumps({"table": table, "size": size}))
    about = {"cohort": "bracs-vit_s_ssl", "fold": 0, "status": "done"}
    rows = [
        {**about, "variant": name, "seed": seed, "test_f1": value, "test_auc": value}
        for name, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]
    columns = [*about, "variant", "seed", "test_f1", "test_auc"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "results.csv", index=False)


def test_runs_of_the_user_decide_and_smoke_sizes_do_not(tmp_path):
    steps = {"drop": (0.6, 0.61, 0.59), "anchor+drop": (0.7, 0.712, 0.688), "anchor+nsf": (0.7, 0.712, 0.688)}
    rising = {**steps, "anchor+nsf+drop": (0.8, 0.814, 0.786)}
    results(tmp_path / "runs" / "components", rising)
    claim = claim_of("components-all-help")
    found = rule(claim, Measured(tmp_path / "runs"))
    assert (found.verdict, found.run) == ("supported", str(tmp_path / "runs" / "components"))
    results(tmp_path / "quick" / "components", rising, size="quick")
    assert rule(claim, Measured(tmp_path / "quick")).run.startswith("asmil/paper/data")
    falling = {name: [1 - value for value in values] for name, values in rising.items()}
    results(tmp_path / "other" / "components", falling)
    assert rule(claim, Measured(tmp_path / "other")).verdict == "not supported"
    level = dict.fromkeys(rising, rising["drop"]) | {"anchor+drop": (0.6, 0.7, 0.5)}
    results(tmp_path / "level" / "components", level)
    assert rule(claim, Measured(tmp_path / "level")).verdict == "undecided"
    del rising["anchor+nsf"]
    results(tmp_path / "part" / "components", rising)
    assert rule(claim, Measured(tmp_path / "part")).verdict == "undecided"
    with pytest.raises(AsmilError, match="nowhere"):
        Measured(tmp_path / "nowhere")


def test_the_verb_lists_some_claims_and_names_near_ones():
    done = CliRunner().invoke(app, ["claims", "gain-c16", "kl-gradient", "--json"])
    assert done.exit_code == 0
    assert [row["verdict"] for row in json.loads(done.output)] == ["not supported", "supported"]
    wrong = CliRunner().invoke(app, ["claims", "gain-c166"])
    assert isinstance(wrong.exception, AsmilError)
    assert "gain-c16" in str(wrong.exception)
