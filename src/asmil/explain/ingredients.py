"""What explanations of slides are made from: the models of runs, features, images and what is drawn with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asmil.cohort.fingerprint import feature_contents
from asmil.cohort.manifest import Slide
from asmil.runs.attention_file import ATTENTION_FILE
from asmil.runs.bundle import is_bundle
from asmil.runs.layout import RunLayout, is_finished
from asmil.runs.prediction import weights_file
from asmil.runs.run import setting
from asmil.settings.made_from import Content, file_content, sampled_sha256


def run_contents(runs: Sequence[Path], recorded: bool = False) -> dict[str, Content]:
    """The weights, settings and splits of runs; recorded: also the attention that was recorded while training."""
    names = [run.name for run in runs]
    found = {}
    for run in runs:
        name = run.name if names.count(run.name) == 1 else str(run)
        layout = RunLayout(run)
        finished = [path for _, _, path in layout.trainings() if is_finished(path) or is_bundle(run)]
        found[f"weights of {name}"] = _existing([weights_file(path) for path in finished])
        found[f"settings of {name}"] = _existing([layout.config])
        found[f"splits of {name}"] = _existing([layout.splits])
        if recorded:
            files = [path / ATTENTION_FILE for path in finished]
            found[f"recorded attention of {name}"] = file_content(
                *(path for path in files if path.is_file()), checksum=sampled_sha256
            )
    return found


def joins_slides(run: Path) -> bool:
    """Whether a run sees the slides of a patient as one bag."""
    values = RunLayout(run).read_values()
    unit = setting(values, "data", "unit")
    return bool(unit == "patient" or (unit == "auto" and setting(values, "task", "kind") == "survival"))


def slide_contents(slide: Slide, joined: Sequence[Slide]) -> dict[str, Content]:
    """The features of a slide, and of the slides of the same patient that are joined with it."""
    found = feature_contents(slide.source)
    for other in joined:
        if other.slide != slide.slide:
            found[f"features of {other.slide}"] = feature_contents(other.source)["features"]
    return found


def _existing(files: Sequence[Path]) -> Content:
    return file_content(*(path for path in files if path.is_file()))
