"""The claims of the paper: every one has a rule, and rules decide by what they are given."""

import json
from importlib.resources import files

import pandas as pd
import pytest
from typer.testing import CliRunner

from asmil.cli.main import app
from asmil.errors import AsmilError
from asmil.paper.claims import counts, in_print, mathematics, runs
from asmil.paper.claims.listing import claims, rule
from asmil.paper.claims.measured import BUNDLED, Measured
from asmil.paper.recipes import RECIPES


def test_every_claim_has_exactly_one_rule():
    in_code = [name for rules in (mathematics, in_print, counts, runs) for name in rules.RULES]
    as_data = [claim.id for claim in claims() for data in (claim.compare, claim.lead, claim.ruling) if data is not None]
    assert sorted([*in_code, *as_data]) == sorted(claim.id for claim in claims())
    assert len(claims()) == 62


def test_comparisons_name_rows_and_data_sets_of_their_tables():
    for claim in claims():
        for data in filter(None, (claim.compare, claim.lead)):
            recipe = RECIPES[data.table]
            named = [name for pair in data.pairs for name in pair] if claim.compare else [data.row]
            assert set(named) <= {row.name for row in recipe.rows}, claim.id
            assert set(getattr(data, "datasets", ())) <= set(recipe.datasets), claim.id


@pytest.mark.parametrize("name", [*mathematics.RULES, *in_print.RULES])
def test_mathematics_and_print_are_decided(name):
    ruling = {**mathematics.RULES, **in_print.RULES}[name]()
    assert ruling.decided or name == "online-nsf-vanishing"
    assert ruling.why


def test_known_verdicts():
    verdicts = {name: decide().verdict for name, decide in in_print.RULES.items()}
    assert verdicts["gain-c17"] == verdicts["gain-bracs"] == verdicts["plug-in-max"] == "supported"
    assert verdicts["gain-c16"] == verdicts["classic-4-of-5"] == verdicts["flops-vs-mhim"] == "not supported"
    assert mathematics.RULES["kl-gradient"]().verdict == "supported"
    assert mathematics.RULES["thm-smx-temperature-high"]().verdict == "not supported"


def test_at_least_forty_claims_are_decided_with_what_the_package_carries():
    measured = Measured()
    decided = [claim.id for claim in claims() if rule(claim, measured).decided]
    assert len(decided) >= 40
    assert json.loads(files("asmil.paper").joinpath(BUNDLED, "about.json").read_text())["trainings"]


def results(folder, values, size="full"):
    folder.mkdir(parents=True)
    (folder / "paper.json").write_text(json.dumps({"table": "components", "size": size}))
    about = {"cohort": "bracs-vit_s_ssl", "fold": 0, "status": "done"}
    rows = [
        {**about, "variant": name, "seed": seed, "test_f1": value, "test_auc": value}
        for name, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]
    pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)


def test_runs_of_the_user_decide_and_smoke_sizes_do_not(tmp_path):
    steps = {"drop": 0.6, "anchor+drop": 0.7, "anchor+nsf+drop": 0.75, "anchor+nsf": 0.7}
    rising = {name: [value, value + 0.011, value - 0.012] for name, value in steps.items()}
    results(tmp_path / "runs" / "components", rising)
    claim = next(one for one in claims() if one.id == "components-all-help")
    found = rule(claim, Measured(tmp_path / "runs"))
    assert (found.verdict, found.run) == ("supported", str(tmp_path / "runs" / "components"))
    results(tmp_path / "quick" / "components", rising, size="quick")
    assert rule(claim, Measured(tmp_path / "quick")).run.startswith("asmil/paper/data")
    falling = {name: [1 - value for value in values] for name, values in rising.items()}
    results(tmp_path / "other" / "components", falling)
    assert rule(claim, Measured(tmp_path / "other")).verdict == "not supported"
    with pytest.raises(AsmilError, match="nowhere"):
        Measured(tmp_path / "nowhere")


def test_the_verb_lists_some_claims_and_names_near_ones():
    done = CliRunner().invoke(app, ["claims", "gain-c16", "kl-gradient", "--json"])
    assert done.exit_code == 0
    assert [row["verdict"] for row in json.loads(done.output)] == ["not supported", "supported"]
    wrong = CliRunner().invoke(app, ["claims", "gain-c166"])
    assert isinstance(wrong.exception, AsmilError)
    assert "gain-c16" in str(wrong.exception)
