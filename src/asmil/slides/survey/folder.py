"""The folder of a survey: where its files are, and the settings they were made with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from asmil.config import flat
from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.slides.survey.settings import SurveyConfig


@dataclass(frozen=True)
class SurveyFolder:
    """Paths of a survey's files."""

    path: Path

    @property
    def settings(self) -> Path:
        """The settings of all slides."""
        return self.path / "tissue.yaml"

    @property
    def table(self) -> Path:
        """A row for every slide."""
        return self.path / "tissue.csv"

    @property
    def page(self) -> Path:
        """The contact sheet as a page."""
        return self.path / "contact_sheet.html"

    @property
    def sheet(self) -> Path:
        """The contact sheet as a picture."""
        return self.path / "contact_sheet.jpg"

    def mask(self, slide: str) -> Path:
        """The tissue as black and white."""
        return self.path / "masks" / f"{slide}.png"

    def contours(self, slide: str) -> Path:
        """The tissue as polygons."""
        return self.path / "contours" / f"{slide}.geojson"

    def thumbnail(self, slide: str) -> Path:
        """The slide alone."""
        return self.path / "thumbnails" / f"{slide}.jpg"

    def overlay(self, slide: str) -> Path:
        """The slide with tissue and tiles."""
        return self.path / "overlays" / f"{slide}.jpg"

    def has_files(self, slide: str) -> bool:
        """Whether all files of a slide are there."""
        files = (self.mask(slide), self.contours(slide), self.thumbnail(slide), self.overlay(slide))
        return all(path.is_file() for path in files)

    def claim(self, config: SurveyConfig) -> None:
        """Write the settings into the folder, or refuse when it holds a survey made otherwise."""
        wanted = config.model_dump(mode="json")
        if not self.settings.is_file():
            if self.table.exists():
                raise AsmilError(
                    f"{self.path} holds a tissue.csv but no tissue.yaml, so its settings are not known; "
                    "choose another folder"
                )
            write_text(self.settings, yaml.safe_dump(wanted, sort_keys=False))
            return
        differences = _differences(_read_settings(self.settings), wanted)
        if differences:
            raise AsmilError(
                f"{self.path} was made with other settings ({'; '.join(differences)}); "
                "choose another folder or the settings of this one"
            )


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise AsmilError(f"{path} cannot be read as settings; remove the folder or choose another one")
    return found


def _differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    missing = "not set"
    there, asked = flat(found), flat(wanted)
    return [
        f"{name}: there {there.get(name, missing)}, asked {asked.get(name, missing)}"
        for name in dict.fromkeys([*asked, *there])
        if there.get(name, missing) != asked.get(name, missing)
    ]
