"""TCGA: bags of HIPT region features, subtypes with the authors' splits, and survival tables with folds.

The tables are read as this project distributes them, or as they are in clones of the repositories of their authors:
HIPT (`.pt` files, `dataset_csv`, `results_cvpr2022_class`), Patch-GCN and PORPOISE (`*_all_clean.csv.zip`,
`splits/5foldcv`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from asmil.cohort.features import read_bag
from asmil.cohort.numpy_files import DAMAGED_NUMPY, read_npz
from asmil.cohort.source import FeatureSource
from asmil.cohort.splits import COLUMNS as SPLIT_COLUMNS
from asmil.datasets.cohort_plan import CohortPlan, array_writer, bags_digest, table_digest
from asmil.datasets.downloads import Downloads, refuse_pointer
from asmil.errors import AsmilError, first_line

SUBTYPES = {"brca": ("IDC", "ILC"), "nsclc": ("LUAD", "LUSC")}
SURVIVAL = ("blca", "brca", "gbmlgg", "luad", "ucec")
ARCHIVES = {"nsclc": "lung", "luad": "lung"}
"""The name of a cohort in HIPT, if it is another one."""
CLINICAL = {"brca": "brca", "luad": "nsclc"}
"""Survival cohorts with a table of subtypes, which has the age and sex of the patients."""
EMBEDDINGS = "vit256mean_tcga_slide_embeddings"
RESULTS_OF = "vits_tcga_pancancer_dino"
"""The features in the names of the folders of results."""
SPLITS, FOLDS = 10, 5
ROLES = ("test", "val", "train")
Bags = dict[str, NDArray[np.float16]]


def plan_subtypes(downloads: Downloads, name: str) -> CohortPlan:
    """Slides with a subtype, with the authors' splits and results if they were downloaded."""
    table = read_subtypes(downloads, name)
    bags = read_regions(downloads, name, table["slide"])
    table = table[table["slide"].isin(bags)]
    digests = {"labels": table_digest(table[["slide", "patient", "label"]]), "features": bags_digest(bags)}
    tables: dict[str, pd.DataFrame] = {}
    notes = []
    splits, published = read_splits(downloads, name), read_published(downloads, name)
    if splits is None:
        notes.append("the splits of the authors were not downloaded, so official-K.csv and repaired-K.csv are missing")
    else:
        digests["splits"] = table_digest(splits[["slide", "fold", "role"]])
        tables |= split_manifests(table, splits)
    if published is None:
        notes.append("the results of the authors were not downloaded, so published.csv is missing")
    else:
        tables["published.csv"] = published
    return CohortPlan(table, digests, array_writer(bags), tables=tables, notes=tuple(notes))


def plan_hipt_survival(downloads: Downloads, name: str) -> CohortPlan:
    """Slides with survival times and region features."""
    table = read_survival(downloads, name)
    bags = read_regions(downloads, name, table["slide"])
    table = table[table["slide"].isin(bags)]
    if name in CLINICAL and _subtype_file(downloads, CLINICAL[name]) is not None:
        patients = read_subtypes(downloads, CLINICAL[name])[["patient", "age", "is_female"]]
        table = table.merge(patients.drop_duplicates("patient"), how="left", on="patient")
    tables = {}
    path = downloads.find("published_survival.csv")
    if path is not None:
        published = _read_csv(path, ("cohort", "method", "fold", "c_index"))
        if name in set(published["cohort"]):
            tables["published.csv"] = published[published["cohort"] == name]
    digests = {"labels": _survival_digest(table), "features": bags_digest(bags)}
    return CohortPlan(table, digests, array_writer(bags), tables=tables)


def plan_survival(downloads: Downloads, name: str) -> CohortPlan:
    """Slides with survival times, for features that the user has."""
    table = read_survival(downloads, name)
    return CohortPlan(table, {"labels": _survival_digest(table)})


def read_regions(downloads: Downloads, name: str, slides: Collection[str]) -> Bags:
    """The features of those of the slides that have any: N x 192, float16."""
    archive = downloads.find(f"{ARCHIVES.get(name, name)}.npz")
    if archive is not None:
        return _from_archive(archive, set(slides))
    folder = downloads.need(f"{ARCHIVES.get(name, name)}.npz", EMBEDDINGS)
    bags = {}
    for slide in slides:
        path = folder / f"{slide}.pt"
        if path.is_file():
            refuse_pointer(path)
            bags[slide] = read_bag(FeatureSource(path), slide).features.numpy().astype(np.float16)
    return bags


def _from_archive(path: Path, slides: Collection[str]) -> Bags:
    try:
        arrays = read_npz(path, ("slides", "offsets", "features"))
        parts = np.split(arrays["features"], arrays["offsets"][1:-1])
        by_slide = dict(zip(arrays["slides"].tolist(), parts, strict=True))
    except DAMAGED_NUMPY as error:
        raise AsmilError(f"{path} cannot be read ({first_line(error)}); download it again") from None
    return {slide: features for slide, features in by_slide.items() if slide in slides}


def read_subtypes(downloads: Downloads, name: str) -> pd.DataFrame:
    """slide, patient, label, site, age, is_female and mutations (1, 0 or empty)."""
    path = _subtype_file(downloads, name) or downloads.need(f"{name}_subtyping.csv", _clone_table(name))
    if path.suffix == ".zip":
        table = _read_csv(path, ("case_id", "slide_id", "oncotree_code", "age", "is_female"))
        table = table.rename(columns={"case_id": "patient", "slide_id": "slide", "oncotree_code": "label"})
        table = table[table["label"].isin(SUBTYPES[name])]
    else:
        table = _read_csv(path, ("slide", "patient", "label", "age", "is_female"))
    mutations = [column for column in map(str, table.columns) if column.endswith("_mut")]
    return _with_site(table)[["slide", "patient", "label", "site", "age", "is_female", *mutations]]


def _subtype_file(downloads: Downloads, name: str) -> Path | None:
    return downloads.find(f"{name}_subtyping.csv", _clone_table(name))


def _clone_table(name: str) -> str:
    return f"tcga_{ARCHIVES.get(name, name)}_subset.csv.zip"


def read_splits(downloads: Downloads, name: str) -> pd.DataFrame | None:
    """The ten splits of the authors: slide, fold, role; None if they were not downloaded."""
    path = downloads.find(f"{name}_official_splits.csv")
    if path is not None:
        return _read_csv(path, ("slide", "fold", "role"))
    # all methods have the same splits
    folder = f"tcga_{ARCHIVES.get(name, name)}_subtype_mil_{RESULTS_OF}_1.00_none_s1"
    files = [f"{folder}/splits_{fold}.csv" for fold in range(SPLITS)]
    if downloads.find(files[0]) is None:
        return None
    return _joined_splits(downloads, files, ROLES).rename(columns={"name": "slide"})


def _joined_splits(downloads: Downloads, files: list[str], roles: tuple[str, ...]) -> pd.DataFrame:
    """name, fold and role, from one file per fold with one column of names per role."""
    parts = []
    for fold, file in enumerate(files):
        table = _read_csv(downloads.need(file), roles)
        parts += [
            pd.DataFrame({"name": table[role][table[role] != ""], "fold": str(fold), "role": role}) for role in roles
        ]
    return pd.concat(parts, ignore_index=True)


def split_manifests(table: pd.DataFrame, splits: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """`official-K.csv`, a split as printed, and `repaired-K.csv`, without slides of patients in two roles.

    As printed, patients are in two roles. Such manifests name every slide as its own patient, since training refuses
    them otherwise. The repaired ones keep the test set, and leave out validation slides of its patients and training
    slides of the patients of either.

    `splits-official.csv`, `splits-repaired.csv` and `splits-quarter.csv` have all folds in one file, for the manifests
    `official.csv` and `cohort.csv`; `quarter` is `repaired` with a quarter of the training patients.
    """
    manifests = {"official.csv": table.assign(patient=table["slide"])}
    folds: dict[str, list[pd.DataFrame]] = {"official": [], "repaired": [], "quarter": []}
    for fold in sorted(splits["fold"].unique()):
        roles = splits[splits["fold"] == fold]
        split = table.merge(roles[["slide", "role"]].rename(columns={"role": "split"}), on="slide")
        rank = split["split"].map({role: rank for rank, role in enumerate(ROLES)})
        official = split.assign(patient=split["slide"])
        repaired = split[rank == rank.groupby(split["patient"]).transform("min")]
        manifests |= {f"official-{fold}.csv": official, f"repaired-{fold}.csv": repaired}
        for name, part in (
            ("official", official),
            ("repaired", repaired),
            ("quarter", quartered(repaired, int(str(fold)))),
        ):
            folds[name].append(part.assign(fold=fold).rename(columns={"split": "role"})[SPLIT_COLUMNS])
    return manifests | {f"splits-{name}.csv": pd.concat(parts) for name, parts in folds.items()}


def quartered(split: pd.DataFrame, fold: int) -> pd.DataFrame:
    """The split with a quarter of the training patients of each label, drawn with the fold as seed."""
    train = split[split["split"] == "train"]
    kept: set[str] = set()
    for _, patients in train.groupby("label")["patient"]:
        names = sorted(set(patients))
        kept.update(np.random.default_rng(fold).choice(names, size=-(-len(names) // 4), replace=False).tolist())
    return split[(split["split"] != "train") | split["patient"].isin(kept)]


def read_published(downloads: Downloads, name: str) -> pd.DataFrame | None:
    """The authors' test AUC and accuracy by method, share of training slides and fold; None if not downloaded."""
    path = downloads.find("published_subtyping.csv")
    if path is not None:
        table = _read_csv(path, ("task", "method", "share_of_training", "fold", "test_auc", "test_acc"))
        return table[table["task"] == name]
    task = f"tcga_{ARCHIVES.get(name, name)}_subtype"
    form = re.compile(rf"{task}_(?P<method>.+)_{RESULTS_OF}_(?P<share>[\d.]+)_none_s1")
    parts = []
    for summary in downloads.all("summary.csv"):
        match = form.fullmatch(summary.parent.name)
        if match:
            table = _read_csv(summary, ("folds", "test_auc", "test_acc"))[["folds", "test_auc", "test_acc"]]
            start = {"task": name, "method": match["method"], "share_of_training": float(match["share"])}
            parts.append(pd.DataFrame({**start, **table.rename(columns={"folds": "fold"})}))
    return pd.concat(parts, ignore_index=True) if parts else None


def read_survival(downloads: Downloads, name: str) -> pd.DataFrame:
    """slide, patient, site, time_months, event, oncotree_code and fold, of patients in a fold."""
    ours, published = f"tcga_{name}_survival.csv", f"tcga_{name}_all_clean.csv.zip"
    path = downloads.need(ours, published)
    outcome = "event" if path.name == ours else "censorship"
    table = _read_csv(path, ("case_id", "slide_id", "survival_months", outcome, "oncotree_code"))
    if outcome == "censorship":
        table["event"] = (1 - table[outcome].astype(float)).astype(int).astype(str)
    table = table.rename(columns={"case_id": "patient", "slide_id": "slide", "survival_months": "time_months"})
    table = _with_site(table)
    table["fold"] = table["patient"].map(_read_folds(downloads, name))
    table = table[table["fold"].notna()].sort_values(["patient", "slide"], ignore_index=True)
    return table[["slide", "patient", "site", "time_months", "event", "oncotree_code", "fold"]]


def _read_folds(downloads: Downloads, name: str) -> dict[str, str]:
    """The fold that tests each patient."""
    ours = f"tcga_{name}_folds.csv"
    files = [f"5foldcv/tcga_{name}/splits_{fold}.csv" for fold in range(FOLDS)]
    path = downloads.need(ours, files[0])
    if path.name == ours:
        table = _read_csv(path, ("case_id", "fold"))
        return dict(zip(table["case_id"], table["fold"], strict=True))
    splits = _joined_splits(downloads, files, ("val",))
    return dict(zip(splits["name"], splits["fold"], strict=True))


def _survival_digest(table: pd.DataFrame) -> str:
    months = table["time_months"].astype(float).map("{:.2f}".format)
    return table_digest(table.assign(time_months=months)[["slide", "patient", "time_months", "event", "fold"]])


def _with_site(table: pd.DataFrame) -> pd.DataFrame:
    """Slides are named without `.svs`; the site is that of the barcode, since spreadsheets turn it into a number."""
    slides = table["slide"].str.removesuffix(".svs")
    return table.assign(slide=slides, site=slides.str.split("-").str[1])


def _read_csv(path: Path, columns: Collection[str]) -> pd.DataFrame:
    """A table of texts with at least these columns."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise AsmilError(f"{path} cannot be read as CSV ({first_line(error)}); download it again") from None
    if missing := [name for name in columns if name not in table.columns]:
        raise AsmilError(f"{path} has no column {', '.join(missing)}; download it again")
    return table
