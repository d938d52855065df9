"""`asmil extract` as a process: killed, robbed of its workers, without disk space, interrupted; and started again."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import psutil
import pytest

from patience import PATIENCE_S
from small_slides import write_slide, write_slides

HERE = Path(__file__).parent
SLOW = "tiny_encoder:Slow"


def start(slides: Path, out: Path, *more: str, workers: int = 2, **options: object) -> subprocess.Popen:
    """In the folder of the tests, where the encoder lies."""
    command = ["extract", slides, "--out", out, "--encoder", SLOW, "--workers", workers, *more]
    return subprocess.Popen(
        [sys.executable, "-m", "asmil", *map(str, command)],
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for(condition, seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def finished(out: Path) -> list[Path]:
    return sorted(out.glob("*.h5"))


def worker_processes(process: subprocess.Popen) -> list[psutil.Process]:
    """The spawned workers; multiprocessing's resource tracker is none."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def assert_whole(out: Path, count: int) -> None:
    assert len(finished(out)) == count
    for path in finished(out):
        with h5py.File(path) as file:
            assert len(file["features"]) == len(file["coords"]) > 0


@pytest.mark.heavy
@pytest.mark.parametrize(("more", "finest"), [((), ""), (("--magnification", "2.5,10"), "10x")])
def test_a_killed_command_goes_on_where_it_stopped(tmp_path, more, finest):
    write_slides(tmp_path / "slides", 6, side_px=640)
    folder = tmp_path / "features"
    out = folder / finest
    process = start(tmp_path / "slides", folder, *more)
    wait_for(lambda: len(finished(out)) >= 2)
    workers = worker_processes(process)
    process.kill()
    process.wait(PATIENCE_S)
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
    assert not alive, "workers outlive the command"
    assert not list(out.glob(".*.partial"))
    before = {path: path.stat().st_mtime_ns for path in finished(out)}
    assert 2 <= len(before) < 6
    again = start(tmp_path / "slides", folder, *more)
    told, errors = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, errors
    assert f"{6 - len(before)} slide" in told
    assert f"({len(before)} " in told
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for of_magnification in {path.parent for path in folder.rglob("*.h5")}:
        assert_whole(of_magnification, 6)


@pytest.mark.heavy
def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path):
    write_slides(tmp_path / "slides", 5, side_px=640)
    out = tmp_path / "features"
    process = start(tmp_path / "slides", out)
    wait_for(lambda: len(finished(out)) >= 1)
    worker_processes(process)[0].kill()
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert_whole(out, 5)


@pytest.mark.heavy
def test_an_interrupted_command_ends_at_once_and_keeps_what_is_done(tmp_path):
    write_slides(tmp_path / "slides", 6, side_px=640)
    out = tmp_path / "features"
    process = start(tmp_path / "slides", out)
    wait_for(lambda: len(finished(out)) >= 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "same command" in errors
    assert "Traceback" not in errors
    assert_whole(out, len(finished(out)))
    assert not list(out.glob(".*.partial"))


def limit_files() -> None:
    """No file beyond 12 kB: the features of the larger slide do not fit, which is told as for a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="limits on file sizes are set as on Linux")
def test_a_full_disk_is_told_for_the_slide_and_the_others_are_done(tmp_path):
    write_slide(tmp_path / "slides" / "small.tif", side_px=400)
    write_slide(tmp_path / "slides" / "large.tif", side_px=1800)
    out = tmp_path / "features"
    process = start(tmp_path / "slides", out, "--no-qc", "--set", "dtype=float32", workers=0, preexec_fn=limit_files)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "large" in errors
    assert "disk is full" in errors
    assert [path.stem for path in finished(out)] == ["small"]
    assert os.listdir(out).count("large.h5") == 0
