"""Question 3 of the study on real tissue (plan: studies/real_tissue.md): where the maps of finished sweeps look.

    python benchmarks/real_maps.py prepare cohorts/colon/nuclei cohorts/colon/grid     (before the sweep of colon)
    asmil sweep studies/real_colon.yaml --out runs/real_colon                          (and real_transplants.yaml)
    python benchmarks/real_maps.py record runs/real_colon runs/real_transplants --out docs/results/real_tissue
    python benchmarks/real_maps.py chance cohorts/colon/nuclei --out docs/results/real_tissue

`prepare` writes `splits-5x10.csv` (five times 10 folds, as in the ABMIL paper), `splits-five.csv` (its first five,
for `real_colon_cpu.yaml`, which is recorded with `--kinds attention`) and `permuted.csv` (the labels in random
order, a check that must fail). `chance` writes `chance.json`: the AUC on the same folds of a logistic regression on the
mean features of slides, with `permuted.csv` and with other random orders of the labels. A record is `maps_NAME.csv`,
one row per cohort, variant and kind of map: AUC and AP of the tiles of every test slide with true tiles, by models that
were not trained on it (mean over folds and seeds, then over slides); Spearman's correlation of the maps of two seeds;
the area between the curves of `asmil faithfulness`; and the AUC of the same models before training. The area takes
long, and is measured of the method's own map on `nuclei`.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from asmil.cohort.features import read_bag
from asmil.cohort.manifest import Slide, load_cohort
from asmil.cohort.splits import make_splits
from asmil.cohort.tile_truth import TRUTH_FILE, read_tile_truth
from asmil.evaluation.localization.tile_ranking import rank_tiles
from asmil.explain.faithfulness import FaithfulnessSettings, faithfulness_run
from asmil.explain.kinds import explain_bag, kinds_of
from asmil.files import write_json, write_text
from asmil.models.base import MILModel
from asmil.runs.model import build_model
from asmil.runs.run import Run
from asmil.runs.trained_models import TrainedModel
from asmil.tables.arrays import Floats
from asmil.tasks.intervals import drawn_slides, mean_estimate
from real_tissue import columns_of, with_earlier
from real_tissue_report import PERMUTED

REPEATS, FOLDS, FEW_FOLDS = 5, 10, 5
EXPENSIVE = {"leave_one_out", "integrated_gradients"}
"""Kinds of maps that are not compared, since they take many passes per slide."""
FAITHFUL, FAITHFUL_SLIDES, RESAMPLES = "nuclei", 10, 2000


def prepare(folder: Path) -> None:
    """Write the repeated folds, and a manifest with permuted labels."""
    manifest = folder / "cohort.csv"
    cohort = load_cohort(manifest)
    tables = []
    for repeat in range(REPEATS):
        table = make_splits(cohort, FOLDS, seed=repeat).table
        tables.append(table.assign(fold=table["fold"] + repeat * FOLDS))
    write_text(folder / "splits-5x10.csv", pd.concat(tables).to_csv(index=False))
    write_text(folder / "splits-five.csv", tables[0][tables[0]["fold"] < FEW_FOLDS].to_csv(index=False))
    table = pd.read_csv(manifest, dtype=str)
    permuted = np.random.default_rng(0).permutation(table["label"].to_numpy())
    write_text(folder / "permuted.csv", table.assign(label=permuted).to_csv(index=False))


def chance(folder: Path, orders: int = 200) -> dict[str, float]:
    """The AUC that labels in random order have by chance, and that of those in `permuted.csv`."""
    cohort = load_cohort(folder / "permuted.csv")
    place = {slide.slide: number for number, slide in enumerate(cohort.slides)}
    means = np.stack([read_bag(s.source, s.slide, s.mpp).features.float().mean(dim=0).numpy() for s in cohort.slides])
    labels = np.array([slide.label == cohort.classes[1] for slide in cohort.slides])
    table = pd.read_csv(folder / "splits-5x10.csv", dtype={"slide": str})
    table["place"] = table["slide"].map(place)
    parts = [part.groupby("role")["place"].apply(list) for _, part in table.groupby("fold")]
    draw = np.random.default_rng(1)
    values = [_auc_of_means(means, draw.permutation(labels), parts) for _ in range(orders)]
    own = _auc_of_means(means, labels, parts)
    low, high = np.quantile(values, [0.025, 0.975])
    below = float(np.mean(np.array(values) <= own))
    return {"orders": orders, "mean": float(np.mean(values)), "low": low, "high": high, "own": own, "below": below}


def _auc_of_means(means: Floats, labels: Floats, parts: Sequence[pd.Series]) -> float:
    """The mean AUC of the test slides of all folds that have both classes."""
    scores = []
    for part in parts:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, solver="liblinear", dual=True))
        model.fit(means[part["train"]], labels[part["train"]])
        if len(set(labels[part["test"]])) > 1:
            scores.append(roc_auc_score(labels[part["test"]], model.decision_function(means[part["test"]])))
    return float(np.mean(scores))


def record(sweep: Path, workers: int, only: Sequence[str] | None = None) -> pd.DataFrame:
    """All cohorts and variants of a finished sweep whose methods have maps.

    only: the kinds of maps; None: all that are compared
    """
    results = pd.read_csv(sweep / "results.csv")
    finished = results[results["status"] == "done"].drop_duplicates(["cohort", "variant"])
    finished = finished[~finished["cohort"].str.contains(PERMUTED)]
    runs = [(row["cohort"], row["variant"], sweep / row["run"]) for row in finished.to_dict("records")]
    with ProcessPoolExecutor(workers) as pool:
        tables = list(pool.map(partial(_of_run, only=only), *zip(*runs, strict=True)))
    return pd.concat(tables, ignore_index=True)


def _of_run(cohort: str, variant: str, path: Path, only: Sequence[str] | None) -> pd.DataFrame:
    rows = measured(Run(path, "cpu"), cohort == FAITHFUL, only)
    return pd.DataFrame([{"cohort": cohort, "variant": variant, **row} for row in rows])


def measured(run: Run, faithfulness: bool, only: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """One row for each kind of map of a run; faithfulness: also of the method's own map, the first row."""
    kinds = [kind for kind in compared_kinds(run.trained[0].model) if only is None or kind in only]
    if not kinds:
        return []
    truth = read_tile_truth(Path(str(run.cohort.manifest)).parent / TRUTH_FILE, ("tile",))
    tumor = {str(slide): part.sort_values("tile")["tumor"].to_numpy(bool) for slide, part in truth.groupby("slide")}
    slides = [s for s in run.cohort.read(run.kind)[0].slides if s.slide in set(run.slides_of_role("test"))]
    slides = [slide for slide in slides if tumor[slide.slide].any() and not tumor[slide.slide].all()]
    found = [of_slide(run, slide, tumor[slide.slide], kinds) for slide in slides]
    counts = drawn_slides([slide.patient for slide in slides], RESAMPLES, seed=0)
    share = float(np.mean([tumor[slide.slide].mean() for slide in slides]))
    rows = []
    for kind in kinds:
        row: dict[str, Any] = {"kind": kind, "slides": len(slides), "tumor_share": share}
        for name in ("auc", "ap", "agreement", "initial_auc"):
            row |= columns_of(name, mean_estimate([slide[kind][name] for slide in found], counts))
        rows.append(row)
    if faithfulness:
        asked = FaithfulnessSettings(kinds=(kinds[0],), slides=FAITHFUL_SLIDES, resamples=RESAMPLES, device="cpu")
        rows[0] |= columns_of("area", faithfulness_run(run.path, asked).kinds[kinds[0]].area)
    return rows


def compared_kinds(model: MILModel) -> list[str]:
    """The kinds of maps of a method that are compared."""
    return [kind for kind, missing in kinds_of(model).items() if missing is None and kind not in EXPENSIVE]


def of_slide(run: Run, slide: Slide, tumor: Floats, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
    """The numbers of a slide by kind of map: means over the models that test it."""
    bag, _ = run.bag(slide)
    testing = run.roles_of(slide.slide)["test"]
    models = [trained for trained in run.trained if trained.fold in testing]

    def drawn(trained: TrainedModel, model: MILModel, kind: str) -> Floats:
        name = slide.label if kind != "attention" else None
        return explain_bag(model, trained.task, model.prepare(bag), kind, name).values.numpy()

    def ranked(values: Sequence[Floats]) -> tuple[float, float]:
        mean = rank_tiles([tumor] * len(values), values).mean
        return mean.auc, mean.ap

    numbers = {}
    for kind in kinds:
        maps = {(each.fold, each.seed): drawn(each, each.model, kind) for each in models}
        auc, ap = ranked(list(maps.values()))
        initial, _ = ranked(
            [drawn(each, _untrained(run, each), kind) for each in models if each.fold == models[0].fold]
        )
        numbers[kind] = {"auc": auc, "ap": ap, "agreement": _agreement(maps), "initial_auc": initial}
    return numbers


def _untrained(run: Run, trained: TrainedModel) -> MILModel:
    """The model as it was before its training."""
    described = run.description
    return build_model(described.config, described.in_features, trained.model.n_outputs, trained.seed).eval()


def _agreement(maps: dict[tuple[int, int], Floats]) -> float:
    """The mean correlation of the maps of two seeds of the same fold; nan if there is one seed or a constant map."""
    by_fold: dict[int, list[Floats]] = defaultdict(list)
    for (fold, _), values in maps.items():
        by_fold[fold].append(values)
    pairs = [pair for same in by_fold.values() for pair in itertools.combinations(same, 2)]
    return float(np.mean([spearmanr(*pair).statistic for pair in pairs])) if pairs else float("nan")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    preparing = verbs.add_parser("prepare", help="write repeated folds and permuted labels")
    preparing.add_argument("cohorts", type=Path, nargs="+")
    recording = verbs.add_parser("record", help="write a table for each finished sweep")
    recording.add_argument("sweeps", type=Path, nargs="+")
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--workers", type=int, default=1)
    recording.add_argument("--kinds", nargs="+", help="the kinds of maps (default: all but the slowest)")
    guessing = verbs.add_parser("chance", help="measure what labels in random order give by chance")
    guessing.add_argument("cohort", type=Path)
    guessing.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.verb == "prepare":
        for folder in given.cohorts:
            prepare(folder)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    if given.verb == "chance":
        write_json(given.out / "chance.json", chance(given.cohort))
        return
    for sweep in given.sweeps:
        path = given.out / f"maps_{sweep.name.removeprefix('real_')}.csv"
        table = record(sweep, given.workers, given.kinds)
        if path.is_file():
            table = with_earlier(table, pd.read_csv(path))
        table.to_csv(path, index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
