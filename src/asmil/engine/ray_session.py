"""The connection to a Ray cluster, or a Ray of this machine for as long as it is needed."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asmil.errors import AsmilError

_OBJECT_STORE_BYTES = 200_000_000
_ANSWERS_WITHIN_S = 10.0
_WHAT_TO_DO = 'start one with `ray start --head`, give "auto" or its host:port, or nothing for a Ray of this machine'


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module `ray`, connected; a session that is opened here ends here.

    address: "auto", "host:port" or "ray://host:port"; None: start a Ray on this machine
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise AsmilError("Ray is not installed; install it with `pip install 'asmil[ray]'`") from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # Jobs and results are small: the usual object store of a third of the memory would be wasted.
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    elif address != "auto":
        require_answer(address)
    try:
        ray.init(**options)
    except (ImportError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        where = f"connect to the Ray cluster at {address}" if address else "start on this machine"
        raise AsmilError(f"Ray cannot {where} ({_first_line(error)}); {_WHAT_TO_DO}") from error
    with _no_echo():
        try:
            yield ray
        finally:
            ray.shutdown()


def require_answer(address: str) -> None:
    """Refuse an address that does not answer; Ray itself would try it for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise AsmilError(f"{address!r} is not the address of a Ray cluster; {_WHAT_TO_DO}")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise AsmilError(f"no Ray cluster answers at {address} ({_first_line(error)}); {_WHAT_TO_DO}") from error


@contextmanager
def _no_echo() -> Iterator[None]:
    """Keep Ray from writing about lost workers to the standard output, where results belong; notes report them."""
    try:
        from ray._private import worker

        before = worker._worker_logs_enabled
    except (ImportError, AttributeError):  # it is Ray's own business, and may be gone in another version
        yield
        return
    worker._worker_logs_enabled = False
    try:
        yield
    finally:
        worker._worker_logs_enabled = before


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
