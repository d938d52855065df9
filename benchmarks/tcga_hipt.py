"""Cohorts from the published HIPT features of TCGA slides: `.npz` files and tables of labels to manifests and features.

    python benchmarks/tcga_hipt.py DATA brca cohorts/brca               # subtypes; also nsclc
    python benchmarks/tcga_hipt.py DATA blca cohorts/blca --survival    # also brca, gbmlgg, luad, ucec

DATA holds `tcga_hipt/` and `survival/`. Then, for example: asmil auto cohorts/brca/cohort.csv --out best

Columns for `--covariates`: age and is_female (brca, nsclc, luad), oncotree_code (survival).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

FEATURES = {"nsclc": "lung", "luad": "lung"}
"""The `.npz` of a cohort, if it has another name."""
CLINICAL = {"brca": "brca", "luad": "nsclc"}
"""Survival cohorts with a table of subtypes, which has the age and sex of the patients."""


def write_cohort(data: Path, name: str, out: Path, survival: bool) -> Path:
    """Write `cohort.csv` and one feature file per slide; slides without features are left out."""
    with np.load(data / "tcga_hipt" / f"{FEATURES.get(name, name)}.npz") as file:
        bags = dict(zip(file["slides"].tolist(), np.split(file["features"], file["offsets"][1:-1]), strict=True))
    if survival:
        table = pd.read_csv(data / "survival" / f"tcga_{name}_survival.csv")
        table = table.rename(columns={"case_id": "patient", "slide_id": "slide", "survival_months": "time_months"})
        table = table[["slide", "patient", "site", "time_months", "event", "oncotree_code"]]
        if name in CLINICAL:
            patients = _subtyping(data, CLINICAL[name])[["patient", "age", "is_female"]]
            table = table.merge(patients.drop_duplicates("patient"), how="left", on="patient")
    else:
        table = _subtyping(data, name)[["slide", "patient", "label", "site", "age", "is_female"]]
    table = table[table["slide"].isin(bags)]
    (out / "features").mkdir(parents=True, exist_ok=True)
    for slide in table["slide"]:
        np.save(out / "features" / f"{slide}.npy", bags[slide])
    table.to_csv(out / "cohort.csv", index=False)
    return out / "cohort.csv"


def _subtyping(data: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(data / "tcga_hipt" / f"{name}_subtyping.csv")


def main() -> None:
    """Write the cohort that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--survival", action="store_true")
    given = parser.parse_args()
    print(write_cohort(given.data, given.name, given.out, given.survival))


if __name__ == "__main__":
    main()
