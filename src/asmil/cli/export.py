"""`asmil export`: a trained run for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run folder of `asmil train`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder (bundle) or file (onnx, torch) to write.")],
    format: Annotated[
        Literal["bundle", "onnx", "torch"],
        typer.Option(help="bundle: a folder for `asmil predict`; onnx and torch: one file for other programs."),
    ] = "bundle",
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", metavar="NAME", help="Confirm the run's method if it is your own code."),
    ] = None,
) -> None:
    """Export a trained run: its models, settings and a model card, without any data about slides or patients.

    A bundle is used like a run: `asmil predict BUNDLE slides/`. ONNX and torch.export files take the features of one
    slide, any number of tiles, and are compared with the run before the command ends.

    Example: asmil export runs/asmil --out asmil-tumor
    """
    from asmil.evaluation.run_alarms import alarm_findings
    from asmil.export.bundle import write_bundle
    from asmil.export.graph import export_onnx, export_torch

    writers = {"bundle": write_bundle, "onnx": export_onnx, "torch": export_torch}
    written = writers[format](run, out, method)
    typer.echo(f"{format} of {run}: {written}")
    for alarm in alarm_findings([run]):
        typer.echo(f"alarm: {alarm}", err=True)
