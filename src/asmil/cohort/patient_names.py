"""Patients that are probably one patient under two names: samples of one TCGA patient, `P1` and `P01`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from asmil.cohort.manifest import Cohort
from asmil.cohort.problems import Problem, listed
from asmil.cohort.splits import Splits
from asmil.tables.columns import TCGA, TCGA_BARCODE
from asmil.tables.names import folded, lookalikes

_PADDING = re.compile(r"(?<!\d)0+(?=\d)")


def patient_name_problems(cohort: Cohort, splits: Splits | None) -> list[Problem]:
    """Names of patients that are probably one patient; an error if samples of one are on both sides of a split.

    splits: the roles of the slides; None if there are none
    """
    return [*_sample_problems(cohort, splits), *_padding_problems(cohort)]


def _sample_problems(cohort: Cohort, splits: Splits | None) -> Iterator[Problem]:
    """Patients that are TCGA barcodes of samples (TCGA-XX-XXXX-01A) instead of patients (TCGA-XX-XXXX)."""
    patients = sorted({slide.patient for slide in cohort.slides if slide.patient != slide.slide})
    samples = {name: barcode[0].upper() for name in patients if (barcode := TCGA.match(name)) and barcode[0] != name}
    if not samples:
        return
    several = lookalikes(samples, samples.__getitem__)
    todo = (
        "keep only the first 12 characters of the barcodes, which name the patient; if the slides have barcodes, "
        f"give --columns patient={TCGA_BARCODE}"
    )
    divided = [names for names in several if splits is not None and _are_divided(names, splits)]
    if divided:
        what = (
            f"{len(divided)} TCGA patients are on both sides of a split as several samples (e.g. {listed(divided[0])})"
        )
        yield Problem("error", str(cohort.path), what, todo)
    elif several:
        what = f"{len(several)} TCGA patients count as several patients, one per sample (e.g. {listed(several[0])})"
        yield Problem("warning", str(cohort.path), what, todo)
    else:
        what = f"{len(samples)} patients are TCGA barcodes of samples (e.g. {listed(list(samples))})"
        yield Problem("warning", str(cohort.path), what, todo)


def _are_divided(patients: list[str], splits: Splits) -> bool:
    """Whether the patients have different roles in a fold."""
    rows = splits.table[splits.table["patient"].isin(patients)]
    return bool((rows.groupby("fold")["role"].nunique() > 1).any())


def _padding_problems(cohort: Cohort) -> Iterator[Problem]:
    """Patients whose names differ only in zeros before a number."""
    for names in lookalikes(sorted({slide.patient for slide in cohort.slides}), unpadded):
        what = f"the patients {listed(names)} differ only in zeros before a number"
        todo = "if they are one patient, give them one name, so that the patient is not in training and test"
        yield Problem("warning", str(cohort.path), what, todo)


def unpadded(name: str) -> str:
    """A name whose numbers have no zeros in front.

    >>> unpadded("P01"), unpadded("p1"), unpadded("P10"), unpadded("A-007/0")
    ('p1', 'p1', 'p10', 'a-7/0')
    """
    return _PADDING.sub("", folded(name))
