"""How fast the viewer is: tiles of the server, and frames of the page while the epoch slider plays.

    python benchmarks/viewer_speed.py [SLIDE...] [--tiles 100000] [--epochs 50] [--requests 600] [--no-page]

Tiles: `asmil view` runs as a process, and this script asks it for tiles of the finest level, each tile once, as a
browser does: over one connection, then over six at once. Besides the slides that are given, it makes a tiled TIFF with
JPEG tiles (passed on as they are stored) and one with deflated tiles (decoded and encoded). Client and server share
the machine.

Page: a slide with many tiles and recorded epochs is opened in chromium without a screen, and the slider moves on with
every frame. The time between frames is measured in the page; 16.7 ms is the rate of the screen. It needs the built page
(`make viewer`), playwright and chromium.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import yaml

from asmil.cohort.features import Provenance, write_features
from asmil.runs.attention_file import AttentionWriter, RecordedSlides, Recording
from asmil.slides.opening import open_slide
from markdown_table import markdown_table

TILE_PX = 256
CONNECTIONS = 6
FRAMES = """async ([frames, moves]) => {
  const slider = document.querySelector('.timeline input');
  const most = Number(slider.max);
  const times = [], scripts = [];
  let before = performance.now();
  for (let frame = 0; frame < frames; frame += 1) {
    const start = performance.now();
    if (moves) {
      slider.value = String(frame % (most + 1));
      slider.dispatchEvent(new Event('input'));
    }
    scripts.push(performance.now() - start);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - before);
    before = now;
  }
  return [times.slice(5), scripts.slice(5)];
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("slides", nargs="*", type=Path)
    parser.add_argument("--tiles", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--no-page", action="store_true")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        print(
            markdown_table(
                ["slide", "tiles", "ms, median", "ms, 95 %", "tiles/s, 6 at once"], list(_tile_rows(folder, options))
            )
        )
        if not options.no_page:
            times, scripts, idle = frame_times(large_recorded_run(folder / "large", options.tiles, options.epochs))
            shown = [
                f"{np.median(times):.1f}",
                f"{np.percentile(times, 95):.1f}",
                f"{np.median(scripts):.1f}",
                f"{np.median(idle):.1f}",
            ]
            headers = ["page", "ms per frame, median", "ms, 95 %", "of these script", "frames of the idle page"]
            size = f"{options.tiles} tiles x {options.epochs} epochs"
            print("\n" + markdown_table(headers, [[size, *shown]]))


def _tile_rows(folder: Path, options: argparse.Namespace) -> Iterator[list[str]]:
    slides = folder / "slides"
    slides.mkdir()
    pixels = _stained(8192)
    tifffile.imwrite(slides / "jpeg.tif", pixels, tile=(TILE_PX, TILE_PX), compression="jpeg", photometric="ycbcr")
    tifffile.imwrite(slides / "deflate.tif", pixels, tile=(TILE_PX, TILE_PX), compression="zlib")
    for slide in options.slides:
        (slides / slide.name).symlink_to(slide.resolve())
    with server(slides, "--mpp", "0.5") as port:
        listed = _ask(http.client.HTTPConnection("127.0.0.1", port), "/api/about")
        for row in json.loads(listed)["slides"]:
            yield _measure(port, row["id"], row["name"], slides, options.requests)


def _measure(port: int, slide: int, name: str, folder: Path, most: int) -> list[str]:
    about = json.loads(_ask(http.client.HTTPConnection("127.0.0.1", port), f"/api/slides/{slide}"))
    level = about["image"]["levels"][0]
    paths = [
        f"/api/slides/{slide}/tiles/0/{column}_{row}.jpg"
        for column in range(level["across"])
        for row in range(level["down"])
    ]
    random.Random(0).shuffle(paths)
    one_by_one, at_once = paths[: min(most, len(paths)) // 2], paths[len(paths) // 2 :][:most]
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    for path in one_by_one:
        start = time.perf_counter()
        _ask(connection, path)
        times.append(1000 * (time.perf_counter() - start))
    start = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(lambda part: _ask_all(port, part), [at_once[n::CONNECTIONS] for n in range(CONNECTIONS)]))
    rate = len(at_once) / (time.perf_counter() - start)
    file = next(path for path in folder.iterdir() if path.name.startswith(name))
    with open_slide(file, 0.5) as image:
        kind = "stored JPEG" if image.stored_jpeg(0, 0, 0) else "encoded"
    return [
        f"{file.name}, {level['tile_width']} px, {kind}",
        str(len(one_by_one)),
        f"{statistics.median(times):.1f}",
        f"{np.percentile(times, 95):.1f}",
        f"{rate:.0f}",
    ]


def _ask(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {content[:200]!r}")
    return content


def _ask_all(port: int, paths: Sequence[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for path in paths:
        _ask(connection, path)


@contextmanager
def server(*arguments: object) -> Iterator[int]:
    """`asmil view` as a process; its port."""
    command = [sys.executable, "-m", "asmil", "view", *map(str, arguments), "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "http://" in line:
                yield int(line.strip().rstrip("/").rpartition(":")[2])
                return
        raise SystemExit("asmil view did not start")
    finally:
        process.terminate()
        process.wait()


def large_recorded_run(folder: Path, tiles: int, epochs: int) -> Path:
    """A run folder that recorded the attention of one slide with many tiles, `large`; there is no image of it."""
    random_numbers = np.random.default_rng(0)
    side = int(np.ceil(np.sqrt(tiles)))
    places = np.arange(tiles)
    coords = TILE_PX * np.stack([places % side, places // side], axis=1)
    size = side * TILE_PX
    provenance = Provenance(
        tile_px=TILE_PX,
        tile_px_level0=TILE_PX,
        tile_um=128.0,
        mpp=0.5,
        slide_width_px=size,
        slide_height_px=size,
    )
    write_features(folder / "features" / "large.h5", np.zeros((tiles, 4)), coords, provenance)
    (folder / "cohort.csv").write_text("slide,label\nlarge,tumor\n")
    run = folder / "run"
    recorded = RecordedSlides(
        every="epoch",
        classes=("normal", "tumor"),
        slides=("large",),
        targets=np.array([1]),
        roles=("train",),
        n_tiles=np.array([tiles]),
    )
    writer = AttentionWriter(run / "fold-0" / "seed-0", recorded, {0: coords})
    middle = coords.mean(axis=0)
    distance = np.linalg.norm(coords - middle, axis=1) / size
    for epoch in range(epochs):
        scores = random_numbers.normal(size=tiles) * 0.3 - distance * epoch / 5
        attention = np.exp(scores - scores.max())
        row = (attention / attention.sum()).astype(np.float32)
        writer.add(Recording(float(epoch), epoch, [row], np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)))
    writer.finish({})
    config = {
        "method": "abmil",
        "record": {"attention": "all", "every": "epoch", "role": "both"},
        "task": {"kind": "classification", "classes": ["normal", "tumor"]},
        "cohort": {"manifest": str(folder / "cohort.csv")},
    }
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def frame_times(run: Path, frames: int = 200) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds between frames while the slider moves with each of them, of its script, and of the idle page."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with server(run) as port, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"http://127.0.0.1:{port}/#slide=large&source=recorded")
        page.wait_for_selector(".timeline:not([hidden]) .chart canvas", timeout=120_000)
        page.wait_for_timeout(1000)
        idle, _ = page.evaluate(FRAMES, [frames // 2, False])
        times, scripts = page.evaluate(FRAMES, [frames, True])
        browser.close()
    return times, scripts, idle


def _stained(side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Colors like H&E with the detail of cells."""
    generator = np.random.default_rng(0)
    coarse = generator.random((side // 64, side // 64)).repeat(64, axis=0).repeat(64, axis=1)
    fine = generator.random((side // 4, side // 4)).repeat(4, axis=0).repeat(4, axis=1)
    amount = (0.6 * coarse + 0.4 * fine)[..., None]
    return (np.array([235, 200, 225]) * (1 - amount) + np.array([120, 60, 130]) * amount).astype(np.uint8)


if __name__ == "__main__":
    main()
