"""A small cohort with everything the viewer shows: slides, features, annotations, and runs on them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from asmil.cohort.features import Provenance, write_features
from asmil.slides.pyramid_tiff import write_pyramid

TILE = 128
WIDTH, HEIGHT = 1408, 1024
MPP = 0.5
CLASSES = ("normal", "tumor")


def grid(columns: int, rows: int, tile: int = TILE) -> np.ndarray:
    """Corners of tiles on a grid."""
    x, y = np.meshgrid(np.arange(columns), np.arange(rows))
    return tile * np.stack([x.ravel(), y.ravel()], axis=1).astype(np.int64)


def drawn_slide(seed: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """Pixels with color and structure, so that a wrong place or color shows."""
    random = np.random.default_rng(seed)
    coarse = random.integers(120, 255, (height // 64 + 1, width // 64 + 1, 3)).astype(np.uint8)
    pixels = coarse.repeat(64, axis=0).repeat(64, axis=1)[:height, :width].copy()
    pixels[:, :, 1] //= 2
    return pixels


def write_slide_features(path: Path, coords: np.ndarray, label: int, seed: int, size: tuple[int, int]) -> None:
    """Features in which some tiles of the second class differ."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(len(coords), 16))
    features[: max(1, len(coords) // 8), :4] += 4 * label
    provenance = Provenance(
        encoder="drawn",
        tile_um=TILE * MPP,
        tile_px=TILE,
        tile_px_level0=TILE,
        mpp=MPP,
        slide_width_px=size[0],
        slide_height_px=size[1],
    )
    write_features(path, features, coords, provenance)


def write_cohort(folder: Path, slides: int = 12) -> Path:
    """Slides s0, s1, ...: the last has no image, the one before no features; every tumor slide is annotated."""
    rows = ["slide,patient,label"]
    for number in range(slides):
        name, label = f"s{number}", number % 2
        rows.append(f"{name},p{number % (slides // 2)},{CLASSES[label]}")
        if number != slides - 1:
            write_pyramid(folder / "slides" / f"{name}.tif", drawn_slide(number), MPP, downsamples=(4,))
        if number != slides - 2:
            coords = grid(WIDTH // TILE, HEIGHT // TILE)
            write_slide_features(folder / "features" / f"{name}.h5", coords, label, number, (WIDTH, HEIGHT))
        if label:
            _write_annotation(folder / "annotations" / f"{name}.geojson")
    (folder / "all.csv").write_text("\n".join(rows) + "\n")
    trained = [row for row in rows if not row.startswith(f"s{slides - 2},")]
    (folder / "cohort.csv").write_text("\n".join(trained) + "\n")
    return folder / "cohort.csv"


def _write_annotation(path: Path) -> None:
    ring = [[100, 100], [500, 100], [500, 400], [100, 400], [100, 100]]
    feature = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": {"classification": {"name": "tumor"}},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))


def train_run(
    cohort: Path, out: Path, method: str = "asmil", epochs: int = 3, record: str = "all", seeds: int = 1
) -> Path:
    """A run that recorded every slide it may look at."""
    import asmil

    settings = {"training.epochs": epochs, "record.attention": record, "record.role": "both"}
    asmil.train(cohort, out, method=method, seeds=seeds, settings=settings, progress=False)
    return out


@pytest.fixture(scope="session")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cohort.csv, all.csv, and the runs `asmil` (recorded) and `abmil` (not recorded)."""
    folder = tmp_path_factory.mktemp("viewed")
    cohort = write_cohort(folder)
    train_run(cohort, folder / "asmil", "asmil", seeds=2)
    train_run(cohort, folder / "abmil", "abmil", record="none")
    return folder
