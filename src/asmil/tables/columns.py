"""The columns of a slide table, under the names that other tools give them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from asmil.errors import AsmilError, did_you_mean
from asmil.tables.names import folded, is_feature_file, plain_spaces, without_extension
from asmil.tables.text_table import TextTable
from asmil.tables.time_units import TIME_COLUMNS, TimeUnit, unit_in_name

COLUMNS = ("slide", "patient", "label", "time", "event", "features", "split", "fold", "site", "mpp", "image")
FILE_ALIASES = ("filename", "file_name", "file", "slide_file", "slide_filename", "wsi_filename", "image_name")
"""They name the slide by a file, whose extension is not part of the name."""
PATH_ALIASES = ("slide_path", "feature_path", "features_path", "wsi_path", "image_path")
"""They hold the path of a feature file or an image, depending on the extension; MIL_BASELINE writes slide_path."""
ALIASES: Mapping[str, tuple[str, ...]] = {
    # CLAM and TRIDENT write slide_id and case_id, STAMP FILENAME and PATIENT, the GDC the last four
    "slide": ("slide_id", "slideid", "slide_name", "slidename", "wsi", "wsi_id", "wsi_name", "image_id", *FILE_ALIASES),
    "patient": (
        *("patient_id", "patientid", "case", "case_id", "caseid", "subject", "subject_id", "subjectid"),
        *("donor", "donor_id", "participant", "participant_id", "patient_name", "patient_code", "patient_barcode"),
        *("submitter_id", "case_submitter_id", "cases_submitter_id", "bcr_patient_barcode"),
    ),
}
"""Other names of a column; the first that a table has is read. Case, blanks and punctuation are ignored."""
TCGA_BARCODE = "tcga-barcode"
"""Instead of a column in a mapping: the patient is the first 12 characters of the slide's TCGA barcode."""
TCGA = re.compile(r"TCGA-\w{2}-\w{4}(?=\W|$)", re.IGNORECASE)
"""The part of a TCGA barcode that names the patient."""
PARTS = ("train", "val", "test")
LABELS = "labels"
"""In a mapping, besides asmil's columns: several columns, one per label, `labels=ER,PR,HER2`."""

ColumnMapping = Mapping[str, str]
"""asmil's columns, each with the column of the table that it is read from; for `labels` several, joined by commas."""


@dataclass(frozen=True)
class Columns:
    """The cells of a table by column: known columns under asmil's names, others under their own.

    read_as: the names in the table of columns that have another name there
    notes: how the file was read, if it is not plain CSV
    labels: the columns that the user chose as labels, each under its own name
    computed_time_unit: the unit of times that were computed from other columns
    """

    path: Path
    cells: Mapping[str, list[str]]
    read_as: Mapping[str, str]
    notes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    computed_time_unit: TimeUnit | None = None

    @property
    def rows(self) -> list[dict[str, str]]:
        names = list(self.cells)
        return [dict(zip(names, row, strict=True)) for row in zip(*self.cells.values(), strict=True)]

    def named(self, keys: Sequence[str]) -> str | None:
        """The column that has one of these names in the table, under asmil's name if it has one.

        `demographic.vital_status` counts as `vital_status`.
        """
        for name in self.cells:
            written = self.read_as.get(name, name)
            if not {_key(written), _key(written.rpartition(".")[2])}.isdisjoint(keys):
                return name
        return None

    def spelled_like(self, name: str) -> str | None:
        """The column of this name, under asmil's name if it has one; case, blanks and punctuation are ignored."""
        if name in self.cells:
            return name
        alike = [own for own in self.cells if _key(self.read_as.get(own, own)) == _key(name)]
        return alike[0] if len(alike) == 1 else None

    @property
    def understood(self) -> list[str]:
        """How the table was read, one sentence per note."""
        return [*self.notes, *(f"column '{given}' is read as '{name}'" for name, given in self.read_as.items())]

    @property
    def time_unit(self) -> TimeUnit | None:
        """The unit of the times, if the name of their column, or of the columns behind them, states it."""
        return self.computed_time_unit or unit_in_name(self.read_as.get("time", ""))


def parse_mapping(text: str | None) -> dict[str, str]:
    """The mapping that `--columns patient=case_id,label=subtype` describes.

    >>> parse_mapping("patient=Case ID, label=subtype")
    {'patient': 'Case ID', 'label': 'subtype'}
    >>> parse_mapping("labels=ER, PR,HER2, patient=case_id")
    {'labels': 'ER,PR,HER2', 'patient': 'case_id'}
    """
    mapping: dict[str, str] = {}
    name = ""
    for part in (text or "").split(","):
        if not part.strip():
            continue
        if name == LABELS and "=" not in part:
            mapping[LABELS] += f",{part.strip()}"
            continue
        name, equals, column = (piece.strip() for piece in part.partition("="))
        if not equals or not column:
            raise AsmilError(f"--columns {part.strip()}: write NAME=COLUMN, e.g. patient=case_id,label=subtype")
        if name in mapping:
            raise AsmilError(f"--columns {text}: '{name}' is given twice; give it one column")
        mapping[name] = column
    return checked_mapping(mapping)


def format_mapping(mapping: ColumnMapping) -> str:
    """The mapping as `--columns` reads it; an error for columns whose names it cannot express.

    >>> format_mapping({"patient": "Case ID", "label": "subtype"})
    'patient=Case ID,label=subtype'
    """
    text = ",".join(f"{name}={column}" for name, column in mapping.items())
    if parse_mapping(text) != dict(mapping):
        raise AsmilError(f"--columns {text}: a column has a comma in its name; rename it to give it as an option")
    return text


def checked_mapping(mapping: ColumnMapping) -> dict[str, str]:
    """The mapping, if all its names are columns of asmil; otherwise an error."""
    for name, column in mapping.items():
        if name not in (*COLUMNS, LABELS):
            raise AsmilError(f"--columns {name}={column}: asmil has no column '{name}': {did_you_mean(name, COLUMNS)}")
        if name == LABELS and "label" in mapping:
            raise AsmilError(f"--columns {name}={column}: 'label' is given as well; give one of them")
        if column == TCGA_BARCODE and name != "patient":
            raise AsmilError(f"--columns {name}={column}: only the patient can be read from TCGA barcodes")
    return dict(mapping)


def understand_columns(path: Path, table: TextTable, mapping: ColumnMapping | None = None) -> Columns:
    """Give the columns asmil's names; two columns with the same meaning and different values are an error.

    mapping: columns that the user chose; they take precedence over all others
    """
    given = _by_key(path, table)
    mapping = checked_mapping(mapping or {})
    labels = [_chosen(path, LABELS, column, given) for column in columns_of(LABELS, mapping.pop(LABELS, ""))]
    chosen = {name: _chosen(path, name, column, given) for name, column in mapping.items()}
    if not chosen and not labels and (parts := _joined_parts(given)):
        return replace(understand_columns(path, parts), notes=(*table.notes, "a table of train, val and test columns"))
    cells: dict[str, list[str]] = {}
    read_as: dict[str, str] = {}
    for column in COLUMNS:
        keys = [key for key in (column, *ALIASES.get(column, ())) if key in given]
        filled = [key for key in keys if any(given[key].cells)]
        if column in chosen:
            if chosen[column] == TCGA_BARCODE:
                continue  # it needs the slides
            keys = filled = [chosen[column]]
        elif column == "slide" and not keys and "image" in given:
            keys = ["image"]
        elif column in ("features", "image") and not keys:
            keys = _paths(given, column)
        elif column == "time" and not keys:
            named = [key for key in TIME_COLUMNS if key in given]
            keys = filled = named if len(named) == 1 else []
        if not keys:
            continue
        key = next(iter(filled), keys[0])
        cells[column] = _slides(key, given[key].cells) if column == "slide" else given[key].cells
        if column in ("features", "image"):
            cells[column] = given[key].written
        if column == "patient" and column in chosen and read_as.get("slide", "slide") == given[key].name.strip():
            cells[column] = cells["slide"]
        if key != column:
            read_as[column] = given[key].name.strip()
        for other in filled[1:]:
            line = _disagreement(column, key, cells, given[other].cells)
            if line is not None:
                raise AsmilError(
                    f"{path}, line {line + 2}: columns '{given[key].name}' and '{given[other].name}' both name the "
                    f"{column} and disagree ('{given[key].cells[line]}', '{given[other].cells[line]}'); choose one "
                    f"with --columns {column}={given[key].name.strip()}, or remove the other"
                )
    if "slide" not in cells and (source := next((name for name in ("features", "image") if name in read_as), None)):
        cells = {"slide": _stems(cells[source]), **cells}
        read_as["slide"] = f"{read_as[source]} (the names of the files)"
    if chosen.get("patient") == TCGA_BARCODE and "slide" in cells:
        cells["patient"] = _patients_of_barcodes(path, cells["slide"])
        read_as["patient"] = "the TCGA barcode of the slide"
    used = {*cells, *(_key(name) for name in read_as.values()), *chosen.values()} - set(labels)
    others = {other_column.name.strip(): other_column.cells for key, other_column in given.items() if key not in used}
    return Columns(path, cells | others, read_as, table.notes, tuple(dict.fromkeys(given[key].name for key in labels)))


def columns_of(name: str, column: str) -> list[str]:
    """The columns of a table that an entry of a mapping names: several for `labels`, otherwise one."""
    return [label for label in column.split(",") if label] if name == LABELS else [column]


def has_column(table: TextTable, column: str) -> bool:
    """Whether a table has a column of this name; case, blanks and punctuation are ignored."""
    return _key(column) in {_key(name) for name in table.names}


def names_patients(column: str) -> bool:
    """Whether a column has a name that other tools use for the patient."""
    return _key(column) in ALIASES["patient"]


@dataclass(frozen=True)
class _Given:
    """A column of a file.

    cells: with plain spaces
    written: as in the file, for paths
    """

    name: str
    cells: list[str]
    written: list[str]


def _by_key(path: Path, table: TextTable) -> dict[str, _Given]:
    known = {*COLUMNS, *(alias for aliases in ALIASES.values() for alias in aliases)}
    given: dict[str, _Given] = {}
    for name, cells in zip(table.names, table.cells, strict=True):
        key = _key(name)
        if key not in given:
            given[key] = _Given(name, [plain_spaces(cell) for cell in cells], cells)
        elif key in known:
            names = f"{given[key].name!a} and {name!a}"
            raise AsmilError(f"{path}: two columns have the same name, {names}; keep one of them")
    return given


def _key(name: str) -> str:
    r"""The common form of the spellings of a column's name.

    >>> _key("Case ID"), _key(" label"), _key("\ufeffslide")
    ('case_id', 'label', 'slide')
    """
    return re.sub(r"\W+", "_", folded(name)).strip("_") or name


def _chosen(path: Path, name: str, column: str, given: Mapping[str, _Given]) -> str:
    """The key of a column that the user chose."""
    if column == TCGA_BARCODE:
        return column
    for key in (_key(column), *ALIASES.get(column, ())):
        if key in given:
            return key
    names = [known.name.strip() for known in given.values()]
    raise AsmilError(f"{path}: --columns {name}={column}: there is no column '{column}'; {did_you_mean(column, names)}")


def _joined_parts(given: Mapping[str, _Given]) -> TextTable | None:
    """The wide table of MIL_BASELINE, `train_slide_path, train_label, val_slide_path, ...`, with one row per slide."""
    wide = [part for part in PARTS if f"{part}_slide_path" in given and f"{part}_label" in given]
    if not wide or "slide" in given:
        return None
    rows = [
        (path, re.sub(r"^(\d+)\.0$", r"\1", label), part)  # pandas writes the integers of a column with gaps as 1.0
        for part in wide
        for path, label in zip(given[f"{part}_slide_path"].written, given[f"{part}_label"].cells, strict=True)
        if path or label
    ]
    paths, labels, parts = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
    return TextTable(("slide_path", "label", "split"), (paths, labels, parts))


def _paths(given: Mapping[str, _Given], column: str) -> list[str]:
    """The columns of paths to feature files, or to images."""
    keys = []
    for key in PATH_ALIASES:
        filled = [cell for cell in given[key].cells if cell] if key in given else []
        of_features = all(is_feature_file(Path(cell)) for cell in filled)
        if filled and of_features == (column == "features"):
            keys.append(key)
    return keys


def _slides(key: str, cells: list[str]) -> list[str]:
    if key == "image" or key in PATH_ALIASES:
        return _stems(cells)
    return [without_extension(cell) for cell in cells] if key in FILE_ALIASES else cells


def _stems(paths: list[str]) -> list[str]:
    return [without_extension(PurePosixPath(path.replace("\\", "/")).name) for path in paths]


def _patients_of_barcodes(path: Path, slides: list[str]) -> list[str]:
    barcodes = [TCGA.match(slide.rpartition("/")[2]) for slide in slides]
    other = next((slide for slide, barcode in zip(slides, barcodes, strict=True) if slide and barcode is None), None)
    if other is not None:
        raise AsmilError(
            f"{path}: --columns patient={TCGA_BARCODE}: the slide '{other}' has no TCGA barcode (TCGA-XX-XXXX-...); "
            "give a column of patients instead"
        )
    return [barcode[0].upper() if barcode else "" for barcode in barcodes]


def _disagreement(column: str, key: str, cells: Mapping[str, list[str]], other: list[str]) -> int | None:
    """The first row in which two spellings of a column have different values, None if there is none."""
    if column == "slide":
        # a column with asmil's own name is used; others may name other files of the slide
        alike = zip(_stems(cells["slide"]), _stems(other), strict=True)
        return None if key == column else next((row for row, (a, b) in enumerate(alike) if a != b), None)
    patients = cells["patient"]
    slides = cells.get("slide", [])
    if key == column and patients == slides:
        return None  # the user declared slides independent
    split = _divided(other, patients)
    return split if split is not None or key == column else _divided(patients, other)


def _divided(groups: list[str], parts: list[str]) -> int | None:
    """The first row whose group had another part in an earlier row; None if no group has two parts."""
    first: dict[str, str] = {}
    for row, (group, part) in enumerate(zip(groups, parts, strict=True)):
        if group and first.setdefault(group, part) != part:
            return row
    return None
