"""Check a manifest for invalid names, and for patients in a column that is not used for splits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from asmil.cohort.problems import Problem
from asmil.cohort.table import label_names, number
from asmil.columns import COLUMNS, TCGA, TCGA_BARCODE, Columns
from asmil.names import folded, lookalikes, name_problem, spelled, text_problem
from asmil.tasks.base import TaskKind

PERSON = re.compile(r"patient|case|subject|donor|participant|person|individual|submitter|mrn|(^|_)pid($|_)")
IDENTIFIER = ("id", "ids", "identifier", "barcode", "uuid", "accession")
"""Words for identifiers in column names; an identifier shared by several slides does not identify a slide."""
ATTRIBUTE = re.compile(
    r"(^|[_\W])(age|sex|gender|race|ethnicity|status|type|count|number_of|n|weight|height|bmi|stage|grade|control|"
    r"vital|survival|history|year|date|diagnosis|subtype|class|label|split|fold|cohort|site|notes?|comments?)($|[_\W])"
)
"""Words in column names that describe a person without identifying one."""
FEW_VALUES, SLIDES_PER_PATIENT = 20, 10
INDEPENDENT = "--columns patient=slide if every slide belongs to a different patient"


def patient_column_problems(table: Columns) -> list[Problem]:
    """Find columns and slide names that identify patients in a manifest without a column `patient`."""
    if any(table.cells.get("patient", [])):
        return []
    slides = table.cells["slide"]
    problems = []
    for column, cells in table.cells.items():
        if column not in COLUMNS and _names_a_person(column) and _is_shared(cells):
            value, count = Counter(filter(None, cells)).most_common(1)[0]
            what = f"column '{column}' looks like the patient ('{value}' has {count} slides) and is not used"
            todo = f"give --columns patient={column}, or {INDEPENDENT}"
            problems.append(Problem("error", str(table.path), what, todo))
    if not problems:
        problems += _barcode_problems(table, slides)
    return problems


def _names_a_person(column: str) -> bool:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()
    return name in IDENTIFIER or bool(PERSON.search(name) and not ATTRIBUTE.search(name))


def _is_shared(cells: list[str]) -> bool:
    """Whether several slides share a value, but not so many that it could be a property of a group."""
    filled = [cell for cell in cells if cell]
    distinct = len(set(filled))
    is_fine = distinct > FEW_VALUES or distinct * SLIDES_PER_PATIENT >= len(filled)
    return 1 < distinct < len(filled) and is_fine


def _barcode_problems(table: Columns, slides: list[str]) -> list[Problem]:
    """Problems of TCGA slides, whose names contain the patient."""
    by_patient: dict[str, list[str]] = {}
    for slide in slides:
        if found := TCGA.match(slide.rpartition("/")[2]):
            by_patient.setdefault(found[0].upper(), []).append(slide)
    shared = {patient: names for patient, names in by_patient.items() if len(set(names)) > 1}
    if not shared:
        return []
    patient, names = next(iter(shared.items()))
    what = f"slides '{names[0]}' and '{names[1]}' belong to TCGA patient {patient}, but there is no patient column"
    todo = f"give --columns patient={TCGA_BARCODE} to read the patients from the barcodes, or {INDEPENDENT}"
    return [Problem("error", str(table.path), what, todo)]


NAMED = {"slide": name_problem, "patient": name_problem, "label": text_problem, "site": text_problem}
"""Columns whose cells are printed or used as file names, with their checks."""


def naming_problems(path: Path, columns: Mapping[str, list[str]], kind: TaskKind | None) -> list[Problem]:
    """Names that leave their folder or change a terminal, and names that are spelled in several ways."""
    problems = []
    for column, reason_of in NAMED.items():
        # values are numbers, so 1e5 and 1E5 are the same
        if column == "label" and kind in (None, "survival", "regression"):
            continue
        names = {cell for cell in columns.get(column, []) if cell}
        if column == "label" and kind == "multilabel":
            names = {name for cell in names for name in label_names(cell)}
        problems += [
            Problem("error", str(path), f"the {column} '{name}' {reason}", "rename it")
            for name in sorted(names)
            if (reason := reason_of(name))
        ]
        for spellings in lookalikes(sorted(names), _class_key if column == "label" else folded):
            what = f"column '{column}' spells one name in {len(spellings)} ways: {spelled(spellings)}"
            problems.append(Problem("error", str(path), what, "use one spelling, or rename names that really differ"))
    return problems


def _class_key(name: str) -> str:
    """A common key of spellings of one class: `small-cell` and `Small cell`, `1` and `1.0`; not `HER2+` and `HER2-`.

    >>> _class_key("Small-Cell") == _class_key("small cell"), _class_key("1.0") == _class_key("1")
    (True, True)
    """
    value = number(name)
    return f"{value:g}" if value is not None else re.sub(r"(?<=\w)[-_\s]+(?=\w)", " ", folded(name))
