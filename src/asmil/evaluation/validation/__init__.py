"""External validation: how good a trained model is on new patients. One module per section of the page."""

from asmil.evaluation.validation.report import Validation, validate_predictions, write_validation
from asmil.evaluation.validation.validated import Overlap, Part, ValidatedPredictions, ValidationRequest

__all__ = [
    "Overlap",
    "Part",
    "ValidatedPredictions",
    "Validation",
    "ValidationRequest",
    "validate_predictions",
    "write_validation",
]
