"""How hard the synthetic slides are: what colors and what features of the default encoder tell about tumor.

    asmil synthetic-slides cohort
    python benchmarks/synthetic_slides_difficulty.py cohort

Tiles of 128 microns (256 pixels at 0.5) on a grid, at least a quarter of each tissue. A tile is tumor if more than
30 % of its tissue is, normal if none is; others are left out. Logistic regressions are judged on patients that
they were not fitted on (5 folds over patients):

- tiles: is this tile tumor? From the mean color, from means and deviations of the channels, from features;
- slides: is there tumor on this slide? From the mean color of its tiles, and from its highest tile.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from asmil.slides.encoders.base import Encoder
from asmil.slides.encoders.registry import DEFAULT_ENCODER, load_encoder
from asmil.slides.opening import open_slide
from asmil.slides.tiling import TileReader
from asmil.synthetic.slides import SlidePlan, SyntheticSlidesConfig, plan_slides
from asmil.synthetic.slides.layout import draw_layout

TILE_UM, TILE_PX = 128.0, 256
Floats = npt.NDArray[np.floating]
Labels = npt.NDArray[np.bool_]


def tile_truth(config: SyntheticSlidesConfig, plan: SlidePlan) -> tuple[npt.NDArray[np.int64], Floats]:
    """Corners of the tiles with tissue (level-0 pixels), and the share of tumor in their tissue."""
    layout = draw_layout(config, plan)
    side_px = round(TILE_UM / config.mpp)
    cells = max(1, side_px // layout.grid.cell_px)
    coords, shares = [], []
    for y in range(0, layout.size_px[1] - side_px + 1, side_px):
        for x in range(0, layout.size_px[0] - side_px + 1, side_px):
            row, column = y // layout.grid.cell_px, x // layout.grid.cell_px
            window = np.s_[row : row + cells, column : column + cells]
            if layout.tissue[window].mean() >= 0.25:
                coords.append((x, y))
                shares.append(layout.tumor[window].sum() / layout.tissue[window].sum())
    return np.array(coords, dtype=np.int64), np.array(shares)


def describe(tiles: npt.NDArray[np.uint8], encoder: Encoder) -> dict[str, Floats]:
    """What each baseline sees of the tiles."""
    mean, deviation = tiles.mean(axis=(1, 2)), tiles.std(axis=(1, 2))
    features = encoder(torch.from_numpy(tiles)).cpu().numpy()
    return {"mean color": mean, "means and deviations": np.concatenate([mean, deviation], axis=1), "features": features}


def foreseen(values: Floats, labels: Labels, patients: npt.NDArray[np.str_], strength: float = 1.0) -> Floats:
    """Probabilities from models that did not see the patient."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))
    probabilities = cross_val_predict(model, values, labels, groups=patients, cv=GroupKFold(5), method="predict_proba")
    return np.asarray(probabilities[:, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    folder = parser.parse_args().cohort
    config = SyntheticSlidesConfig(**yaml.safe_load((folder / "synthetic_slides.yaml").read_text()))
    plans = plan_slides(config)
    encoder = load_encoder(DEFAULT_ENCODER)
    seen: dict[str, list[Floats]] = {}
    shares, slide_of = [], []
    for plan in plans:
        coords, share = tile_truth(config, plan)
        with open_slide(folder / "slides" / f"{plan.slide}.tif") as image:
            tiles = TileReader(image, round(TILE_UM / config.mpp), TILE_PX).read(coords)
        for name, values in describe(tiles, encoder).items():
            seen.setdefault(name, []).append(values)
        shares.append(share)
        slide_of.append(np.full(len(share), plan.index))
    share, slide = np.concatenate(shares), np.concatenate(slide_of)
    clear = (share == 0) | (share > 0.3)
    patients = np.array([plan.patient for plan in plans])
    has_tumor = np.array([plan.has_tumor for plan in plans])
    is_tumor = share[clear] > 0.3
    print(f"{len(share)} tiles, {is_tumor.sum()} of them tumor, {(~clear).sum()} mixed")
    print("| seen | tiles: AUC | slides by the highest tile: AUC |\n| --- | --- | --- |")
    for name, parts in seen.items():
        values = np.concatenate(parts)[clear]
        told = foreseen(values, is_tumor, patients[slide[clear]], 0.01 if name == "features" else 1.0)
        highest = np.array([told[slide[clear] == plan.index].max() for plan in plans])
        print(f"| {name} | {roc_auc_score(is_tumor, told):.3f} | {roc_auc_score(has_tumor, highest):.3f} |")
    mean_colors = np.stack([part.mean(axis=0) for part in seen["mean color"]])
    told = foreseen(mean_colors, has_tumor, patients)
    print(f"slides by their mean color: AUC {roc_auc_score(has_tumor, told):.3f}")
    single = [roc_auc_score(has_tumor, mean_colors[:, channel]) for channel in range(3)]
    print(f"slides by one channel of it: AUC {max(max(auc, 1 - auc) for auc in single):.3f} at best")


if __name__ == "__main__":
    main()
