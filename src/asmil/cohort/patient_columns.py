"""Refusing a manifest that knows whose the slides are, but not in the column that splits are grouped by."""

from __future__ import annotations

import re
from collections import Counter

from asmil.cohort.problems import Problem
from asmil.columns import COLUMNS, TCGA, TCGA_BARCODE, Columns

PERSON = re.compile(r"patient|case|subject|donor|participant|person|individual|submitter|mrn|(^|_)pid($|_)")
IDENTIFIER = ("id", "ids", "identifier", "barcode", "uuid", "accession")
"""An identifier that several slides share is not that of a slide."""
ATTRIBUTE = re.compile(
    r"(^|[_\W])(age|sex|gender|race|ethnicity|status|type|count|number_of|n|weight|height|bmi|stage|grade|control|"
    r"vital|survival|history|year|date|diagnosis|subtype|class|label|split|fold|cohort|site|notes?|comments?)($|[_\W])"
)
"""Words of columns that tell something of a person but do not name one."""
FEW_VALUES, SLIDES_PER_PATIENT = 20, 10
INDEPENDENT = "--columns patient=slide if every slide is of another patient"


def patient_column_problems(table: Columns) -> list[Problem]:
    """What a manifest without patients says of them all the same."""
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
    """Whether several slides have the same value, but not so many that it could be a property of groups."""
    filled = [cell for cell in cells if cell]
    distinct = len(set(filled))
    is_fine = distinct > FEW_VALUES or distinct * SLIDES_PER_PATIENT >= len(filled)
    return 1 < distinct < len(filled) and is_fine


def _barcode_problems(table: Columns, slides: list[str]) -> list[Problem]:
    """Slides of TCGA carry their patient in their names."""
    by_patient: dict[str, list[str]] = {}
    for slide in slides:
        if found := TCGA.match(slide.rpartition("/")[2]):
            by_patient.setdefault(found[0].upper(), []).append(slide)
    shared = {patient: names for patient, names in by_patient.items() if len(set(names)) > 1}
    if not shared:
        return []
    patient, names = next(iter(shared.items()))
    what = f"slides '{names[0]}' and '{names[1]}' are of the TCGA patient {patient}, and no column names patients"
    todo = f"give --columns patient={TCGA_BARCODE} to read the patients from the barcodes, or {INDEPENDENT}"
    return [Problem("error", str(table.path), what, todo)]
