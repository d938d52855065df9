"""A survey of slides: the tissue and the tiles of each, as files to check before anything is extracted."""

from asmil.slides.survey.folder import SurveyFolder
from asmil.slides.survey.row import Failure, SurveyRow
from asmil.slides.survey.running import SurveyResult, survey_engine, survey_slides
from asmil.slides.survey.settings import SurveyConfig

__all__ = ["Failure", "SurveyConfig", "SurveyFolder", "SurveyResult", "SurveyRow", "survey_engine", "survey_slides"]
