"""The command `asmil`: one file a verb, and one place where a user's mistake becomes one sentence."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from asmil.cli import (
    affine,
    check,
    classic,
    compare,
    doctor,
    encoders,
    evaluate,
    export,
    extract,
    localize,
    methods,
    pack,
    predict,
    stability,
    synthetic,
    synthetic_slides,
    tissue,
    train,
)
from asmil.errors import AsmilError, printable
from asmil.files import is_disk_full
from asmil.version import __version__

app = typer.Typer(
    name="asmil",
    help="Slide-level learning on whole-slide images with attention that can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for verb in (
    synthetic.synthetic,
    synthetic_slides.synthetic_slides,
    tissue.tissue,
    extract.extract,
    pack.pack,
    check.check,
    train.train,
    evaluate.evaluate,
    compare.compare,
    localize.localize,
    stability.stability,
    predict.predict,
    export.export,
    affine.affine,
    classic.classic,
    methods.methods,
    encoders.encoders,
    doctor.doctor,
):
    app.command()(verb)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"asmil {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def main() -> NoReturn:
    """Run the command; mistakes are told in one sentence and end with a code other than zero."""
    try:
        app()
    except AsmilError as error:
        _fail(str(error), 1)
    except OSError as error:
        if is_disk_full(error):
            _fail(f"{error.filename or 'the disk'}: no space is left; free some and give the same command again", 1)
        if error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror or error}; check the path and its permissions", 1)
    except KeyboardInterrupt:
        _fail("interrupted; give the same command again to go on", 130)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    typer.echo(printable(message), err=True)
    sys.exit(code)
