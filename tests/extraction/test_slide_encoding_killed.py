"""`asmil encode-slides` as a process with two workers: a bad slide, killed in the middle, and started again."""

import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from asmil.cohort.features import FeatureSource, Provenance, read_bag, write_features
from patience import PATIENCE_S
from ray_cluster import ray_cluster

ENCODER = """
import time
from pathlib import Path

HERE = Path(__file__).parent


def build():
    return mean


def mean(features, coords, tile_px_level0, mpp):
    while not (HERE / "go").exists() and len(list((HERE / "vectors").glob("*.h5"))) > 1:
        time.sleep(0.02)
    if len(features) == 3:
        raise ValueError("three tiles are not enough")
    return features.mean(0)
"""
SLIDES = 10


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "encoder_of_a_test.py").write_text(ENCODER)
    draw = np.random.default_rng(4)
    for number in range(SLIDES):
        tiles = 3 if number == 7 else 6
        write_features(
            tmp_path / "features" / f"s{number}.h5",
            draw.normal(size=(tiles, 4)).astype(np.float32),
            np.arange(2 * tiles).reshape(-1, 2) * 16,
            Provenance(tile_px=8, tile_px_level0=16, mpp=0.5),
        )
    return tmp_path


def start(lab: Path, encoder: str, *more: str) -> subprocess.Popen[str]:
    command = ["encode-slides", "features", "--encoder", encoder, "-o", "vectors", "--device", "cpu", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "asmil", *command],
        cwd=lab,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def vectors(lab: Path) -> list[Path]:
    return sorted((lab / "vectors").glob("*.h5"))


def assert_all_but_the_bad_one(lab: Path, process: subprocess.Popen[str]) -> None:
    told, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, told + errors
    assert "s7" in errors
    assert "ValueError" in errors
    assert "Traceback" not in errors
    assert [path.stem for path in vectors(lab)] == [f"s{n}" for n in range(SLIDES) if n != 7]
    for path in vectors(lab):
        tiles = read_bag(FeatureSource(lab / "features" / path.name), path.stem).features.float()
        with h5py.File(path) as file:
            np.testing.assert_allclose(np.asarray(file["features"]).ravel(), tiles.mean(0).numpy(), atol=1e-6)


@pytest.mark.heavy
def test_a_killed_command_goes_on_and_a_bad_slide_is_listed(lab: Path) -> None:
    command = ("encoder_of_a_test.py:build", "--workers", "2")
    process = start(lab, *command)
    end = time.monotonic() + PATIENCE_S
    while len(vectors(lab)) < 2:
        assert time.monotonic() < end, "no slide was encoded in time"
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
    assert not alive, "workers outlive the command"
    before = {path: path.stat().st_mtime_ns for path in vectors(lab)}
    assert 2 <= len(before) < SLIDES - 1
    (lab / "go").touch()
    assert_all_but_the_bad_one(lab, start(lab, *command))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list((lab / "vectors").glob(".*"))


@pytest.mark.heavy
def test_the_same_on_a_ray_cluster(lab: Path) -> None:
    (lab / "go").touch()
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with ray_cluster(lab, num_cpus=2) as cluster:
        more = ("--engine", "ray", "--address", cluster.address, "--workers", "2")
        assert_all_but_the_bad_one(lab, start(lab, f"{lab / 'encoder_of_a_test.py'}:build", *more))
