"""How hard the synthetic cohorts are: what a model without attention and one that was told the tiles reach.

    python benchmarks/synthetic_difficulty.py [--width 64 384] [--difficulty easy medium hard] [--slides 365]

For each cohort (two classes, seed 0) two baselines are fitted on the training part and judged on the test part:

- mean: a logistic regression on the mean features of a slide, which cannot look at single tiles;
- tiles: a linear discriminant that is told which training tiles are lesions; a slide's score is its highest tile.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from asmil.synthetic.bags import SyntheticConfig, make_synthetic
from asmil.tasks import metrics

TILES_A_SLIDE = 300
Floats = npt.NDArray[np.floating]


def judge(train: Floats, train_labels: npt.NDArray[np.int64], test: Floats, test_labels: npt.NDArray[np.int64]) -> str:
    """Test AUC and macro-F1 of a logistic regression whose strength is chosen by cross-validation on training data."""
    model = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=8, cv=5, max_iter=2000))
    probabilities = model.fit(train, train_labels).predict_proba(test)
    f1 = metrics.macro_f1(test_labels, metrics.predicted_classes(probabilities), 2)
    return f"{metrics.macro_auc(test_labels, probabilities):.2f} / {f1:.2f}"


def measure(width: int, difficulty: str, n_slides: int) -> tuple[str, str]:
    """The two baselines on one cohort."""
    slides = list(make_synthetic(SyntheticConfig(slides=n_slides, width=width, difficulty=difficulty)))
    parts = {name: [slide for slide in slides if slide.plan.split == name] for name in ("train", "test")}
    labels = {name: np.array([slide.plan.label for slide in part]) for name, part in parts.items()}
    means = {name: np.stack([slide.features.mean(axis=0) for slide in part]) for name, part in parts.items()}

    draw = np.random.default_rng(0)
    tiles, lesions = [], []
    for slide in parts["train"]:
        chosen = draw.permutation(len(slide.features))[:TILES_A_SLIDE]
        tiles.append(slide.features[chosen])
        lesions.append(slide.layout.tumor[chosen])
    tile_model = LinearDiscriminantAnalysis().fit(np.concatenate(tiles), np.concatenate(lesions))
    highest = {
        name: np.array([[tile_model.decision_function(slide.features).max()] for slide in part])
        for name, part in parts.items()
    }
    mean_result, tile_result = (
        judge(features["train"], labels["train"], features["test"], labels["test"]) for features in (means, highest)
    )
    return mean_result, tile_result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[64, 384])
    parser.add_argument("--difficulty", nargs="+", default=["easy", "medium", "hard"])
    parser.add_argument("--slides", type=int, default=365)
    options = parser.parse_args()
    print("| width | difficulty | mean: AUC / macro-F1 | tiles: AUC / macro-F1 |")
    print("| --- | --- | --- | --- |")
    for width in options.width:
        for difficulty in options.difficulty:
            mean_result, tile_result = measure(width, difficulty, options.slides)
            print(f"| {width} | {difficulty} | {mean_result} | {tile_result} |", flush=True)


if __name__ == "__main__":
    main()
