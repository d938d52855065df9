from asmil.evaluation.stability.alarms import Alarm as Alarm
from asmil.evaluation.stability.analysis import RunStability as RunStability
from asmil.evaluation.stability.analysis import TrainingStability as TrainingStability
from asmil.evaluation.stability.analysis import read_stability as read_stability
from asmil.evaluation.stability.analysis import seed_agreement as seed_agreement
from asmil.evaluation.stability.analysis import summary_of as summary_of
from asmil.evaluation.stability.analysis import write_tables as write_tables
