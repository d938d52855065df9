"""Whether maps of tiles say what the model does: patch flipping with controls, intervals, and a report."""

from asmil.evaluation.faithfulness.analysis import Faithfulness, FaithfulnessSettings, faithfulness_run
from asmil.evaluation.faithfulness.report import write_faithfulness

__all__ = ["Faithfulness", "FaithfulnessSettings", "faithfulness_run", "write_faithfulness"]
