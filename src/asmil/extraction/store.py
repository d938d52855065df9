"""A folder of feature files that were all extracted with the same settings, and which slides are done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asmil.cohort.features import inspect_features
from asmil.cohort.magnifications import write_magnifications
from asmil.cohort.source import ExtractionRecord, FeatureInfo, FeatureSource, read_extraction
from asmil.errors import AsmilError
from asmil.extraction.settings import ExtractionConfig
from asmil.files import bytes_of
from asmil.settings.config import flat
from asmil.settings.documents import read_yaml
from asmil.settings.folder_settings import claim_folder
from asmil.settings.made_from import DoneBefore, MadeFrom, Record, StoredContent
from asmil.settings.own_code import names_code, same_attribute
from asmil.slides.discovery import SlideFile
from asmil.slides.file_names import slide_content
from asmil.slides.tissue.files import TISSUE_FILE, tissue_content
from asmil.tables.names import file_in
from asmil.version import __version__

SETTINGS = "extraction.yaml"
PICTURES = "qc"
SAME_MPP = 1e-6
SLIDE_IMAGE = "slide image"
ADDED_SETTINGS = flat(ExtractionConfig().model_dump(mode="json", include={"quality", "leave_out"}))
"""Settings that folders of earlier versions lack; with their defaults, the features are the same."""
GIVEN = "given"
"""The source of a resolution that the user gave."""


@dataclass(frozen=True)
class EncoderIdentity:
    """The encoder of the features: its name and the hash of its weights; for the user's own code, also its checksum."""

    name: str
    weights_hash: str
    code: str | None = None


@dataclass(frozen=True)
class FeatureFolder:
    """The folder of one extraction: `<slide>.h5`, the settings in `extraction.yaml`, pictures in `qc/`.

    Several magnifications have a folder each, such as `20x/<slide>.h5`, and are listed in `magnifications.yaml`.
    """

    path: Path

    def features(self, slide: str, config: ExtractionConfig) -> tuple[Path, ...]:
        """The feature files of a slide: one for each magnification, finest first."""
        return tuple(file_in(self.path / folder, slide, ".h5") for folder in config.folders)

    def picture(self, slide: str) -> Path:
        """The quality-control picture of a slide."""
        return file_in(self.path / PICTURES, slide, ".jpg")

    def begin(self, config: ExtractionConfig, encoder: EncoderIdentity, again: bool = False) -> str | None:
        """Store the settings, or raise if the folder has features that were extracted with others.

        Return the name that an encoder of the user's own code has in this folder: a later command may spell it
        differently.

        again: store the new settings instead of raising
        """
        identity = {"name": encoder.name, "weights_hash": encoder.weights_hash}
        settings = {**config.model_dump(mode="json"), "encoder": identity}
        note = self.path / SETTINGS
        claim_folder(note, settings, "features", again, {"encoder.name": same_attribute}, ADDED_SETTINGS)
        write_magnifications(self.path, config.folders)
        known = read_yaml(note, "restore it, or choose another folder").get("encoder", identity)
        return str(known["name"]) if names_code(encoder.name) else None

    def keeps(self, slide: SlideFile, config: ExtractionConfig, encoder: EncoderIdentity, done: DoneBefore) -> bool:
        """Whether the slide's features are whole and kept; a file of another tool is an error."""
        path, *coarser = self.features(slide.name, config)
        if not all(file.exists() for file in (path, *coarser)):
            return False
        try:
            info, *_ = [inspect_features(FeatureSource(file)) for file in (path, *coarser)]
            about = read_extraction(info)
        except AsmilError:
            return False
        if about is None or about.settings is None:
            raise AsmilError(
                f"{slide.name}: {path} was not written by asmil extract; move it away or give another --out"
            )
        made_from = _made_from(slide, config, encoder)
        return done.keeps(slide.name, _record(info, about, slide, made_from), made_from)


def _made_from(slide: SlideFile, config: ExtractionConfig, encoder: EncoderIdentity) -> MadeFrom:
    settings = flat(config.model_dump(mode="json", exclude={"encoder"}))
    identity = {"encoder": encoder.name, "weights": encoder.weights_hash, "encoder code": encoder.code}
    contents = {SLIDE_IMAGE: slide_content(slide.path)} if slide.path.exists() else {}
    contents |= tissue_content(slide)
    return MadeFrom({**settings, **identity, "mpp": slide.mpp}, contents)


def _record(info: FeatureInfo, about: ExtractionRecord, slide: SlideFile, now: MadeFrom) -> Record:
    """What a feature file was made from, by its attributes; what earlier versions did not store counts as equal."""
    settings = dict(about.settings or {})
    settings.pop("encoder", None)
    values = {**ADDED_SETTINGS, **flat(settings), "encoder": info.encoder, "weights": info.weights_hash, "mpp": None}
    if same_attribute(str(info.encoder), str(now.values["encoder"])):
        values["encoder"] = now.values["encoder"]
    noted = about.model_extra or {}
    values["encoder code"] = noted.get("code", now.values["encoder code"])
    if slide.mpp is not None:
        alike = info.mpp is not None and abs(info.mpp - slide.mpp) <= SAME_MPP * slide.mpp
        values["mpp"] = slide.mpp if alike else info.mpp
    elif info.mpp_source == GIVEN:
        values["mpp"] = info.mpp
    contents = {}
    if about.tissue.source is not None:
        contents[TISSUE_FILE] = about.tissue.source.content
    if SLIDE_IMAGE in now.contents:
        stored = StoredContent.model_validate(about.slide.get("content") or {})
        if stored.checksum is None and about.slide.get("bytes") != bytes_of(slide.path):
            stored = StoredContent(checksum="")
        contents[SLIDE_IMAGE] = stored
    return Record(asmil=noted.get("asmil"), values=values, contents=contents)


def about_text(
    config: ExtractionConfig,
    slide: Mapping[str, Any],
    tissue: Mapping[str, Any],
    precision: str,
    artifacts: Mapping[str, int],
    code: str | None = None,
) -> str:
    """The record of an extraction in a feature file, without the sizes, which are separate attributes.

    artifacts: the number of blurred tiles, ..., and of tiles left out
    code: checksum of the encoder's code, if it is the user's own
    """
    record = {
        "settings": config.model_dump(mode="json"),
        "slide": slide,
        "tissue": tissue,
        "artifacts": artifacts,
        "precision": precision,
    }
    own = {} if code is None else {"code": code}
    return json.dumps({**record, **own, "asmil": __version__}, ensure_ascii=False)
