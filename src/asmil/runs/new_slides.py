"""Extract features of new slides exactly as for the slides of a run."""

from __future__ import annotations

from pathlib import Path

from asmil.errors import AsmilError
from asmil.extraction.extract import identify
from asmil.extraction.settings import EXACT, parse_extraction
from asmil.extraction.worker import WorkerPlan
from asmil.runs.description import RunDescription
from asmil.slides.encoders.own_callable import confirmed_encoder


def extraction_plan(
    description: RunDescription, run: Path, weights: Path | None, readers: int = 1, encoder: str | None = None
) -> WorkerPlan:
    """The extraction settings of the run's features; an error if they are unknown, or if the weights differ.

    encoder: the run's encoder as given by the user; required if it is code, `module:callable` or `file.py:callable`,
        since code named in a run folder is not trusted
    """
    trained = description.features
    settings = trained.get("extraction")
    if settings is None:
        known = trained.get("encoder") or "an encoder that their files do not name"
        raise AsmilError(
            f"{run}: its features were not made by `asmil extract` (encoder: {known}), so new slides cannot be "
            "extracted in the same way; extract them like the training slides and give the feature files instead"
        )
    config = parse_extraction(dict(settings))
    if config.tissue.method == "files":
        raise AsmilError(
            f"{run}: the tissue of its slides was read from files (`asmil extract --tissue FOLDER`), and that of new "
            "slides must be, too; extract them in that way and give the feature files instead"
        )
    if config.coarser and trained.get("coarser") is None:
        if abs(trained["tile_um"] - config.tiling.tile_um) > EXACT * config.tiling.tile_um:
            raise AsmilError(
                f"{run}: it was trained on the coarser of several magnifications alone; extract new slides in the same "
                "way and give the feature files of that magnification instead"
            )
        config = config.model_copy(update={"coarser": ()})
    name = confirmed_encoder(config.encoder, encoder, f"{run / 'config.yaml'}")
    config = config.model_copy(update={"encoder": name})
    identity = identify(name, weights)
    if identity.weights_hash != trained.get("weights_hash"):
        was, here = str(trained.get("weights_hash"))[:12], identity.weights_hash[:12]
        raise AsmilError(
            f"{run}: it was trained on features of {config.encoder} with different weights (SHA-256 {was}, here "
            f"{here}); give the matching file with --weights"
        )
    return WorkerPlan(config, identity, weights, readers=readers)
