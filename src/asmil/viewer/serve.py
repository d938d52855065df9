"""Run the viewer: bind an address, open the browser, serve until Ctrl-C."""

from __future__ import annotations

import errno
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from asmil.errors import AsmilError
from asmil.reporting.formats import format_count
from asmil.viewer.collection import Places, collect

PORT = 8750
PORTS_TRIED = 50


def view(
    sources: Sequence[Path],
    places: Places,
    host: str = "127.0.0.1",
    port: int = PORT,
    browser: bool = True,
    device: str = "auto",
    say: Callable[[str], None] = print,
) -> None:
    """Serve the page until it is interrupted.

    say: receives the address and notes, line by line
    """
    try:
        import uvicorn

        from asmil.viewer.access import OneTimeLinks, is_loopback
        from asmil.viewer.app import build_app, require_page
    except ImportError as error:
        raise AsmilError(
            f"the viewer needs {error.name}, which is not installed; install it with: pip install 'asmil[viewer]'"
        ) from None
    require_page()
    collection = collect(sources, places)
    listening, actual = bind(host, port)
    base = f"http://{f'[{host}]' if ':' in host else host}:{actual}/"
    if port and actual != port:
        say(f"port {port} is taken, using {actual}")
    for note in collection.notes:
        say(f"note: {note}")
    links = None
    if not is_loopback(host):
        links = OneTimeLinks(lambda token: say(f"for another browser: {base}?token={token}"))
    address = base if links is None else f"{base}?token={links.token}"
    counts = (format_count(len(collection.slides), "slide"), format_count(len(collection.runs), "run"))
    say(f"{', '.join(counts)}: {address}")
    say("press Ctrl-C to stop")
    app = build_app(collection, host, links, device)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, lifespan="on")
    server = uvicorn.Server(config)
    if browser and links is None:
        threading.Thread(target=_open_browser, args=(address, server), daemon=True).start()
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()


def bind(host: str, port: int) -> tuple[socket.socket, int]:
    """A listening socket on the port, or on the next one that is free, and its port."""
    try:
        family, kind, protocol, _, _ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise AsmilError(f"--host {host}: no such address ({error}); give an address of this machine") from None
    last = min(port + PORTS_TRIED, 65536) if port else 1
    for candidate in range(port, last):
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if isinstance(error, PermissionError) or error.errno == errno.EADDRNOTAVAIL:
                raise AsmilError(
                    f"{host}:{candidate}: {error.strerror}; give another --port, or --host of this machine"
                ) from None
            continue
        return listening, int(listening.getsockname()[1])
    raise AsmilError(f"the ports {port} to {last - 1} are all taken; give another --port")


def _open_browser(address: str, server: object) -> None:
    for _ in range(100):
        if getattr(server, "started", False):
            webbrowser.open(address)
            return
        time.sleep(0.1)
