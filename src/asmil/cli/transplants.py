"""`asmil transplants`: bags of real feature vectors with known witnesses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from asmil.cli.options import Again, argument, call, option
from asmil.cli.synthetic import print_summary


def transplants(
    folder: Annotated[Path, argument("Folder for the cohort.", metavar="DIR")],
    background: Annotated[Path, option("Manifest of the cohort that the background is of.", metavar="COHORT")],
    witnesses_from: Annotated[Path, option("Manifest of the cohort that the witnesses are of.", metavar="COHORT")],
    slides: Annotated[int, option("Number of bags, split 200:65:100 into train, val and test.")] = 60,
    seed: Annotated[int, option("Seed; the same seed makes the same bags.")] = 0,
    witnesses: Annotated[int, option("Tiles of the other tissue in a positive bag; from 1.")] = 10,
    tiles_min: Annotated[int, option("Fewest tiles of a bag.")] = 50,
    tiles_max: Annotated[int, option("Most tiles of a bag; at most those of the largest site.")] = 10_000,
    prevalence: Annotated[float, option("Share of positive bags.")] = 0.5,
    label_noise: Annotated[float, option("Share of training and validation labels that are wrong.")] = 0.0,
    site_bias: Annotated[float, option("Share of training bags whose site is chosen by their label.")] = 0.0,
    again: Again = False,
) -> None:
    """Make bags of real features in which the truth of every tile is known: a few witnesses in another tissue.

    The two cohorts need sites and features of one encoder, e.g. those of `asmil datasets tcga-hipt`. Run the same
    command again to make what is missing; other settings are refused, unless --again replaces the cohort.

    Example: asmil transplants bags --background cohorts/brca/cohort.csv --witnesses-from cohorts/nsclc/cohort.csv
    """
    given = locals()
    from asmil.api import cohorts

    print_summary(call(cohorts.transplants, given), "classification", site_bias)
