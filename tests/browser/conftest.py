"""The viewer as a process, and a real browser that looks at it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asmil.viewer.app import STATIC
from viewed_cohort import viewed as viewed

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Server:
    """`asmil view` as its own process, which can be killed and started again on the same port."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = [str(argument) for argument in arguments]
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        command = [sys.executable, "-m", "asmil", "view", *self.arguments, "--no-browser", "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "http://" in line:
                self.port = int(line.strip().rstrip("/").rpartition(":")[2])
                break
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(f"{self.address}api/alive", timeout=5).read()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start servers that end with the test."""
    if not (STATIC / "index.html").is_file():
        pytest.skip("the page is not built; run `make viewer`")
    started: list[Server] = []

    def make(*arguments: object) -> Server:
        started.append(Server(*arguments))
        return started[-1]

    yield make
    for one in started:
        one.kill()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's chromium, driven by playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: run `make test-browser`")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("needs chromium: run `make test-browser` as root, or install it")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; anything that it reports as an error fails the test, unless `allow_errors`."""
    contexts, problems = [], []

    def make(address: str, width: int = 1280, height: int = 800, allow_errors: bool = False, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        if not allow_errors:
            page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: problems.append(str(error)))
            outside = [f"http://127.0.0.1:{address.split(':')[2].partition('/')[0]}/", "blob:", "data:"]
            page.on(
                "request",
                lambda request: (
                    None if request.url.startswith(tuple(outside)) else problems.append(f"asked outside: {request.url}")
                ),
            )
        page.goto(address)
        page.wait_for_selector(".pane")
        return page

    yield make
    for context in contexts:
        context.close()
    assert problems == []
