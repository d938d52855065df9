"""`asmil encode-slides`: from the features of tiles to one vector per slide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import (
    Address,
    Again,
    Cpus,
    Device,
    EngineName,
    Gpus,
    Quiet,
    SlideTimeout,
    call,
    done_line,
    out_option,
    raise_failures,
)


def encode_slides(
    features: Annotated[Path, typer.Argument(metavar="FEATURES", help="A folder of feature files, or a pack.")],
    encoder: Annotated[
        str,
        typer.Option(
            metavar="FILE.PY:CALLABLE", help="The slide encoder, or module:callable; see docs/slide_encoders.md."
        ),
    ],
    out: Annotated[Path, out_option("Folder for the vectors, one file per slide.")],
    engine: EngineName = "local",
    address: Address = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Number of processes; 0: only this one. Default: one per GPU, or one.")
    ] = None,
    cpus: Cpus = 1,
    gpus: Gpus = 0,
    device: Device = "auto",
    item_timeout: SlideTimeout = None,
    again: Again = False,
    quiet: Quiet = False,
) -> None:
    """Encode slides: one vector per slide from the features of its tiles, with your own slide encoder.

    Run the same command again to encode only what is missing. Slides that fail are listed at the end.
    The vectors are for `asmil train --method linear` and the pooling methods.

    Example: asmil encode-slides lab/features --encoder my_encoders.py:titan --out lab/vectors
    """
    given = locals()
    from asmil.api import slides

    results = call(slides.encode_slides, given)
    fresh = [done for done in results if done.width is not None]
    width = f", {fresh[0].width} wide" if fresh else ""
    typer.echo(done_line(results, len(fresh), f"encoded{width}", out))
    failures = [done.error for done in results if done.error is not None]
    raise_failures(failures, len(results), "slides were not encoded")
