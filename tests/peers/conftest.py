"""Slides and our features of them, made once for all programs."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from peer_software import PAGE, run


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """`slides`, `cohort.csv` and `features`: CLAM's grid of tiles of 128 pixels, and our own encoder."""
    lab = tmp_path_factory.mktemp("lab") / "lab"
    sizes = ("--slides", 4, "--seed", 1, "--side-mm-min", 1.4, "--side-mm-max", 1.5)
    run("-m", "asmil", "synthetic-slides", lab, *sizes)
    tiling = ("--preset", "bwh_biopsy", "--tile-px", 128, "--magnification", 20, "--no-qc")
    run("-m", "asmil", "extract", lab / "slides", "--out", lab / "features", *tiling)
    return lab


@pytest.fixture(scope="session")
def taken_along(lab, tmp_path_factory):
    """Our features as the page on other tools converts them: folders `clam` and `stamp`."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    folder = tmp_path_factory.mktemp("taken_along")
    (folder / "FEATURES").symlink_to(lab / "features")
    run("-c", code, cwd=folder)
    return folder


@pytest.fixture(scope="session")
def clam_table(lab):
    table = pd.read_csv(lab / "cohort.csv")
    path = lab / "clam.csv"
    names = table["slide"].map(lambda name: Path(name).stem)
    pd.DataFrame({"case_id": names, "slide_id": names, "label": table["label"]}).to_csv(path, index=False)
    return path
