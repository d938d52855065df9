"""Train many small models at once, each with the same result as if it were trained alone."""

from asmil.training.lockstep.replicas import Replica
from asmil.training.lockstep.train import obstacle, train_side_by_side

__all__ = ["Replica", "obstacle", "train_side_by_side"]
