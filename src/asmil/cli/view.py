"""`asmil view`: slides, maps and recorded attention in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import Device, Features, MaskValue, Mpp, argument, option


def view(
    sources: Annotated[
        list[Path], argument("Run folders, manifests, or folders of slides or features.", metavar="RUN|COHORT...")
    ],
    slides: Annotated[Path | None, option("Folder of slide images; default: `slides` beside the manifest.")] = None,
    features: Features = None,
    annotations: Annotated[
        Path | None, option("Folder of annotations; default: `annotations` beside the features.")
    ] = None,
    mask_value: MaskValue = None,
    cohort: Annotated[Path | None, option("Manifest; default: the one a run was trained on.")] = None,
    mpp: Mpp = None,
    host: Annotated[
        str, option("Address to listen on; on a network, the page opens only with the printed link.")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port, or the next free one; 0: any.", min=0, max=65535)] = 8750,
    browser: Annotated[bool, option("Open the page in a browser.", "--browser/--no-browser")] = True,
    device: Device = "auto",
) -> None:
    """Look at slides in a browser: deep zoom, maps, how attention changed in training, two runs side by side.

    The server runs on this machine and answers only to it, unless --host says otherwise.

    Example: asmil view runs/asmil runs/abmil
    """
    from asmil.viewer.collection import Places
    from asmil.viewer.serve import view as serve

    places = Places(cohort, slides, features, annotations, mpp, mask_value)
    serve(sources, places, host, port, browser, device, say=_say)


def _say(line: str) -> None:
    import sys

    from asmil.errors import printable

    typer.echo(printable(line))
    sys.stdout.flush()  # a program that started the command waits for the address
