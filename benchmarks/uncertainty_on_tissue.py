"""The numbers of docs/uncertainty.md: coverage, missed cases and similarity to the training slides, on real tissue.

    asmil datasets tcga-hipt --from HIPT --out hipt
    python benchmarks/uncertainty_on_tissue.py split hipt/brca/cohort.csv --out parts
    asmil train parts/train.csv --features hipt/brca/features --method abmil --set training.epochs=10 --folds 5 --out a
    python benchmarks/uncertainty_on_tissue.py coverage a parts/new.csv parts/sites.csv --features hipt/brca/features
    asmil train hipt/brca/cohort.csv --method abmil --set training.epochs=10 --folds 5 --seeds 2 --out b
    python benchmarks/uncertainty_on_tissue.py folds b
    python benchmarks/uncertainty_on_tissue.py similarity hipt/brca/cohort.csv hipt/nsclc/cohort.csv
    python benchmarks/uncertainty_on_tissue.py stain colon/images --out stain

Each prints a table; `--record FILE` also writes its numbers as JSON. `folds` measures the sets of each fold, calibrated
on its validation part, on its test part. `stain` uses images and features that are in its folder already.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

import asmil
from asmil.cohort.source import FeatureSource
from asmil.cohort.tile_hashes import slide_mean
from asmil.evaluation.rows import part_of
from asmil.evaluation.statistics import benjamini_hochberg
from asmil.evaluation.uncertainty import (
    ConformalCalibration,
    calibration_of,
    coverage_table,
    fit_similarity,
    prediction_sets,
)
from asmil.files import write_json, write_text
from asmil.runs.run import read_run
from markdown_table import markdown_table
from measuring import about

SITES, NEW_PATIENTS = ("A8", "AC", "D8"), 200
REPEATS, LEFT_OUT, LARGEST_SITES = 20, 80, 15
NEW_IMAGES, TILES = 30, {"mpp": 0.55, "tile_um": 70.4, "tile_px": 128, "tissue": "none"}
STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])
"""Optical densities (red, green, blue) of hematoxylin, eosin and a third stain."""
Image = npt.NDArray[np.uint8]
Row = dict[str, Any]


def split(cohort: Path, out: Path) -> list[Row]:
    """Write manifests of training patients, of new patients of the same sites, and of other sites."""
    table = pd.read_csv(cohort, dtype=str)
    other = table["site"].isin(SITES)
    patients = sorted(set(table["patient"][~other]))
    random.Random(0).shuffle(patients)
    new = table["patient"].isin(patients[:NEW_PATIENTS])
    rows = []
    for name, part in {"train": table[~other & ~new], "new": table[new], "sites": table[other]}.items():
        write_text(out / f"{name}.csv", part.to_csv(index=False))
        labels = part.drop_duplicates("patient")["label"].value_counts().sort_index()
        rows.append({"part": name, "slides": len(part), "patients": part["patient"].nunique(), **labels})
    return rows


def coverage(run: Path, manifests: Sequence[Path], features: Path | None) -> list[Row]:
    """Measure sets, missed cases of the second class, errors and similarity of new slides."""
    trained = asmil.load_run(run)
    calibration, positive = calibration_of(read_run(run)), trained.classes[1]
    rows = []
    for manifest in manifests:
        slides = pd.read_csv(manifest, dtype=str).set_index("slide")
        row: Row = {"manifest": manifest.stem, "patients": slides["patient"].nunique()}
        row |= {"validation patients": calibration.n_patients(), f"of them {positive}": calibration.n_patients(1)}
        for asked, per_class in ((0.9, False), (0.8, True), (0.9, True)):
            found = trained.predict(manifest, features=features, coverage=asked, per_class=per_class, max_missed=0.05)
            sets = [[name in str(one).split(";") for name in trained.classes] for one in found["conformal_set"]]
            names, patients = found["target"].tolist(), slides["patient"][found["slide"]].tolist()
            row |= _covered(asked, per_class, np.array(sets), names, patients, trained.classes)
        wrong, is_positive = found["most_probable_class"] != found["target"], found["target"] == positive
        single, disagree = found["conformal_class"] != "abstain", found["models_disagree"] > 0
        ruled_out, unlike = found[f"ruled_out_{positive}"].astype(bool), found["similarity_p"] <= 0.05
        row |= {
            "accuracy": 1 - wrong.mean(),
            "accuracy of single classes, 0.9 per class": (found["conformal_class"] == found["target"])[single].mean(),
            f"{positive} slides": is_positive.sum(),
            f"{positive} slides ruled out": ruled_out[is_positive].sum(),
            "other slides ruled out": ruled_out[~is_positive].mean(),
            "slides, a model votes otherwise": disagree.sum(),
            "errors, a model votes otherwise": wrong[disagree].sum(),
            "share of errors, none does": wrong[~disagree].mean(),
            "similarity_p <= 0.05": unlike.mean(),
        }
        by_site = unlike.groupby(slides["site"][found["slide"]].to_numpy()).mean()
        rows.append(row | {f"similarity_p <= 0.05, {site}": by_site[site] for site in SITES if site in by_site})
    return rows


def folds(run: Path) -> list[Row]:
    """Measure the sets of each fold, calibrated on its validation part, on its test part."""
    read = read_run(run)
    held_out, rows = calibration_of(read), part_of(read, "test")
    kept = dict.fromkeys(read.format.prediction_columns, "mean") | {"patient": "first", "target": "first"}
    slides = rows.groupby(["fold", "slide"], as_index=False).agg(kept)
    names = [read.classes[target] for target in read.format.truth(slides)]
    columns = (held_out.folds, held_out.targets, held_out.patients, held_out.probabilities)
    own = {
        fold: ConformalCalibration(held_out.classes, *(values[held_out.folds == fold] for values in columns))
        for fold in np.unique(held_out.folds).tolist()
    }
    row: Row = {"patients": slides["patient"].nunique()}
    for target, name in [(None, "all"), *enumerate(read.classes)]:
        counts = np.array([calibration.n_patients(target) for calibration in own.values()]) + 1
        row[f"0.9, expected: {name}"] = np.mean(1 - np.floor(counts / 10) / counts)  # p-values are multiples of 1 / n
    for per_class in (False, True):
        sets = np.zeros((len(slides), len(read.classes)), np.bool_)
        for fold, calibration in own.items():
            tested = (slides["fold"] == fold).to_numpy()
            p_values = calibration.p_values({fold: read.format.predictions(slides[tested])}, per_class)
            sets[tested] = prediction_sets(p_values, 0.9)
        row |= _covered(0.9, per_class, sets, names, slides["patient"].tolist(), read.classes)
    return [row]


def _covered(
    asked: float,
    per_class: bool,
    sets: npt.NDArray[np.bool_],
    names: Sequence[str],
    patients: Sequence[str],
    classes: Sequence[str],
) -> Row:
    targets = [classes.index(name) for name in names]
    table = coverage_table(sets, targets, patients, {"class": names}).set_index("group")
    title = f"{asked} per class" if per_class else f"{asked}"
    found = {f"{title}: {group}": share for group, share in table["coverage"].items()}
    return found | {f"{title}: abstained": table.loc["all", "abstained"]}


def similarity(brca: Path, nsclc: Path) -> list[Row]:
    """Compare lung slides, random patients and the largest sites with the other BRCA slides."""
    (x, patients, sites), (lung, lung_patients, _) = _means(brca), _means(nsclc)
    is_lung = np.arange(len(x) + len(lung)) >= len(x)
    rows = [_left_out("NSCLC", np.concatenate([x, lung]), np.concatenate([patients, lung_patients]), is_lung)]
    draw, drawn = np.random.default_rng(0), []
    for _ in range(REPEATS):
        out = np.isin(patients, draw.choice(np.unique(patients), LEFT_OUT, replace=False))
        drawn.append(_left_out("", x, patients, out))
    numbers = pd.DataFrame(drawn).drop(columns="left out")
    means = {**numbers.mean(), "whole, p": numbers["whole, p"].min()}
    rows.append({"left out": f"{REPEATS} x {LEFT_OUT} random patients: means, smallest p of the whole", **means})
    names, counts = np.unique(sites, return_counts=True)
    largest = names[np.argsort(-counts)][:LARGEST_SITES]
    return rows + [_left_out(str(site), x, patients, sites == site) for site in largest]


def _means(manifest: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.str_], npt.NDArray[np.str_]]:
    slides = asmil.load_cohort(manifest).slides
    means = np.stack([slide_mean(slide.source) for slide in slides])
    return means, np.array([slide.patient for slide in slides]), np.array([str(slide.site) for slide in slides])


def _left_out(name: str, x: npt.NDArray[np.float32], patients: npt.NDArray[Any], out: npt.NDArray[np.bool_]) -> Row:
    """The slides left out, compared with all others."""
    fitted = fit_similarity(x[~out], patients[~out].tolist())
    if fitted is None:
        sys.exit(f"{name}: {(~out).sum()} others are too few to compare with; give more slides")
    p = fitted.p_values(x[out])
    return {
        "left out": name,
        "slides": len(p),
        "median p": np.median(p),
        "p <= 0.05": (p <= 0.05).mean(),
        "p <= 0.5": (p <= 0.5).mean(),
        "named": (benjamini_hochberg(p) <= 0.05).sum(),
        "whole, p": fitted.cohort_p_value(x[out], patients[out].tolist()),
    }


def stain(images: Path, out: Path) -> list[Row]:
    """Compare images, and copies with another hue or other stains, with the other images."""
    files = sorted(images.iterdir())
    new = sorted(np.random.default_rng(0).permutation(len(files))[:NEW_IMAGES].tolist())
    known = _extracted(np.delete(np.array(files, object), new).tolist(), "train", np.asarray, out)
    rows = []
    for name, shift in SHIFTS.items():
        x = np.concatenate([known, _extracted([files[place] for place in new], name, shift, out)])
        numbers = np.arange(len(x))
        rows.append(_left_out(name, x, numbers, numbers >= len(known)))
    return rows


def _extracted(files: Sequence[Path], name: str, shift: Callable[[Image], Image], out: Path) -> npt.NDArray[np.float32]:
    """The mean features of shifted copies; those that are there already are used."""
    copies, features = out / "images" / name, out / "features" / name
    copies.mkdir(parents=True, exist_ok=True)
    names = [file.stem if shift is np.asarray else f"{file.stem}_{name}" for file in files]
    for file, copy in zip(files, names, strict=True):
        if not (copies / f"{copy}.png").exists():
            cv2.imwrite(str(copies / f"{copy}.png"), shift(np.asarray(cv2.imread(str(file)), np.uint8)))
    if not all((features / f"{copy}.h5").exists() for copy in names):
        settings: dict[str, Any] = TILES
        asmil.extract(copies, features, **settings, workers=0, pictures=False, progress=False)
    return np.stack([slide_mean(FeatureSource(features / f"{copy}.h5")) for copy in names])


def _turned(image: Image, degrees: int) -> Image:
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV).astype(int)
    hsv[..., 0] = (hsv[..., 0] + degrees // 2) % 180  # two degrees per unit
    return np.asarray(cv2.cvtColor(hsv.astype(np.uint8), cv2.COLOR_HSV2BGR), np.uint8)


def _restained(image: Image, hematoxylin: float, eosin: float) -> Image:
    stains = STAINS / np.linalg.norm(STAINS, axis=1, keepdims=True)
    densities = -np.log((image[..., ::-1].astype(float) + 1) / 256)
    amounts = densities.reshape(-1, 3) @ np.linalg.inv(stains) * [hematoxylin, eosin, 1]
    rgb = np.clip(256 * np.exp(-(amounts @ stains)) - 1, 0, 255)
    return np.asarray(rgb.reshape(image.shape)[..., ::-1], np.uint8)


SHIFTS: dict[str, Callable[[Image], Image]] = {
    "original": np.asarray,
    **{f"hue{degrees}": partial(_turned, degrees=degrees) for degrees in (10, 20, 40, 60)},
    "h0.7": partial(_restained, hematoxylin=0.7, eosin=1),
    "h0.5e1.6": partial(_restained, hematoxylin=0.5, eosin=1.6),
}
VERBS: dict[Callable[..., list[Row]], tuple[str, ...]] = {
    split: ("cohort", "--out"),
    coverage: ("run", "manifests", "--features"),
    folds: ("run",),
    similarity: ("brca", "nsclc"),
    stain: ("images", "--out"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for function, names in VERBS.items():
        verb = verbs.add_parser(function.__name__, help=function.__doc__)
        for name in names:
            more: Row = {"nargs": "+"} if name == "manifests" else {"required": True} if name == "--out" else {}
            verb.add_argument(name, type=Path, **more)
        verb.add_argument("--record", type=Path, help="where the numbers go, as JSON")
        verb.set_defaults(function=function)
    given = vars(parser.parse_args(arguments))
    function, record = given.pop("function"), given.pop("record")
    rows = [{name: _rounded(value) for name, value in row.items()} for row in function(**given)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[str(row.get(name, "")) for name in columns] for row in rows]
    if len(columns) > 10:  # one column per row
        columns, *lines = map(list, zip(columns, *lines, strict=True))
    print(markdown_table(columns, lines))
    if record:
        write_json(record, {**about(torch.device("cpu")), "rows": rows})


def _rounded(value: Any) -> Any:
    """Four significant digits."""
    plain = value.item() if isinstance(value, np.generic) else value
    return float(f"{plain:.4g}") if isinstance(plain, float) else plain


if __name__ == "__main__":
    main()
