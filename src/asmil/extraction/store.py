"""A folder of feature files: which slides are done in it, and that all of them were made in one way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asmil.cohort.features import inspect_features
from asmil.cohort.source import FeatureSource, read_extraction
from asmil.errors import AsmilError
from asmil.extraction.settings import ExtractionConfig
from asmil.folder_settings import claim_folder
from asmil.names import file_in
from asmil.slides.discovery import SlideFile

SETTINGS = "extraction.yaml"
PICTURES = "qc"
SAME_MPP = 1e-6


@dataclass(frozen=True)
class EncoderIdentity:
    """Which network made the features: a name and the hash of its weights."""

    name: str
    weights_hash: str


@dataclass(frozen=True)
class FeatureFolder:
    """Where the features of one extraction lie: `<slide>.h5`, the settings in `extraction.yaml`, pictures in `qc/`."""

    path: Path

    def features(self, slide: str) -> Path:
        """The feature file of a slide."""
        return file_in(self.path, slide, ".h5")

    def picture(self, slide: str) -> Path:
        """The quality-control picture of a slide."""
        return file_in(self.path / PICTURES, slide, ".jpg")

    def begin(self, config: ExtractionConfig, encoder: EncoderIdentity) -> None:
        """Store the settings, or refuse to mix them with features that were extracted with others."""
        settings = {**config.model_dump(mode="json"), "encoder": asdict(encoder)}
        claim_folder(self.path / SETTINGS, settings, "features")

    def is_done(self, slide: SlideFile, config: ExtractionConfig, encoder: EncoderIdentity) -> bool:
        """Whether the slide's features are whole and of this slide; a file made in another way is an error."""
        path = self.features(slide.name)
        if not path.exists():
            return False
        try:
            info = inspect_features(FeatureSource(path))
            about = read_extraction(info)
        except AsmilError:
            return False
        if about is None or about.settings is None:
            raise AsmilError(
                f"{slide.name}: {path} was not written by asmil extract; move it away or give another --out"
            )
        made = (info.encoder, info.weights_hash, about.settings)
        if made != (encoder.name, encoder.weights_hash, config.model_dump(mode="json")):
            raise AsmilError(
                f"{slide.name}: {path} was extracted with other settings; move it away or give another --out"
            )
        if slide.path.exists() and about.slide.get("bytes") != slide_bytes(slide.path):
            return False
        return slide.mpp is None or (info.mpp is not None and abs(info.mpp - slide.mpp) <= SAME_MPP * slide.mpp)


def about_text(config: ExtractionConfig, slide: Mapping[str, Any], tissue: Mapping[str, Any], precision: str) -> str:
    """The record of an extraction that a feature file carries, without the sizes, which are separate attributes."""
    record = {"settings": config.model_dump(mode="json"), "slide": slide, "tissue": tissue, "precision": precision}
    return json.dumps(record, ensure_ascii=False)


def slide_bytes(path: Path) -> int:
    """The size of a slide: of its file, or of all files of a folder (DICOM)."""
    if path.is_dir():
        return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())
    return path.stat().st_size
