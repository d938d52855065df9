"""A cohort and its runs, and a client that asks the viewer as a browser would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from viewed_cohort import viewed as viewed


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
