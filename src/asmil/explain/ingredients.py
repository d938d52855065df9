"""What explanations of slides are made from, and whether a finished one is still valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asmil.cohort.fingerprint import feature_contents
from asmil.cohort.manifest import Slide
from asmil.errors import AsmilError
from asmil.runs.attention_file import ATTENTION_FILE
from asmil.runs.layout import RunLayout
from asmil.runs.trained_models import finished_trainings, weights_file
from asmil.settings.made_from import Content, DoneBefore, MadeFrom, Record, file_content, sampled_sha256


def run_contents(runs: Sequence[Path], recorded: bool = False) -> dict[str, Content]:
    """The weights, settings and splits of runs; recorded: also the attention that was recorded while training."""
    names = [run.name for run in runs]
    contents = {}
    for run in runs:
        name = run.name if names.count(run.name) == 1 else str(run)
        layout = RunLayout(run)
        finished = [path for _, _, path in finished_trainings(layout)]
        contents[f"weights of {name}"] = _existing([weights_file(path) for path in finished])
        contents[f"settings of {name}"] = _existing([layout.config])
        contents[f"splits of {name}"] = _existing([layout.splits])
        if recorded:
            files = [path / ATTENTION_FILE for path in finished]
            contents[f"recorded attention of {name}"] = _existing(files, checksum=sampled_sha256)
    return contents


def slide_contents(slide: Slide, joined: Sequence[Slide]) -> dict[str, Content]:
    """The features of a slide, and of the slides of the same patient that are joined with it."""
    contents = feature_contents(slide.source)
    for other in joined:
        if other.slide != slide.slide:
            contents[f"features of {other.slide}"] = feature_contents(other.source)["features"]
    return contents


def keeps(done: DoneBefore, name: str, record: Record | None, made_from: Callable[[], MadeFrom]) -> bool:
    """Whether a finished slide is kept; if its inputs cannot be read, it is not, and computing it reports why."""
    try:
        return done.keeps(name, record, made_from())
    except AsmilError:
        return False


def _existing(files: Sequence[Path], **options: Any) -> Content:
    return file_content(*(path for path in files if path.is_file()), **options)
