"""A survey of slides: the tissue and the tiles of each, as files to check before anything is extracted."""

from asmil.slides.survey.folder import Failure, SurveyConfig, SurveyFolder, SurveyRow
from asmil.slides.survey.running import SurveyResult, survey_engine, survey_slides

__all__ = ["Failure", "SurveyConfig", "SurveyFolder", "SurveyResult", "SurveyRow", "survey_engine", "survey_slides"]
