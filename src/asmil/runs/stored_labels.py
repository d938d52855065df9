"""The outcomes that a run was trained with, `labels.csv`, and what has changed in its manifest since."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asmil.cohort.manifest import Cohort, Slide, read_manifest, slide_of_row
from asmil.cohort.outcomes import stated_outcome
from asmil.cohort.problems import SHOWN
from asmil.cohort.source import FeatureSource
from asmil.cohort.table import OUTCOME_COLUMNS
from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.runs.run import Run
from asmil.tables.text_table import read_text_table
from asmil.tasks.base import TaskKind

FILE = "labels.csv"
"""In the run folder: slide and outcome, one row per slide."""


@dataclass(frozen=True)
class LabelChanges:
    """Slides whose outcome in the manifest is not the one that the run was trained with.

    outcomes: by slide, the outcome of the training and that of the manifest, as text
    """

    manifest: Path
    outcomes: Mapping[str, tuple[str, str]]

    def sentence(self, used: str) -> str:
        """The changes in one sentence; used: which outcomes were used."""
        shown = [f"{name}: {old} in training, {new} now" for name, (old, new) in list(self.outcomes.items())[:SHOWN]]
        more = f" and {len(self.outcomes) - SHOWN} more" if len(self.outcomes) > SHOWN else ""
        count = len(self.outcomes)
        return (
            f"{self.manifest}: the labels of {count} slide{'s' * (count != 1)} changed after the training "
            f"({'; '.join(shown)}{more}); {used}; to use the new ones, train again into another folder"
        )


def store_labels(folder: Path, cohort: Cohort, kind: TaskKind) -> None:
    """Write the outcomes of all slides of a cohort into a run folder."""
    columns = OUTCOME_COLUMNS[kind]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["slide", *columns])
    for slide in cohort.slides:
        writer.writerow([slide.slide, *_cells(slide, kind)])
    write_text(folder / FILE, text.getvalue())


def label_changes(run: Run) -> LabelChanges | None:
    """The outcomes that changed in the manifest of a run after its training; None if there are none.

    Changes are unknown for bundles, for runs of earlier versions, and if the manifest was moved or cannot be read.
    """
    stored, trained_on, kind = run.path / FILE, run.cohort, run.kind
    if not stored.is_file() or trained_on.manifest is None or not trained_on.is_there:
        return None
    before = read_labels(stored)
    try:
        # as in training: labels may be in several columns, and times may be computed from other columns
        manifest = read_manifest(trained_on.manifest, trained_on.features_there, kind, trained_on.columns)
    except AsmilError:
        return None
    now = {slide.slide: slide for slide in manifest.everyone.slides}
    outcomes = {
        name: (_text(old, kind), _text(now[name], kind))
        for name, old in before.items()
        if name in now and stated_outcome(old, kind) != stated_outcome(now[name], kind)
    }
    return LabelChanges(trained_on.manifest, outcomes) if outcomes else None


def read_labels(path: Path) -> dict[str, Slide]:
    """The slides of a file of labels, with their outcomes."""
    table = read_text_table(path)
    if "slide" not in table.names:
        raise AsmilError(f"{path}: the column slide is missing; restore it or train again")
    rows = [dict(zip(table.names, row, strict=True)) for row in zip(*table.cells, strict=True)]
    slides = [slide_of_row(row, FeatureSource(Path())) for row in rows if row.get("slide")]
    return {slide.slide: slide for slide in slides}


def _cells(slide: Slide, kind: TaskKind) -> list[str]:
    if kind == "survival":
        return [repr(slide.time), str(int(bool(slide.event)))]
    return [slide.label or ""]


def _text(slide: Slide, kind: TaskKind) -> str:
    if kind == "survival":
        return "none" if slide.time is None else f"{slide.time:g} ({'event' if slide.event else 'censored'})"
    return "none" if slide.label is None else f"'{slide.label}'"
