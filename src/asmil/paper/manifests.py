"""Manifests of the paper's data sets from the label files that are published with them, with their counts checked.

    camelyon16   `reference.csv` of the test set (name, type, ...) and a list of the training slides, whose names hold
                 the label (normal_001, tumor_001): 270 training and 129 test slides
    camelyon17   `stage_labels.csv` (patient, stage): the rows of slides, patient_XXX_node_Y.tif; patients 0 to 59 are
                 of the centers 0 to 2 and train (300 slides), 60 to 99 of the centers 3 and 4 and test (200 slides)
    bracs        a CSV export of the published sheet: WSI Filename, Patient Id, WSI label (BT, AT, MT), Set

`asmil datasets tcga-survival` makes those of the survival cohorts. A count that differs from the published one is an
error that names both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from asmil.errors import AsmilError, did_you_mean
from asmil.files import write_text
from asmil.paper.datasets import DATASETS
from asmil.tables.columns import PARTS

CAMELYON17_TEST_FROM = 60
"""The first patient of the test set: 20 patients per center, five centers."""
BRACS_LABELS = {"BT": "benign", "AT": "atypical", "MT": "malignant"}
BRACS_SETS = {"training": "train", "validation": "val", "testing": "test"} | {part: part for part in PARTS}


def build_manifest(name: str, labels: Sequence[Path], out: Path) -> list[str]:
    """Write the manifest of a data set and return what it holds; counts that differ are refused."""
    if name.startswith("tcga_"):
        raise AsmilError(f"the manifest of {name} is made by `asmil datasets tcga-survival`")
    if name not in MANIFESTS:
        raise AsmilError(f"there is no recipe for the manifest of {name!r}: {did_you_mean(name, MANIFESTS)}")
    files, build = MANIFESTS[name]
    table = build(labels)
    if table.empty:
        raise AsmilError(f"{labels[0]}: no slide of {name} was found in it; expected: {files}")
    if table["slide"].duplicated().any():
        twice = table["slide"][table["slide"].duplicated()].iloc[0]
        raise AsmilError(f"{labels[0]}: the slide {twice!r} is in the label files more than once; give each file once")
    _check_counts(name, table)
    write_text(out, table.to_csv(index=False))
    counts = ", ".join(f"{key} {n}" for key, n in table.groupby("split", sort=False).size().items())
    return [f"{name}: {len(table)} slides of {table['patient'].nunique()} patients ({counts})", f"written: {out}"]


def describe_manifest() -> list[str]:
    """The files that each data set needs, one line per data set."""
    return [f"{name}: {files}" for name, (files, _) in MANIFESTS.items()]


def _check_counts(name: str, table: pd.DataFrame) -> None:
    for part, wanted in zip(PARTS, DATASETS[name].parts, strict=True):
        count = int((table["split"] == part).sum())
        if count != wanted:
            raise AsmilError(f"{name}: {count} {part} slides were found, the paper has {wanted}; check the files")


def _read(path: Path, header: bool = True) -> pd.DataFrame:
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, header=0 if header else None, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise AsmilError(f"{path}: this label file cannot be read as CSV ({error}); check the path") from None


def _column(path: Path, table: pd.DataFrame, *names: str) -> pd.Series[str]:
    """The column with one of these names, in any spelling."""
    known = {re.sub(r"[^a-z0-9]", "", str(column).lower()): column for column in table.columns}
    for name in names:
        if name in known:
            return table[known[name]].str.strip()
    raise AsmilError(f"{path}: no column {' or '.join(names)} was found; it has {', '.join(map(str, table.columns))}")


def _stem(name: str) -> str:
    return re.sub(r"\.(tif|tiff|svs)$", "", name.strip(), flags=re.IGNORECASE)


def _camelyon16(labels: Sequence[Path]) -> pd.DataFrame:
    rows = []
    for path in labels:
        for cells in _read(path, header=False).itertuples(index=False):
            slide = _stem(str(cells[0])).lower()
            kind = str(cells[1]).strip().lower() if len(cells) > 1 else ""
            if match := re.fullmatch(r"(normal|tumor)_\d+", slide):
                rows.append((slide, slide, match[1], "train"))
            elif re.fullmatch(r"test_\d+", slide):
                rows.append((slide, slide, "normal" if kind == "normal" else "tumor", "test"))
    return pd.DataFrame(rows, columns=["slide", "patient", "label", "split"])


def _camelyon17(labels: Sequence[Path]) -> pd.DataFrame:
    rows = []
    for path in labels:
        table = _read(path)
        names, stages = _column(path, table, "patient"), _column(path, table, "stage")
        for name, stage in zip(names, stages, strict=True):
            if match := re.fullmatch(r"(patient_(\d+))_node_\d+", _stem(name)):
                split = "test" if int(match[2]) >= CAMELYON17_TEST_FROM else "train"
                rows.append((_stem(name), match[1], stage.lower(), split, f"center-{int(match[2]) // 20}"))
    return pd.DataFrame(rows, columns=["slide", "patient", "label", "split", "site"])


def _bracs(labels: Sequence[Path]) -> pd.DataFrame:
    tables = []
    for path in labels:
        table = _read(path)
        names = _column(path, table, "wsifilename", "slide")
        kinds = _column(path, table, "wsilabel", "label", "groupof")
        parts = _column(path, table, "set", "split").str.lower().map(BRACS_SETS)
        known = kinds.str.upper().map(BRACS_LABELS).fillna(kinds.str.lower())
        wrong = sorted(set(known) - set(BRACS_LABELS.values()))
        if wrong or parts.isna().any():
            raise AsmilError(
                f"{path}: expected labels {', '.join(BRACS_LABELS)} and sets Training, Validation, Testing; found "
                f"{wrong[0] if wrong else 'another set'!r}"
            )
        patients = _column(path, table, "patientid", "patient")
        tables.append(pd.DataFrame({"slide": names.map(_stem), "patient": patients, "label": known, "split": parts}))
    return pd.concat(tables, ignore_index=True)


MANIFESTS: dict[str, tuple[str, Callable[[Sequence[Path]], pd.DataFrame]]] = {
    "camelyon16": ("reference.csv of the test set and a list of the 270 training slides", _camelyon16),
    "camelyon17": ("stage_labels.csv", _camelyon17),
    "bracs": ("the published sheet as CSV (WSI Filename, Patient Id, WSI label, Set)", _bracs),
}
"""The files that the manifest of a data set is made from, and how."""
