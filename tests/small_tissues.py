"""A small cohort of features without coordinates, with sites, as `asmil datasets tcga-hipt` makes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def write_tissue(folder: Path, name: str, center: float, sites: int = 6, slides: int = 3, vectors: int = 5) -> Path:
    """`slides` slides of each site with `vectors` vectors around a center; returns the manifest."""
    (folder / "features").mkdir(parents=True)
    draw = np.random.default_rng(len(name) + sum(map(ord, name)))
    rows = []
    for site in range(sites):
        for slide in range(slides):
            rows.append((f"{name}-{site}-{slide}", f"{name}-patient-{site}-{slide}", f"{name}-site-{site}"))
            features = draw.normal(center, size=(vectors, 16)).astype(np.float16)
            np.save(folder / "features" / f"{rows[-1][0]}.npy", features)
    pd.DataFrame(rows, columns=["slide", "patient", "site"]).to_csv(folder / "cohort.csv", index=False)
    return folder / "cohort.csv"
