"""Public data sets as cohorts: what a user downloaded, verified and written as manifests and feature files."""

from asmil.datasets.catalog import DATASETS, DatasetReport, MadeCohort, PublicDataset, find_dataset, make_cohorts

__all__ = ["DATASETS", "DatasetReport", "MadeCohort", "PublicDataset", "find_dataset", "make_cohorts"]
