"""Survey slides: write the tissue and the tiles of each slide to files, to check them before extraction."""

from asmil.slides.survey.folder import Failure, SurveyConfig, SurveyFolder, SurveyRow
from asmil.slides.survey.running import SurveyResult, survey_engine, survey_slides

__all__ = ["Failure", "SurveyConfig", "SurveyFolder", "SurveyResult", "SurveyRow", "survey_engine", "survey_slides"]
