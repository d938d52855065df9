"""Classic benchmarks of multiple instance learning: small sets of bags, honest folds, and a check for leaked labels."""

from asmil.classic.bag_set import BagSet, make_bag_set
from asmil.classic.folds import Fold, make_folds
from asmil.classic.leak import ColumnScores, column_scores, refuse_leaks
from asmil.classic.reading import find_sets, read_set

__all__ = [
    "BagSet",
    "ColumnScores",
    "Fold",
    "column_scores",
    "find_sets",
    "make_bag_set",
    "make_folds",
    "read_set",
    "refuse_leaks",
]
