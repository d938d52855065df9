"""Taking new slides to features exactly as the slides of a run were."""

from __future__ import annotations

from pathlib import Path

from asmil.errors import AsmilError
from asmil.extraction.extract import identify
from asmil.extraction.settings import parse_extraction
from asmil.extraction.worker import WorkerPlan
from asmil.training.run_folder import RunDescription


def extraction_plan(description: RunDescription, run: Path, weights: Path | None, readers: int = 1) -> WorkerPlan:
    """The extraction that the run's features came from; refused if it is not known, or if the weights are others."""
    trained = description.features
    settings = trained.get("extraction")
    if settings is None:
        known = trained.get("encoder") or "an encoder that their files do not name"
        raise AsmilError(
            f"{run}: its features were not made by `asmil extract` (they are of {known}), so how to extract new slides "
            "is not known; extract them as the training slides were and give the feature files instead"
        )
    config = parse_extraction(dict(settings))
    encoder = identify(config.encoder, weights)
    if encoder.weights_hash != trained.get("weights_hash"):
        was, here = str(trained.get("weights_hash"))[:12], encoder.weights_hash[:12]
        raise AsmilError(
            f"{run}: it was trained on features of {config.encoder} with other weights (SHA-256 {was}, here {here}); "
            "give the file with --weights"
        )
    return WorkerPlan(config, encoder, weights, readers=readers)
