"""`asmil synthetic`: a cohort of features with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from asmil.cli.options import Again, argument, call, option

if TYPE_CHECKING:
    import pandas as pd


def _number_or_word(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def synthetic(
    folder: Annotated[Path, argument("Folder for the cohort.", metavar="DIR")],
    slides: Annotated[int, option("Number of slides, split 200:65:100 into train, val and test.")] = 60,
    seed: Annotated[int, option("Seed; the same seed makes the same slides.")] = 0,
    classes: Annotated[int, option("2 (normal, tumor) or 3 (benign, atypical, malignant).")] = 2,
    width: Annotated[int, option("Features per tile.")] = 384,
    difficulty: Annotated[
        str, option("easy, medium, hard, or a number (medium: 1).", metavar="LEVEL", callback=_number_or_word)
    ] = "medium",
    tiles_min: Annotated[int, option("Fewest tiles of a slide.")] = 200,
    tiles_max: Annotated[int, option("Most tiles of a slide.")] = 5000,
    witness_min: Annotated[float, option("Smallest share of lesion tiles.")] = 0.005,
    witness_max: Annotated[float, option("Largest share of lesion tiles.")] = 0.20,
    sites: Annotated[int, option("Number of sites of training and validation; test has one more.")] = 4,
    site_bias: Annotated[
        float, option("Share of training patients whose site is chosen by their label, a shortcut; 0: none.")
    ] = 0.6,
    task: Annotated[
        str, option("classification, survival, regression (share of lesion tiles) or multilabel.", metavar="TASK")
    ] = "classification",
    censored: Annotated[float, option("For survival: expected share of censored patients.")] = 0.5,
    again: Again = False,
) -> None:
    """Make a synthetic cohort of features: feature files, cohort.csv and the truth of every tile.

    Run the same command again to make what is missing; other settings are refused, unless --again replaces the cohort.

    Example: asmil synthetic cohort --slides 24 --width 32
    """
    given = locals()
    from asmil.api import cohorts

    print_summary(call(cohorts.synthetic_cohort, given), task, site_bias)


def print_summary(manifest: Path, task: str, site_bias: float) -> None:
    """Print the parts of a cohort with their outcomes and sites, and how far sites predict labels."""
    import pandas as pd

    from asmil.console import results, say
    from asmil.reporting import Table, print_table

    cohort = pd.read_csv(manifest)
    names = _outcome_names(cohort, task)
    shown = []
    for part, rows in cohort.groupby("split", sort=False):
        sites = ", ".join(sorted(set(rows["site"])))
        counts = [str(len(rows)), str(rows["patient"].nunique())]
        shown.append([str(part), *counts, *_outcome_cells(rows, task, names), sites])
    console = results()
    print_table(Table(("part", "slides", "patients", *names, "sites"), shown, title=str(manifest.parent)), console)
    predicted = "" if task != "classification" else f" (it predicts {_by_site(cohort):.0%} of the training labels)"
    say(console, f"site bias {site_bias:g}: the site of a training slide depends on its label{predicted}" if site_bias
        else "site bias 0: the site of a slide does not depend on its label")  # fmt: skip
    say(console, f"manifest: {manifest}")


def _by_site(cohort: pd.DataFrame) -> float:
    """The share of training slides that have the most frequent label of their site."""
    train = cohort[cohort["split"] == "train"]
    return float(train.groupby("site")["label"].agg(lambda labels: labels.value_counts().max()).sum() / len(train))


def _outcome_names(cohort: pd.DataFrame, task: str) -> list[str]:
    if task == "survival":
        return ["events", "censored", "median months"]
    if task == "regression":
        return ["mean share"]
    if task == "multilabel":
        return sorted({label for cell in cohort["label"] for label in cell.split(";")})
    return sorted(set(cohort["label"]))


def _outcome_cells(rows: pd.DataFrame, task: str, names: list[str]) -> list[str]:
    """Counts of patients (survival) or slides, or the mean, of one part."""
    if task == "survival":
        patients = rows.drop_duplicates("patient")
        events = int(patients["event"].sum())
        times = patients["time_months" if "time_months" in patients else "time"]  # as earlier versions called it
        return [str(events), str(len(patients) - events), f"{times.median():.1f}"]
    if task == "regression":
        return [f"{rows['label'].mean():.4f}"]
    listed = [cell.split(";") for cell in rows["label"]]
    return [str(sum(name in labels for labels in listed)) for name in names]
