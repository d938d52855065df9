"""All sections of a validation as one page, with `validation.json` and the predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.cohort.problems import listed
from asmil.evaluation.run_alarms import alarm_findings
from asmil.evaluation.validation.calibration import calibration
from asmil.evaluation.validation.conformal_sets import conformal_sets
from asmil.evaluation.validation.decision_curve import decision_curve
from asmil.evaluation.validation.performance import performance
from asmil.evaluation.validation.similarity import similarity
from asmil.evaluation.validation.subgroups import subgroups
from asmil.evaluation.validation.survival import risk_groups, survival_calibration
from asmil.evaluation.validation.threshold import at_threshold
from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Document, jsonable, problem_sections
from asmil.reporting.files import write_document
from asmil.reporting.formats import format_count
from asmil.reporting.notebook import Displayed
from asmil.version import __version__

SECTIONS: tuple[Callable[[ValidatedPredictions], Part | None], ...] = (
    performance,
    at_threshold,
    risk_groups,
    calibration,
    survival_calibration,
    decision_curve,
    subgroups,
    conformal_sets,
    similarity,
)
"""The sections in the order of the page; each is None where it does not apply."""
PAGE = "validation.html"


@dataclass(frozen=True)
class Validation(Displayed):
    """The validation of a model on new patients."""

    validated: ValidatedPredictions
    parts: tuple[Part, ...]

    @property
    def answer(self) -> str:
        """The result in a few sentences."""
        counts_first = sorted(self.parts, key=lambda part: part.key != "threshold")
        said = " ".join(part.sentence for part in counts_first if part.sentence)
        patients = format_count(
            self.validated.n_patients, "patient" if self.validated.overlap.slides else "new patient"
        )
        return f"{self.validated.run.name} on {patients}: {said}"

    @property
    def warnings(self) -> list[str]:
        """Reasons for doubt, the most important first."""
        return [*_overlap_warnings(self.validated), *(line for part in self.parts for line in part.warnings)]

    @property
    def document(self) -> Document:
        """The page."""
        validated = self.validated
        failed = format_count(len(validated.failures), validated.run.unit)
        return Document(
            kind=f"External validation, {validated.run.kind}",
            title=f"{validated.run.name} on {validated.cohort.name}",
            answer=self.answer,
            about=_about(validated),
            alarms=alarm_findings([validated.run.path]),
            warnings=self.warnings,
            sections=[
                *(part.section for part in self.parts),
                *problem_sections(validated.failures, f"Not predicted: {failed}"),
            ],
            reading=READING,
        )

    def to_dict(self) -> dict[str, Any]:
        """All results, ready for JSON; undefined numbers are None."""
        validated, run = self.validated, self.validated.run
        content = {
            "asmil": __version__,
            "model": {
                "path": str(run.path),
                "name": run.name,
                "bundle": run.is_bundle,
                "method": run.method,
                "preset": run.settings.preset,
                "task": run.kind,
                "classes": list(run.classes),
                "models": validated.n_models,
            },
            "cohort": {
                "manifest": str(validated.cohort),
                "slides": sum(len(unit.slides) for unit, _ in validated.predicted),
                "patients": validated.n_patients,
                "outcomes": outcomes(validated),
                "not_predicted": list(validated.failures),
            },
            "overlap": {
                "known": validated.overlap.known,
                "slides": list(validated.overlap.slides),
                "by_name": dict(validated.overlap.by_name),
                "by_features": list(validated.overlap.by_features),
                "internal_test_slides": list(validated.overlap.tested),
            },
            "bootstrap": {
                "unit": "patient",
                "resamples": validated.request.resamples,
                "seed": validated.request.seed,
                "level": 0.95,
            },
            "answer": self.answer,
            "warnings": self.warnings,
            **{part.key: part.content for part in self.parts},
        }
        return dict(jsonable(content))

    def display_parts(self) -> tuple[str, list[pd.DataFrame], list[str]]:
        """The title, the tables and the warnings, as they are shown in a notebook."""
        metrics = self.validated.measured.metrics
        rows = [{"metric": name, "value": value.value, **value.interval._asdict()} for name, value in metrics.items()]
        return self.answer, [pd.DataFrame(rows).set_index("metric")], self.warnings


READING = (
    "Patients, not slides, are counted: the predictions of a patient's slides are averaged first. Intervals are 95 % "
    "percentile intervals of a bootstrap over patients, unless a caption says otherwise.",
    "Nothing is fitted or chosen on the new patients: models, classes and threshold are those of the run.",
    "The internal estimate is cross-validated or of a single test set: each test patient is predicted by models that "
    "have not seen the patient, one seed at a time. New patients are predicted by the mean of all models, which is "
    "usually slightly better. Sensitivity and specificity of the internal estimate are of slides.",
)


def validate_predictions(validated: ValidatedPredictions) -> Validation:
    """All sections that apply to the task."""
    parts = [section(validated) for section in SECTIONS]
    return Validation(validated, tuple(part for part in parts if part is not None))


def write_validation(validation: Validation, folder: Path | str) -> Path:
    """Write `validation.html`, `.md` and `.json`; return the path of the page."""
    return write_document(validation.document, Path(folder) / PAGE, validation.to_dict())


def outcomes(validated: ValidatedPredictions) -> dict[str, int]:
    """How many patients have each class, label or the event; empty for values."""
    run, truth = validated.run, validated.truth
    if run.kind == "survival":
        return {"event": int((truth[:, 1] > 0).sum()), "censored": int((truth[:, 1] == 0).sum())}
    counts = run.format.memberships(truth).sum(axis=0) if run.classes else []
    return {name: int(count) for name, count in zip(run.classes, counts, strict=True)}


def _about(validated: ValidatedPredictions) -> str:
    run = validated.run
    counted = ", ".join(f"{name} {count}" for name, count in outcomes(validated).items())
    slides = sum(len(unit.slides) for unit, _ in validated.predicted)
    models = format_count(validated.n_models, "model")
    new = "No patient or slide of the training is among them."
    if not validated.overlap.known:
        new = "Whether they are new is unknown."
    elif validated.overlap.slides:
        new = f"{format_count(len(validated.overlap.slides), 'slide')} overlap with the training."
    sites = {slide.site for unit, _ in validated.predicted for slide in unit.slides} - {None}
    where = f" of {format_count(len(sites), 'site')}" if sites else ""
    return (
        f"{run.method}, preset {run.settings.preset or 'none'}, {models}; {format_count(slides, 'slide')} of "
        f"{format_count(validated.n_patients, 'patient')}{where}{f' ({counted})' if counted else ''} from "
        f"{validated.cohort.name}. {new}"
    )


def _overlap_warnings(validated: ValidatedPredictions) -> list[str]:
    overlap = validated.overlap
    warnings = []
    if overlap.slides:
        warnings.append(
            f"{format_count(len(overlap.slides), 'slide')} of the cohort overlap with the training "
            f"({listed(overlap.slides)}) and were kept with --allow-overlap, so these numbers are too good."
        )
    if not overlap.known:
        warnings.append(
            "The bundle was written by an earlier version and does not say which patients it was trained on, so it is "
            "unknown whether these patients are new; export the run again."
        )
    if overlap.tested:
        warnings.append(
            f"{format_count(len(overlap.tested), 'slide')} ({listed(overlap.tested)}) belong to test patients of the "
            "run, so the new patients and the internal estimate are not independent."
        )
    return warnings
