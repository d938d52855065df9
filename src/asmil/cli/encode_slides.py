"""`asmil encode-slides`: from the features of tiles to one vector per slide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asmil.cli.options import Again, SlideTimeout, print_notes


def encode_slides(
    features: Annotated[Path, typer.Argument(metavar="FEATURES", help="A folder of feature files, or a pack.")],
    encoder: Annotated[
        str,
        typer.Option(
            metavar="FILE.PY:CALLABLE", help="The slide encoder, or module:callable; see docs/slide_encoders.md."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the vectors, one file per slide.")],
    engine: Annotated[str, typer.Option(metavar="ENGINE", help="local (processes on this machine) or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; auto finds one.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Number of processes; 0: only this one. Default: one per GPU, or one.")
    ] = None,
    cpus: Annotated[float, typer.Option(min=0, help="For Ray: cores per worker.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="For Ray: GPUs per worker.")] = 0,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    item_timeout: SlideTimeout = None,
    again: Again = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Encode slides: one vector per slide from the features of its tiles, with your own slide encoder.

    Run the same command again to encode only what is missing. Slides that fail are listed at the end.
    The vectors are for `asmil train --method linear` and the pooling methods.

    Example: asmil encode-slides lab/features --encoder my_encoders.py:titan --out lab/vectors
    """
    import torch
    from rich.progress import Progress

    from asmil.cohort.locate import find_features
    from asmil.console import messages
    from asmil.errors import AsmilError
    from asmil.extraction.machine import ExtractionMachine
    from asmil.extraction.slide_encoding import Encoded
    from asmil.extraction.slide_encoding import encode_slides as encode
    from asmil.settings.made_from import DoneBefore

    slides = find_features(features)
    if not slides:
        raise AsmilError(f"{features}: there is no feature file in this folder; extract features first")
    if workers is None and (device == "cpu" or not torch.cuda.is_available()):
        workers = 1
    runner, _ = ExtractionMachine(engine, address, workers, device, cpus, gpus, item_timeout).prepare(len(slides))
    results: list[Encoded] = []
    kept = DoneBefore(again)
    with Progress(console=messages(quiet), transient=True) as progress:
        task = progress.add_task("encoding", total=len(slides))
        for done in encode(slides, out, encoder, runner, kept):
            results.append(done)
            progress.advance(task)
    print_notes(kept)
    fresh = [done for done in results if done.width is not None]
    before = sum(done.before for done in results)
    width = f", {fresh[0].width} wide" if fresh else ""
    summary = f"{len(fresh)} slide{'s' * (len(fresh) != 1)} encoded{width}: {out}"
    typer.echo(summary + (f" ({before} were already done)" if before else ""))
    failed = [done.error for done in results if done.error is not None]
    if failed:
        listed = "\n".join(f"  - {error}" for error in failed)
        raise AsmilError(f"{len(failed)} of {len(slides)} slides were not encoded:\n{listed}")
