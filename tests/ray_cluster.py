"""A Ray cluster on this machine, for the tests; nothing of Ray need have run here before."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LONGEST_FOLDER = 40
"""Characters. Ray puts sockets below the folder, and the system allows a socket's path about a hundred."""


@contextmanager
def ray_cluster(python_path: Path, **head: Any) -> Iterator[Any]:
    """A cluster with one node, whose workers import from `python_path`; this process may connect to it.

    Ray keeps its files in one folder and the address of the newest cluster in another, which it does not create:
    `RAY_TMPDIR` decides both, the argument `temp_dir` only the first.
    """
    import ray
    from ray.cluster_utils import Cluster

    own = tempfile.gettempdir()
    with (
        pytest.MonkeyPatch.context() as environment,
        tempfile.TemporaryDirectory(
            prefix="ray", dir=own if len(own) <= LONGEST_FOLDER else "/tmp", ignore_cleanup_errors=True
        ) as folder,
    ):
        environment.setenv("RAY_TMPDIR", folder)
        environment.setenv("PYTHONPATH", str(python_path))
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("RAY_AUTH_MODE", "disabled")
        cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **head})
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
