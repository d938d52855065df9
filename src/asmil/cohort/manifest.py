"""The manifest: the slides of a cohort with their patients, labels and features."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from asmil.cohort.feature_search import FeatureSearch
from asmil.cohort.follow_up import FOLLOW_UP, with_follow_up
from asmil.cohort.label_spelling import near_labels
from asmil.cohort.locate import find_features, holds_a_cohort
from asmil.cohort.problems import Problem, fail, listed, raise_errors
from asmil.cohort.source import FeatureSource
from asmil.cohort.table import (
    EVENTS,
    OUTCOME_COLUMNS,
    cell_of,
    column_problems,
    is_missing,
    label_names,
    missing_problems,
    number,
    positive,
    read_table,
    row_problems,
    whole_number,
    without_missing,
)
from asmil.cohort.wide_labels import is_single_binary, with_wide_labels
from asmil.errors import AsmilError, did_you_mean
from asmil.reporting.formats import format_count
from asmil.tables.columns import COLUMNS, LABELS, PARTS, TCGA, TCGA_BARCODE, ColumnMapping, Columns
from asmil.tables.names import FEATURE_SUFFIXES, folded, lookalikes, name_problem, spelled, text_problem
from asmil.tables.time_units import TimeUnit
from asmil.tasks.base import TaskKind

if TYPE_CHECKING:
    import pandas as pd


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
NAMED = {"slide": name_problem, "patient": name_problem, "label": text_problem, "site": text_problem}
"""Columns whose cells are printed or used as file names, with their checks."""
NOWHERE = FeatureSource(Path())
"""The source of a slide whose features were not found."""


@dataclass(frozen=True)
class Slide:
    """One row of the manifest.

    time, event: in a survival cohort, the follow-up time and whether the event was observed at its end
    mpp: microns per level-0 pixel, for feature files that do not state it
    covariates: the cells of the columns that were requested as covariates, by their names
    """

    slide: str
    patient: str
    label: str | None
    source: FeatureSource
    site: str | None = None
    mpp: float | None = None
    split: Literal["train", "val", "test"] | None = None
    fold: int | None = None
    time: float | None = None
    event: bool | None = None
    covariates: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Cohort:
    """The slides of a manifest.

    classes: the sorted labels, numerically if all are integers; a target is an index into them. A part of a cohort
        may be given the classes of the whole.
    task: the task whose outcomes the manifest contains; None if no outcomes were requested
    columns: columns of the manifest chosen by the user, by asmil's names
    features: where the user says that the features are
    time_unit: of the survival times, if the name of their column states it
    notes: how the manifest was interpreted, if it differs from asmil's own format
    """

    path: Path
    slides: tuple[Slide, ...]
    classes: tuple[str, ...] = ()
    task: TaskKind | None = None
    columns: ColumnMapping = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    features: Path | None = None
    time_unit: TimeUnit | None = None

    def __post_init__(self) -> None:
        if not self.classes:
            object.__setattr__(self, "classes", _in_order({slide.label for slide in self.slides}))

    def __repr__(self) -> str:
        return f"Cohort({str(self.path)!r}, slides={len(self)}, classes={self.classes}, task={self.task!r})"

    @property
    def table(self) -> pd.DataFrame:
        """One row per slide, without empty columns."""
        import pandas as pd

        rows = [vars(slide) | {"source": str(slide.source)} | dict(slide.covariates) for slide in self.slides]
        table = pd.DataFrame(rows).rename(columns={"source": "features"})
        return table.drop(columns="covariates", errors="ignore").dropna(axis="columns", how="all")

    @cached_property
    def _by_name(self) -> dict[str, Slide]:
        return {slide.slide: slide for slide in self.slides}

    @cached_property
    def _class_indices(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.classes)}

    def __getitem__(self, name: str) -> Slide:
        if name not in self._by_name:
            raise AsmilError(f"{self.path}: there is no slide '{name}'; {did_you_mean(name, self._by_name)}")
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self.slides)

    def __iter__(self) -> Iterator[Slide]:
        return iter(self.slides)

    def target(self, slide: Slide | str) -> int:
        """The index of a slide's label in `classes`."""
        slide = self[slide] if isinstance(slide, str) else slide
        if slide.label is None:
            raise AsmilError(f"{self.path}: slide '{slide.slide}' has no label; fill its cell in column 'label'")
        if slide.label not in self._class_indices:
            hint = did_you_mean(slide.label, self.classes)
            raise AsmilError(f"{self.path}: label '{slide.label}' of slide '{slide.slide}' is not a class; {hint}")
        return self._class_indices[slide.label]


def load_cohort(
    path: Path | str,
    features: Path | str | None = None,
    kind: TaskKind | None = "classification",
    columns: ColumnMapping | None = None,
    covariates: Sequence[str] = (),
) -> Cohort:
    """Read a manifest (CSV, Excel or Parquet) and find the features of its slides.

    features: a folder of feature files, one cohort file or a pack, for rows without a `features` cell;
        default: the folder `features` next to the manifest
    kind: the task whose outcomes the manifest must contain; None: no outcomes are needed
    columns: which columns of the table to read, by asmil's names; all others are found by name
    covariates: columns to keep for each slide, as text
    """
    cohort, problems, _ = read_manifest(path, features, kind, columns, covariates)
    raise_errors(problems)
    return replace(cohort, notes=(*cohort.notes, *(f"{problem.what}; {problem.todo}" for problem in problems)))


def refuse_without_covariates(cohort: Cohort, covariates: Sequence[str]) -> None:
    """Raise if the slides of a cohort lack covariates; names the first."""
    for name in covariates:
        if any(name not in slide.covariates for slide in cohort.slides):
            what = f"the covariate '{name}' of the slides is unknown"
            fail(
                cohort.path, what, f"give a table with the column '{name}', or load_cohort(..., covariates=['{name}'])"
            )


def cohort_from_features(path: Path | str) -> Cohort:
    """Slides without labels: a folder of feature files, a file of one slide, a cohort file, or a pack.

    `file.h5::group` is one slide of a cohort file, `cohort.pack::slide` of a pack.
    """
    source = FeatureSource.parse(str(path))
    if not source.path.exists():
        fail(path, "the path does not exist", "give a folder of feature files, a feature file, or a manifest")
    if source.group is not None or (source.path.is_file() and not holds_a_cohort(source.path)):
        sources = {source.group or source.path.stem: source}
    else:
        sources = find_features(source.path)
    if not sources:
        what = f"there is no feature file ({', '.join(FEATURE_SUFFIXES)}) in the folder"
        fail(path, what, "give the folder that contains them")
    names = sorted(sources)
    raise_errors(naming_problems(source.path, {"slide": names}, kind=None))
    return Cohort(source.path, tuple(Slide(name, name, None, sources[name]) for name in names))


class ManifestReading(NamedTuple):
    """The content of a manifest, and its problems.

    cohort: the slides whose features were found
    everyone: all slides of the table; the source of those without features is `NOWHERE`
    """

    cohort: Cohort
    problems: list[Problem]
    everyone: Cohort


def read_manifest(
    path: Path | str,
    features: Path | str | None = None,
    kind: TaskKind | None = "classification",
    columns: ColumnMapping | None = None,
    covariates: Sequence[str] = (),
) -> ManifestReading:
    """All rows of a manifest, usable or not."""
    path = Path(path)
    table, filled = without_missing(read_table(path, columns))
    if table.labels and kind not in ("multilabel", None):
        fail(path, f"--columns {LABELS} is for several labels of a slide", "give --task multilabel as well")
    unreadable: list[Problem] = []
    if kind == "survival":
        table, read_as = with_follow_up(table)
        filled += read_as
    elif kind == "multilabel":
        table, read_as, unreadable = with_wide_labels(table)
        filled += read_as
    required = ["slide", *(OUTCOME_COLUMNS[kind] if kind is not None else ())]
    problems = [*column_problems(path, list(table.cells), required), *unreadable]
    if "slide" not in table.cells:
        raise_errors(problems)
    rows = table.rows
    problems += [*row_problems(path, rows, kind), *naming_problems(path, table.cells, kind)]
    problems += [*missing_problems(table, kind), *spelling_problems(table, kind), *binary_problems(table, kind)]
    if kind is not None:
        problems += patient_column_problems(table)
    kept = covariate_columns(table, covariates, kind)
    folder = Path(features) if features is not None else None
    search = FeatureSearch(path, folder)
    slides: dict[str, Slide] = {}
    for row in rows:
        name = row["slide"]
        if name and (name not in slides or slides[name].source == NOWHERE):
            slides[name] = slide_of_row(row, search.find(row) or NOWHERE, kept)
    notes = (*table.understood, *filled)
    everyone = Cohort(
        path, tuple(slides.values()), (), kind, dict(columns or {}), notes, folder, time_unit=table.time_unit
    )
    located = tuple(slide for slide in everyone.slides if slide.source != NOWHERE)
    return ManifestReading(replace(everyone, slides=located, classes=()), problems + search.problems(), everyone)


def _in_order(labels: set[str | None]) -> tuple[str, ...]:
    names = sorted(label for label in labels if label is not None)
    if all(re.fullmatch(r"[+-]?\d{1,18}", name) for name in names):
        names.sort(key=int)
    return tuple(names)


def covariate_columns(table: Columns, covariates: Sequence[str], kind: TaskKind | None) -> dict[str, str]:
    """The columns of covariates, by the names that the user gives; a missing column and an outcome are errors."""
    columns: dict[str, str] = {}
    outcomes = {*table.labels, *((table.named([name]) for name in FOLLOW_UP) if kind == "survival" else ())}
    for name in covariates:
        column = table.spelled_like(name)
        if column is None:
            others = [other for other in table.cells if other not in COLUMNS]
            fail(table.path, f"there is no column '{name}', which is a covariate", did_you_mean(name, others))
        if column in outcomes or (column in COLUMNS and column != "site"):
            fail(
                table.path, f"column '{name}' cannot be a covariate, since it is read as something else", "leave it out"
            )
        if column in columns.values():
            fail(table.path, f"the covariate '{name}' is the same column as another one", "give it once")
        columns[name] = column
    return columns


def slide_of_row(row: Mapping[str, str], source: FeatureSource, covariates: Mapping[str, str] | None = None) -> Slide:
    """The slide that a row of a manifest describes; cells that cannot be used count as empty.

    covariates: the columns to keep, by the names under which the slide has them
    """
    split = row.get("split")
    return Slide(
        slide=row["slide"],
        patient=row.get("patient") or row["slide"],
        label=None if is_missing(row.get("label", "")) else row.get("label") or None,
        source=source,
        site=row.get("site") or None,
        mpp=positive(row.get("mpp", "")),
        split=cast(Literal["train", "val", "test"], split) if split in PARTS else None,
        fold=whole_number(row.get("fold", "")),
        time=number(row.get("time", "")),
        event=EVENTS.get(row.get("event", "").lower()),
        covariates={name: cell_of(row[column]) for name, column in (covariates or {}).items()},
    )


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
    return problems or _barcode_problems(table, slides)


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
        if barcode := TCGA.match(slide.rpartition("/")[2]):
            by_patient.setdefault(barcode[0].upper(), []).append(slide)
    shared = {patient: names for patient, names in by_patient.items() if len(set(names)) > 1}
    if not shared:
        return []
    patient, names = next(iter(shared.items()))
    what = f"slides '{names[0]}' and '{names[1]}' belong to TCGA patient {patient}, but there is no patient column"
    todo = f"give --columns patient={TCGA_BARCODE} to read the patients from the barcodes, or {INDEPENDENT}"
    return [Problem("error", str(table.path), what, todo)]


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


def binary_problems(table: Columns, kind: TaskKind | None) -> list[Problem]:
    """A column of 0 and 1 instead of the labels of a slide, which would become the labels `0` and `1`."""
    cells = table.cells.get("label", [])
    if kind != "multilabel" or table.labels or not is_single_binary(cells):
        return []
    column = table.read_as.get("label", "label")
    values = listed(sorted(set(cells) - {""}))
    what = f"column '{column}' has only {values}, which are not the names of labels"
    todo = f"give the columns of all labels, --columns {LABELS}={column},..., or use --task classification"
    return [Problem("error", str(table.path), what, todo)]


def spelling_problems(table: Columns, kind: TaskKind | None) -> list[Problem]:
    """Classes or labels that differ by one letter: a question to the user, since both may be meant."""
    if kind not in ("classification", "multilabel"):
        return []
    cells = table.cells.get("label", [])
    names = [name for cell in cells for name in (label_names(cell) if kind == "multilabel" else {cell} - {""})]
    counts = Counter(names)
    noun = "labels" if kind == "multilabel" else "classes"
    problems = []
    for pair in near_labels(counts):
        named = " and ".join(f"'{name}' ({format_count(counts[name], 'slide')})" for name in pair)
        todo = "correct the spelling if they are one; otherwise ignore this"
        problems.append(Problem("warning", str(table.path), f"the {noun} {named} differ by one letter", todo))
    return problems


def _class_key(name: str) -> str:
    """A common key of spellings of one class: `small-cell` and `Small cell`, `1` and `1.0`; not `HER2+` and `HER2-`.

    >>> _class_key("Small-Cell") == _class_key("small cell"), _class_key("1.0") == _class_key("1")
    (True, True)
    """
    value = number(name)
    return f"{value:g}" if value is not None else re.sub(r"(?<=\w)[-_\s]+(?=\w)", " ", folded(name))
