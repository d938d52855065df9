"""The settings of a survey, its folder, and the row of a slide in `tissue.csv`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from asmil.errors import AsmilError
from asmil.settings.config import Settings, flat
from asmil.settings.folder_settings import claim_folder
from asmil.slides.settings import QualityConfig, TilingConfig, TissueConfig
from asmil.tables.names import file_in

NOTE_SEPARATOR = "; "


class SurveyConfig(Settings):
    """Settings of tissue and tiles for every slide."""

    tissue: TissueConfig = Field(TissueConfig(), description="how tissue is found")
    tiling: TilingConfig = Field(TilingConfig(), description="how tiles are cut")
    quality: QualityConfig = Field(QualityConfig(), description="which tiles count as blurred or folded")
    measure_quality: bool = Field(False, description="count blurred and folded tiles, which reads all of their pixels")
    mpp: float | None = Field(None, gt=0, description="microns per pixel, unless a table gives them")


ADDED_SETTINGS = flat(SurveyConfig().model_dump(mode="json", include={"quality", "measure_quality"}))
"""Settings that surveys of earlier versions lack, with the values that they had in effect."""


class SurveyFolder:
    """Paths of a survey's files; page, sheet: the contact sheet as a page and as a picture."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings, self.table = path / "tissue.yaml", path / "tissue.csv"
        self.page, self.sheet = path / "contact_sheet.html", path / "contact_sheet.jpg"

    def mask(self, slide: str) -> Path:
        return file_in(self.path / "masks", slide, ".png")

    def contours(self, slide: str) -> Path:
        return file_in(self.path / "contours", slide, ".geojson")

    def thumbnail(self, slide: str) -> Path:
        """The slide without overlay."""
        return file_in(self.path / "thumbnails", slide, ".jpg")

    def overlay(self, slide: str) -> Path:
        """The slide with tissue and tiles."""
        return file_in(self.path / "overlays", slide, ".jpg")

    def has_files(self, slide: str) -> bool:
        files = (self.mask(slide), self.contours(slide), self.thumbnail(slide), self.overlay(slide))
        return all(path.is_file() for path in files)

    def claim(self, config: SurveyConfig, again: bool = False) -> None:
        """Write the settings into the folder, or raise if it contains a survey with different settings.

        again: take the new settings instead
        """
        if not self.settings.is_file() and self.table.exists():
            raise AsmilError(
                f"{self.path} contains a tissue.csv but no tissue.yaml, so its settings are unknown; "
                "choose another folder"
            )
        claim_folder(self.settings, config.model_dump(mode="json"), "a survey", again, added=ADDED_SETTINGS)


@dataclass(frozen=True)
class SurveyRow:
    """The numbers of a slide; unknown values are empty.

    tissue_share: tissue as a share of the slide's area
    tissue_mm2, tiles: None if the slide has no resolution
    blurred, folded: of the tiles; None if their quality was not measured
    """

    slide: str
    width_px: int
    height_px: int
    mpp: float | None
    mpp_source: str
    method: str
    threshold: float
    tissue_share: float
    tissue_mm2: float | None
    regions: int
    tiles: int | None
    notes: str
    blurred: int | None = None
    folded: int | None = None


@dataclass(frozen=True)
class Failure:
    """A slide that could not be surveyed, and the reason in one sentence."""

    slide: str
    reason: str
