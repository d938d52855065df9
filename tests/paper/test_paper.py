"""The paper's tables as data, recipes that run them, and our numbers beside the printed ones."""

import json
import math

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from asmil.cli.main import app
from asmil.engine import InlineEngine
from asmil.errors import AsmilError
from asmil.experiments.running import SweepFolder
from asmil.paper.comparing import cells, effects, judge_effect, t_interval, welch_interval
from asmil.paper.counted import SETS, cost_bag, cost_model, multiply_adds, stand_in_set
from asmil.paper.datasets import DATASETS, stand_in
from asmil.paper.manifests import build_manifest
from asmil.paper.printed import printed, printed_table
from asmil.paper.recipes import COUNTED, RECIPES, recipe
from asmil.paper.report import paper_document, write_paper
from asmil.paper.running import PaperRun
from asmil.reporting import Interval
from shared_data import REPOSITORY, SHARED_DATA

runner = CliRunner()


def test_every_table_and_figure_has_a_recipe_or_is_counted():
    tables, figures = printed()
    assert set(tables) | set(figures) == set(RECIPES) | set(COUNTED)
    assert not set(RECIPES) & set(COUNTED)


def test_printed_numbers_are_those_of_the_transcript():
    path = SHARED_DATA.parent / "paper" / "tables.yaml"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    source = {table["id"]: table for table in yaml.safe_load(path.read_text())["tables"]}
    by_label = {table["latex_label"]: table for table in source.values()}
    for table in printed()[0].values():
        if table.id == "significance":
            continue  # its columns are un-swapped
        theirs = by_label[table.label]
        assert len(table.rows) == len(theirs["rows"])
        for row, other in zip(table.rows, theirs["rows"], strict=True):
            found = [value[0] for value in row.values.values()]
            assert found == [cell["mean"] for cell in other["values"].values()]


@pytest.mark.parametrize("size", ["quick", "small", "full"])
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_has_settings_that_resolve(tmp_path, name, size):
    sweeps = PaperRun(RECIPES[name], tmp_path, size).sweeps()
    assert sweeps
    for sweep in sweeps:
        jobs = SweepFolder(sweep, tmp_path, on_gpu=False).fixed_jobs()  # refuses settings that do not exist
        assert len({job.folder for job in jobs}) == len(jobs)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_a_stand_in_has_the_shape_of_its_data_set(name):
    from asmil.synthetic.bags.plan import plan_slides

    one = DATASETS[name]
    config = stand_in(one, "full").synthetic
    plans = plan_slides(config)
    assert len(plans) == one.slides
    if one.task == "classification":
        counts = [sum(plan.split == part for plan in plans) for part in ("train", "val", "test")]
        assert counts == list(one.parts)
        assert len({plan.site for plan in plans if plan.split == "test"}) == one.test_sites


def test_stand_ins_have_the_site_bias_that_is_asked_for_and_folders_are_of_one(tmp_path):
    asked = {"rows": ("anchor+drop",), "seeds": 1, "epochs": 1}
    run = PaperRun(recipe("components"), tmp_path, "quick", site_bias=0.3, **asked)
    assert {sweep.cohorts[name].synthetic.site_bias for sweep in run.sweeps() for name in sweep.cohorts} == {0.3}
    unbiased = PaperRun(recipe("components"), tmp_path, "quick", **asked)
    assert {sweep.cohorts[name].synthetic.site_bias for sweep in unbiased.sweeps() for name in sweep.cohorts} == {0.0}
    assert "site bias 0.3" in paper_document(run, run.results()).about
    noted = {name: value for name, value in unbiased.about().items() if name != "site_bias"}  # as earlier versions did
    (tmp_path / "paper.yaml").write_text(yaml.safe_dump(noted))
    with pytest.raises(AsmilError, match="site_bias"):
        list(unbiased.run(InlineEngine(), on_gpu=False))


def test_a_table_runs_end_to_end_and_says_that_it_is_synthetic(tmp_path):
    run = PaperRun(
        recipe("components"), tmp_path / "out", "quick", rows=("anchor+nsf+drop", "anchor+drop"), seeds=2, epochs=1
    )
    assert {end.status for end in run.run(InlineEngine(), on_gpu=False)} == {"done"}
    assert {end.status for end in run.run(InlineEngine(), on_gpu=False)} == {"done before"}
    page = write_paper(run, run.results())
    assert "SYNTHETIC STAND-IN" in page.read_text()
    assert "SYNTHETIC STAND-IN" in (run.out / "table.md").read_text()
    found = json.loads((run.out / "table.json").read_text())
    assert found["synthetic"] is True
    assert {cell["verdict"] for cell in found["cells"]} == {"cannot be compared"}
    assert {effect["row"] for effect in found["effects"]} == {"anchor+nsf+drop"}
    assert found["cells"][0]["printed"] == printed_table("components").value("bracs_f1", anchor=True, nsf=True)
    with pytest.raises(AsmilError, match="epochs"):
        list(PaperRun(recipe("components"), tmp_path / "out", "quick", epochs=2).run(InlineEngine(), on_gpu=False))


def test_survival_has_enough_events_at_smoke_size(tmp_path):
    names = ("tcga_brca", "tcga_luad", "tcga_ucec")
    run = PaperRun(recipe("survival"), tmp_path / "out", "quick", datasets=names, rows=("abmil",), epochs=1)
    ends = [(end.job.name, end.status, end.error) for end in run.run(InlineEngine(), on_gpu=False)]
    assert {status for _, status, _ in ends} == {"done"}, ends


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*RECIPES, *COUNTED}))
def test_every_table_runs_at_smoke_size(tmp_path, name):
    options = ["--synthetic", "--quick", "--quiet", "--out", str(tmp_path / "out"), "--device", "cpu"]
    done = runner.invoke(app, ["paper", name, *options])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "table.json").is_file()


@pytest.mark.heavy
def test_a_table_runs_on_two_nodes_of_a_ray_cluster(tmp_path):
    from ray_cluster import ray_cluster

    with ray_cluster(REPOSITORY / "src", num_cpus=1) as cluster:
        cluster.add_node(num_cpus=1)
        command = ["paper", "update", "--synthetic", "--quick", "--quiet", "--dataset", "bracs"]
        options = ["--engine", "ray", "--address", cluster.address, "--workers", "2", "--out", str(tmp_path / "out")]
        done = runner.invoke(app, [*command, *options])
    assert done.exit_code == 0, done.output
    assert len(pd.read_csv(tmp_path / "out" / "results.csv")) == 4


def fake_results(values):
    rows = [
        {"variant": name, "cohort": "bracs-vit_s_ssl", "seed": seed, "fold": 0, "test_f1": value, "test_auc": value}
        for name, numbers in values.items()
        for seed, value in enumerate(numbers)
    ]
    return pd.DataFrame(rows)


def test_effects_are_paired_and_compared_with_the_printed_ones():
    results = fake_results({"anchor+drop": [0.70, 0.75, 0.72], "drop": [0.60, 0.66, 0.61], "none": [0.65, 0.70, 0.65]})
    found = {(one.row, one.metric): one for one in effects(recipe("components"), results)}
    up, down = found["anchor+drop", "test_f1"], found["drop", "test_f1"]
    assert up.ours == pytest.approx(0.1, abs=1e-9)
    assert (up.verdict, up.printed) == ("agrees", pytest.approx(0.031))
    assert down.verdict == "differs"
    smoke = effects(recipe("components"), results, smoke=True)
    assert {one.verdict for one in smoke} == {"cannot be compared"}


def test_absolute_numbers_are_only_compared_on_real_data():
    results = fake_results({"none": [0.711, 0.713, 0.712]})
    real = {one.metric: one for one in cells(recipe("components"), results, synthetic=False)}
    assert real["test_f1"].verdict == "agrees"
    assert real["test_auc"].verdict == "differs"
    assert {one.verdict for one in cells(recipe("components"), results, synthetic=True)} == {"cannot be compared"}


def test_intervals_against_another_implementation():
    from scipy import stats

    values = [0.1, 0.3, 0.25, 0.05]
    interval, p = t_interval(values)
    expected = stats.ttest_1samp(values, 0.0)
    assert p == pytest.approx(expected.pvalue)
    assert tuple(interval) == pytest.approx(tuple(expected.confidence_interval()))
    # five numbers with mean 0.2 and sd 0.1
    other = [0.2 + 0.1 * z * math.sqrt(4 / 10) for z in (-2, -1, 0, 1, 2)]
    welch = stats.ttest_ind(values, other, equal_var=False).confidence_interval()
    assert tuple(welch_interval(values, 0.2, 0.1, 5)) == pytest.approx(tuple(welch))
    assert not welch_interval([0.3], 0.2, 0.1, 5).is_defined


@pytest.mark.parametrize(
    ("interval", "said", "verdict"),
    [
        (Interval(0.01, 0.02), 0.05, "agrees"),
        (Interval(0.01, 0.02), -0.05, "differs"),
        (Interval(-0.005, 0.005), 0.05, "differs"),
        (Interval(-0.005, 0.005), 0.01, "undecided"),
        (Interval(-0.1, 0.2), 0.05, "undecided"),
        (Interval(math.nan, math.nan), 0.05, "cannot be compared"),
        (Interval(0.01, 0.02), math.nan, "cannot be compared"),
    ],
)
def test_verdicts_of_effects(interval, said, verdict):
    assert judge_effect(interval, said)[0] == verdict


def test_the_paper_is_listed_and_mistakes_name_what_is_near():
    listed = runner.invoke(app, ["paper"])
    assert listed.exit_code == 0
    assert "components" in listed.output
    for arguments, named in (
        (["paper", "component", "--synthetic"], "components"),
        (["paper", "components"], "--synthetic"),
        (["paper", "components", "--synthetic", "--quick", "--small"], "--quick"),
        (["paper", "components", "--synthetic", "--quick", "--dataset", "brac"], "bracs"),
        (["paper", "components", "--synthetic", "--quick", "--row", "ancor"], "anchor"),
        (["paper", "manifest", "camelyon", "--labels", "x.csv", "--out", "y.csv"], "camelyon16"),
    ):
        done = runner.invoke(app, arguments)
        assert isinstance(done.exception, AsmilError), arguments
        assert named in str(done.exception)


def test_a_document_of_no_results_is_still_one(tmp_path):
    run = PaperRun(recipe("components"), tmp_path, "quick")
    document = paper_document(run, pd.DataFrame(columns=["variant", "cohort", "seed", "status"]))
    assert document.warnings


def test_the_answer_names_the_best_row_and_counts_effects(tmp_path):
    rows = [
        {"cohort": "bracs-vit_s_ssl", "variant": name, "seed": seed, "test_f1": f1 + seed / 1000, "test_auc": f1}
        for name, f1 in (("drop", 0.9), ("anchor+drop", 0.7), ("anchor+nsf+drop", 0.8))
        for seed in range(3)
    ]
    document = paper_document(PaperRun(recipe("components"), tmp_path, "small"), pd.DataFrame(rows))
    assert "9 trainings" in document.answer
    assert "drop on bracs (0.900)" in document.answer
    assert "2 as printed, 2 absent or reversed, 0 undecided" in document.answer
    overview = document.tables()[0]
    assert [cell.text for cell in next(iter(overview.cells()))][:2] == ["anchor+nsf+drop", "bracs"]
    quick = paper_document(PaperRun(recipe("components"), tmp_path, "quick"), pd.DataFrame(rows))
    assert not any(table.in_terminal for table in quick.tables()[1:])


def test_counts_of_operations_are_those_counted_by_hand():
    bag = cost_bag()
    assert multiply_adds(cost_model("abmil"), bag) == pytest.approx(164.35, abs=0.05)
    assert multiply_adds(cost_model("asmil"), bag) == pytest.approx(131.9, abs=0.5)


def test_a_stand_in_of_a_classic_set_has_its_sizes():
    bags, positive, instances, width = SETS["musk1"]
    made = stand_in_set("musk1")
    assert (made.n_bags, int(made.label.sum()), len(made.bag), made.n_features) == (bags, positive, instances, width)


def test_manifests_from_published_label_files(tmp_path):
    c17 = tmp_path / "stage_labels.csv"
    lines = ["patient,stage"]
    for patient in range(100):
        lines.append(f"patient_{patient:03d}.zip,pN0")
        lines += [f"patient_{patient:03d}_node_{node}.tif,{'macro' if node else 'negative'}" for node in range(5)]
    c17.write_text("\n".join(lines) + "\n")
    build_manifest("camelyon17", [c17], tmp_path / "c17.csv")
    table = pd.read_csv(tmp_path / "c17.csv")
    assert table["split"].value_counts().to_dict() == {"train": 300, "test": 200}
    assert table["site"].nunique() == 5
    assert table.loc[table["slide"] == "patient_059_node_4", "split"].item() == "train"

    train = tmp_path / "train.txt"
    train.write_text("".join(f"normal_{i:03d}.tif\n" for i in range(1, 160)) + "".join(f"tumor_{i:03d}.tif\n" for i in range(1, 112)))  # fmt: skip # noqa: E501
    test = tmp_path / "reference.csv"
    test.write_text("".join(f"test_{i:03d},{'Normal' if i % 2 else 'Tumor'},x,y\n" for i in range(1, 131) if i != 114))
    build_manifest("camelyon16", [train, test], tmp_path / "c16.csv")
    table = pd.read_csv(tmp_path / "c16.csv")
    assert table.groupby(["split", "label"]).size().to_dict() == {
        ("test", "normal"): 65,
        ("test", "tumor"): 64,
        ("train", "normal"): 159,
        ("train", "tumor"): 111,
    }
    with pytest.raises(AsmilError, match="270"):
        build_manifest("camelyon16", [test], tmp_path / "half.csv")

    bracs = tmp_path / "BRACS.csv"
    rows = ["WSI Filename,Patient Id,RoI,WSI label,Set"]
    for split, count in (("Training", 395), ("Validation", 65), ("Testing", 87)):
        rows += [f"BRACS_{split}{i}.svs,{split}{i // 2},3,{['BT', 'AT', 'MT'][i % 3]},{split}" for i in range(count)]
    bracs.write_text("\n".join(rows) + "\n")
    build_manifest("bracs", [bracs], tmp_path / "bracs_cohort.csv")
    assert sorted(pd.read_csv(tmp_path / "bracs_cohort.csv")["label"].unique()) == ["atypical", "benign", "malignant"]
    bracs.write_text("WSI Filename,Set\nx,Training\n")
    with pytest.raises(AsmilError, match=r"BRACS\.csv"):
        build_manifest("bracs", [bracs], tmp_path / "no.csv")
