"""Many small trainings at once, each as if it ran alone."""

from asmil.training.lockstep.replicas import Replica
from asmil.training.lockstep.train import obstacle, train_side_by_side

__all__ = ["Replica", "obstacle", "train_side_by_side"]
