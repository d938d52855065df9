"""The settings of a survey, and its folder: where the files are that were made with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from asmil.config import Settings
from asmil.errors import AsmilError
from asmil.folder_settings import claim_folder
from asmil.names import file_in
from asmil.slides.settings import TilingConfig, TissueConfig


class SurveyConfig(Settings):
    """Settings of tissue and tiles for every slide."""

    tissue: TissueConfig = Field(TissueConfig(), description="how tissue is found")
    tiling: TilingConfig = Field(TilingConfig(), description="how tiles are cut")
    mpp: float | None = Field(None, gt=0, description="microns per pixel, unless a table gives them")


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
        """One row per slide."""
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
        return file_in(self.path / "masks", slide, ".png")

    def contours(self, slide: str) -> Path:
        """The tissue as polygons."""
        return file_in(self.path / "contours", slide, ".geojson")

    def thumbnail(self, slide: str) -> Path:
        """The slide alone."""
        return file_in(self.path / "thumbnails", slide, ".jpg")

    def overlay(self, slide: str) -> Path:
        """The slide with tissue and tiles."""
        return file_in(self.path / "overlays", slide, ".jpg")

    def has_files(self, slide: str) -> bool:
        """Whether all files of a slide are there."""
        files = (self.mask(slide), self.contours(slide), self.thumbnail(slide), self.overlay(slide))
        return all(path.is_file() for path in files)

    def claim(self, config: SurveyConfig) -> None:
        """Write the settings into the folder, or refuse if it holds a survey with other settings."""
        if not self.settings.is_file() and self.table.exists():
            raise AsmilError(
                f"{self.path} holds a tissue.csv but no tissue.yaml, so its settings are not known; "
                "choose another folder"
            )
        claim_folder(self.settings, config.model_dump(mode="json"), "a survey")
