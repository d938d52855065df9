"""A cohort and its runs, and a client that asks the viewer as a browser would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from viewed_cohort import train_run, write_cohort


@pytest.fixture(scope="session")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cohort.csv, all.csv, and the runs `asmil` (recorded) and `abmil` (not recorded)."""
    folder = tmp_path_factory.mktemp("viewed")
    cohort = write_cohort(folder)
    train_run(cohort, folder / "asmil", "asmil", seeds=2)
    train_run(cohort, folder / "abmil", "abmil", record="none")
    return folder


@pytest.fixture
def client() -> Iterator[Callable[..., object]]:
    """Open a client on sources: `client(paths, places)`."""
    from starlette.testclient import TestClient

    from asmil.viewer.app import build_app
    from asmil.viewer.collection import Places, collect

    opened = []

    def make(*sources: Path, places: Places | None = None, **options: object) -> TestClient:
        app = build_app(collect(list(sources), places or Places()), **options)
        test_client = TestClient(app, base_url="http://127.0.0.1:8750", raise_server_exceptions=True)
        test_client.__enter__()
        opened.append(test_client)
        return test_client

    yield make
    for one in opened:
        one.__exit__(None, None, None)
