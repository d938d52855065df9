"""The study on real tissue (plan: studies/real_tissue.md): records from finished sweeps, and the figure of its page.

    asmil datasets tcga-hipt --from DOWNLOADED --out cohorts/tcga-hipt     (and colon; then benchmarks/real_maps.py)
    asmil sweep studies/real_subtyping.yaml --out runs/real_subtyping          (and the other real_*.yaml)
    python benchmarks/real_tissue.py record runs/real_* --out docs/results/real_tissue
    python benchmarks/real_tissue.py published cohorts/tcga-hipt --out docs/results/real_tissue
    python benchmarks/real_tissue.py figure docs/results/real_tissue --out docs/images/real_tissue.svg
    python benchmarks/real_tissue.py combine docs/results/real_tissue --out studies/real_recommended.yaml
    python docs/evidence.py

A record is a table with one row per cohort and variant: the score with its interval, and the difference to the
reference with interval and p-value, Holm's over the variants that share the reference. The reference is `abmil`; in a
sweep without it, the first variant of the same method. Rows of an earlier record that a sweep does not have are kept.
A difference is always to the reference of the same sweep, whose score is in the row (`reference_value`).

To go on with a sweep on another machine, copy its results there without the trained models. `asmil sweep` then keeps
what is finished, and `record` needs no more (0.2 MB for a variant with two folds and two seeds; parts for a limit):

    tar cz --exclude='fold-*' --exclude='*.safetensors' runs/real_subtyping | split -b 15M - real_subtyping.tar.gz.
    cat real_subtyping.tar.gz.* | tar xz

`real_maps.py record` needs the models: run it where they were trained, before the machine is given back.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import yaml

import real_tissue_report
from asmil.evaluation import compare_runs
from asmil.evaluation.statistics import holm
from asmil.files import write_text
from asmil.reporting import Estimate
from asmil.runs.run import Run
from asmil.tasks.calibration import expected_calibration_error

STUDIES = Path(__file__).parent.parent / "studies"
REFERENCE = "abmil"
PRIMARY = ("auc", "c_index")
MEASURED = ("jsd_late", "effective_share", "training_seconds")
AGREEMENT = "agreement.csv"
COMBINED = "# Question 5 of real_tissue.md, second part; written by `python benchmarks/real_tissue.py combine`."


def record(sweep: Path) -> pd.DataFrame:
    """All cohorts and variants of a finished sweep."""
    results = pd.read_csv(sweep / "results.csv")
    finished = results[results["status"] == "done"]
    maps = pd.read_csv(sweep / AGREEMENT) if (sweep / AGREEMENT).is_file() else None
    tables = []
    for cohort, of_cohort in finished.groupby("cohort", sort=False):
        parts = {str(variant): part for variant, part in of_cohort.groupby("variant", sort=False)}
        planned = yaml.safe_load((STUDIES / f"{sweep.name}.yaml").read_text())["variants"]
        runs = {variant: sweep / parts[variant]["run"].iloc[0] for variant in planned if variant in parts}
        measured = of_cohort.groupby("variant")[[name for name in MEASURED if name in of_cohort]].mean()
        if maps is not None:
            agreement = maps[maps["cohort"] == cohort].groupby("variant")["rank_correlation"].mean()
            measured["map_agreement"] = agreement.reindex(measured.index)
        for family in [names for names in families(list(runs)) if len(names) > 1]:
            table = compared(str(cohort), {name: runs[name] for name in family})
            tables.append(table.merge(measured, how="left", left_on="variant", right_index=True))
    return pd.concat(tables, ignore_index=True)


def families(variants: Sequence[str]) -> list[list[str]]:
    """The variants that are compared with each other, each family's reference first.

    >>> families(["linear", "abmil"]), families(["abmil, none", "abmil, nsf", "dsmil, none"])
    ([['abmil', 'linear']], [['abmil, none', 'abmil, nsf'], ['dsmil, none']])
    """
    if REFERENCE in variants:
        return [[REFERENCE, *(name for name in variants if name != REFERENCE)]]
    by_method: dict[str, list[str]] = {}
    for name in variants:
        by_method.setdefault(name.split(", ")[0], []).append(name)
    return list(by_method.values())


def compared(cohort: str, runs: Mapping[str, Path]) -> pd.DataFrame:
    """Scores of some variants, and differences to the first."""
    reference = next(iter(runs))
    comparison = compare_runs(list(runs.values()), reference=runs[reference], unit=unit_of(Run(runs[reference], "cpu")))
    primary = next(metric.name for metric in comparison.metrics if metric.name.endswith(PRIMARY))
    names = {str(run.path): run.name for run in comparison.runs}
    scores = {run.name: run.metrics for run in comparison.runs}
    differences = {found.run: found for found in comparison.differences if found.metric.name == primary}
    rows = []
    for variant, path in runs.items():
        name = names[str(path)]
        row: dict[str, Any] = {"cohort": cohort, "variant": variant, "reference": reference, "metric": primary}
        row |= {"patients": comparison.n_patients, **columns_of("value", scores[name][primary])}
        if variant != reference:
            row |= {**columns_of("difference", differences[name].estimate), "p": differences[name].p}
            row["reference_value"] = scores[names[str(runs[reference])]][primary].value
        if "macro_f1" in scores[name]:
            row |= {"f1": scores[name]["macro_f1"].value, **of_predictions(Run(path, "cpu"))}
        rows.append(row)
    return pd.DataFrame(rows)


def joined(table: pd.DataFrame, earlier: pd.DataFrame | None) -> pd.DataFrame:
    """The rows of a sweep, and those of an earlier record that it does not have, with Holm's p-values over both."""
    if earlier is not None:
        _refuse_other_references(table, earlier)
        table = with_earlier(table, with_reference_values(earlier))
    families = table.groupby(["cohort", "reference"])["p"]
    return table.assign(p_holm=families.transform(lambda p: pd.Series(holm(p.dropna().tolist()), p.dropna().index)))


def with_reference_values(table: pd.DataFrame) -> pd.DataFrame:
    """A record with the score of the reference in every row that is compared with it, also if it was written before."""
    references = table.set_index(["cohort", "variant"])["value"]
    keys = pd.MultiIndex.from_frame(table[["cohort", "reference"]])
    found = pd.Series(references.reindex(keys).to_numpy(), table.index).where(table["variant"] != table["reference"])
    return table.assign(reference_value=table.get("reference_value", found).fillna(found))


def with_earlier(
    table: pd.DataFrame, earlier: pd.DataFrame, key: Sequence[str] = ("cohort", "variant")
) -> pd.DataFrame:
    """The rows of a table, and those of an earlier one whose key it does not have, in the order of the cohorts."""
    names = list(key)
    kept = earlier[~pd.MultiIndex.from_frame(earlier[names]).isin(pd.MultiIndex.from_frame(table[names]))]
    rows = pd.concat([table, kept], ignore_index=True)
    order = {cohort: place for place, cohort in enumerate(dict.fromkeys([*earlier["cohort"], *table["cohort"]]))}
    return rows.sort_values("cohort", key=lambda cohorts: cohorts.map(order), kind="stable", ignore_index=True)


def _refuse_other_references(table: pd.DataFrame, earlier: pd.DataFrame) -> None:
    """Raise if a cohort has another reference, or other patients, than in the earlier record."""
    about = ["reference", "patients"]
    both = table.merge(earlier, on=["cohort", "variant"], suffixes=("", "_earlier"))
    both = both[both["variant"] == both["reference"]]
    same = (both[about].to_numpy() == both[[f"{name}_earlier" for name in about]].to_numpy()).all(axis=1)
    for row in both[~same].to_dict("records"):
        raise SystemExit(
            f"{row['variant']} on {row['cohort']} is of other patients, or another reference, than in the record, so "
            "the rows cannot be joined; correct the cohort, or remove the record to replace it"
        )


def unit_of(run: Run) -> Literal["slide", "patient"]:
    """The unit of evaluation: the patient, unless slides of a patient have different targets, as in transplants."""
    targets = run.predictions.groupby("patient")[list(run.format.truth_columns)].nunique()
    return "slide" if (targets > 1).any(axis=None) else "patient"


def of_predictions(run: Run) -> dict[str, float]:
    """Calibration error of the test predictions (mean over folds and seeds), and how much two seeds differ.

    seed_spread: the mean absolute difference of the probability of a slide between two seeds
    """
    form, tested = run.format, run.predictions.query("role == 'test'")
    errors = [
        expected_calibration_error(form.truth(part).astype(int), form.predictions(part))
        for _, part in tested.groupby(["fold", "seed"])
    ]
    last = tested.assign(probability=form.predictions(tested)[:, -1])
    by_seed = last.pivot_table("probability", ["fold", "slide"], "seed").to_numpy().T
    spread = [np.abs(one - other).mean() for one, other in itertools.combinations(by_seed, 2)]
    return {"ece": float(np.mean(errors)), "seed_spread": float(np.mean(spread)) if spread else float("nan")}


def columns_of(name: str, estimate: Estimate) -> dict[str, float]:
    """An estimate as the columns of a record."""
    low, high = estimate.interval
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def published(cohorts: Path) -> pd.DataFrame:
    """The authors' results: means over folds by cohort, method and share of the training slides."""
    tables = []
    for path in sorted(cohorts.glob("*/published.csv")):
        table = pd.read_csv(path).rename(columns={"test_auc": "value", "c_index": "value"})
        table = table.assign(cohort=path.parent.name, share_of_training=table.get("share_of_training", 1.0))
        tables.append(table.groupby(["cohort", "method", "share_of_training"])["value"].mean().reset_index())
    return pd.concat(tables, ignore_index=True)


def combined_sweep(
    study: real_tissue_report.Study, asmil: Mapping[str, Any], tuned: Mapping[str, Any]
) -> dict[str, Any]:
    """The second part of question 5: from each start, all changes that helped on both cohorts, with an NSF anchor.

    Of several values of a setting the one with the highest mean is taken; settings that are tuned anyway are left out.
    Only on the first cohort: what is worse than ABMIL or the linear probe there is not recommended.

    asmil, tuned: the sweeps of questions 5 and 1
    """
    changes = study.changes()
    if changes is None:
        raise SystemExit(f"{study.folder} has no asmil.csv; record the sweep first")
    if changes["open"].any():
        left = [f"{row['start']}, {row['change']}" for row in changes[changes["open"]].to_dict("records")]
        raise SystemExit(f"runs that can change the combination have no record yet: {'; '.join(left)}; run them first")
    variants: dict[str, Any] = {}
    for start in real_tissue_report.STARTS:
        settings: dict[str, Any] = {}
        for change in changes[changes["helps"] & ~changes["is_tuned"] & (changes["start"] == start)]["change"]:
            settings = {**asmil["variants"][f"{start}, {change}"]["settings"], **settings}
        for weight in (0.1, 1.0):
            anchor = {"anchor.normalizer": "nsf", "anchor.weight": weight}
            variants[f"asmil, {start} combined, nsf {weight:g}"] = {
                "method": "asmil",
                "preset": start,
                "settings": {**settings, **anchor},
            }
    first = next(iter(tuned["cohorts"]))
    return {**tuned, "cohorts": {first: tuned["cohorts"][first]}, "variants": variants}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="write a table for each finished sweep")
    recording.add_argument("sweeps", type=Path, nargs="+")
    citing = verbs.add_parser("published", help="write a table of the authors' results")
    citing.add_argument("cohorts", type=Path)
    drawing = verbs.add_parser("figure", help="draw the differences of question 1")
    drawing.add_argument("records", type=Path)
    combining = verbs.add_parser("combine", help="write the sweep of what helped ASMIL, studies/real_recommended.yaml")
    combining.add_argument("records", type=Path)
    for verb in (recording, citing, drawing, combining):
        verb.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.verb == "figure":
        write_text(given.out, real_tissue_report.forest(real_tissue_report.Study(given.records)))
        return
    if given.verb == "combine":
        asmil, tuned = (yaml.safe_load((STUDIES / f"real_{name}.yaml").read_text()) for name in ("asmil", "subtyping"))
        study = real_tissue_report.Study(given.records)
        sweep = combined_sweep(study, asmil, tuned)
        write_text(given.out, f"{COMBINED}\n{yaml.safe_dump(sweep, sort_keys=False)}")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    if given.verb == "published":
        published(given.cohorts).to_csv(given.out / "published.csv", index=False, float_format="%.4f")
        return
    for sweep in given.sweeps:
        path = given.out / f"{sweep.name.removeprefix('real_')}.csv"
        table = joined(record(sweep), pd.read_csv(path) if path.is_file() else None)
        table.to_csv(path, index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
