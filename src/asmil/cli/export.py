"""`asmil export`: a trained run for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from asmil.cli.options import OwnMethod, RunFolder, call, option, out_option


def export(
    run: RunFolder,
    out: Annotated[Path, out_option("The folder (bundle) or file (onnx, torch) to write.")],
    format: Annotated[
        Literal["bundle", "onnx", "torch"],
        option("bundle: a folder for `asmil predict`; onnx and torch: one file for other programs."),
    ] = "bundle",
    method: OwnMethod = None,
) -> None:
    """Export a trained run: its models, settings and a model card, without any data about slides or patients.

    A bundle is used like a run: `asmil predict BUNDLE slides/`. ONNX and torch.export files take the features of one
    slide, any number of tiles, and are compared with the run before the command ends.

    Example: asmil export runs/asmil --out asmil-tumor
    """
    given = locals()
    from asmil.api import results
    from asmil.evaluation.run_alarms import alarm_findings

    typer.echo(f"{format} of {run}: {call(results.export_run, given)}")
    for alarm in alarm_findings([run]):
        typer.echo(f"alarm: {alarm}", err=True)
