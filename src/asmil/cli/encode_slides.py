"""`asmil encode-slides`: from the features of tiles to one vector per slide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli import options
from asmil.cli.options import argument, option


def encode_slides(
    features: Annotated[Path, argument("A folder of feature files, or a pack.", metavar="FEATURES")],
    encoder: Annotated[
        str, option("The slide encoder, or module:callable; see docs/slide_encoders.md.", metavar="FILE.PY:CALLABLE")
    ],
    out: Annotated[Path, options.out_option("Folder for the vectors, one file per slide.")],
    engine: options.EngineName = "local",
    address: options.Address = None,
    workers: Annotated[
        int | None, option("Number of processes; 0: only this one. Default: one per GPU, or one.", min=0)
    ] = None,
    cpus: options.Cpus = 1,
    gpus: options.Gpus = 0,
    device: options.Device = "auto",
    item_timeout: options.SlideTimeout = None,
    again: options.Again = False,
    quiet: options.Quiet = False,
) -> None:
    """Encode slides: one vector per slide from the features of its tiles, with your own slide encoder.

    Run the same command again to encode only what is missing. Slides that fail are listed at the end.
    The vectors are for `asmil train --method linear` and the pooling methods.

    Example: asmil encode-slides lab/features --encoder my_encoders.py:titan --out lab/vectors
    """
    given = locals()
    from asmil.api import slides

    results = options.call(slides.encode_slides, given)
    fresh = [done for done in results if done.width is not None]
    width = f", {fresh[0].width} wide" if fresh else ""
    typer.echo(options.done_line(results, len(fresh), f"encoded{width}", out))
    failures = [done.error for done in results if done.error is not None]
    options.raise_failures(failures, len(results), "slides were not encoded")
