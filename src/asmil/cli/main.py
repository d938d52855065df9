"""The command `asmil`: one file per verb, and one function that reports a user's mistake in one sentence."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from asmil.console import make_streams_safe, messages, say
from asmil.errors import GPU_FULL, AsmilError, AsmilWarning, is_gpu_full, printable
from asmil.files import is_disk_full
from asmil.machine.process import own_process
from asmil.version import __version__

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The error of typer for whatever a command line gets wrong."""
COMPLETION_VARIABLE = "_ASMIL_COMPLETE"
"""Set by the scripts of `asmil completion` when a shell asks for completions."""
PIPE_CLOSED = 141
"""The exit code of programs whose reader has closed the pipe, as shells report it."""

app = typer.Typer(
    name="asmil",
    help=(
        "Slide-level learning on whole-slide images, with honest metrics and checks of what attention shows.\n\n"
        "`asmil VERB -h` explains a verb, with an example. No slides at hand? `asmil synthetic-slides lab` makes some. "
        "All verbs and settings: docs/verbs.md and docs/settings.md."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS = {
    "Start here": ("doctor", "init", "check", "plan", "auto", "train", "evaluate", "predict", "validate"),
    "From slides to features": ("tissue", "extract", "encode_slides", "pack", "encoders"),
    "From other tools": ("import_manifest",),
    "Results in depth": ("index", "view", "heatmap", "faithfulness", "compare", "localize", "stability", "affine"),
    "Use elsewhere": ("manuscript", "export", "checklist"),
    "Methods and benchmarks": ("methods", "classic", "sweep", "paper", "claims"),
    "Data to try it on": ("datasets", "synthetic", "transplants", "synthetic_slides"),
    "Your shell": ("completion",),
}
"""All verbs, in the groups and the order in which the help lists them; each is the function of its module's name."""


class Verb(TyperCommand):
    """A verb of the command."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # the help shows no type

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; Ctrl-C reaches `main` in every version of typer, some of which would end without a message."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort(*error.args) from None


for group, verbs in VERBS.items():
    for verb in verbs:
        app.command(cls=Verb, rich_help_panel=group)(getattr(import_module(f"asmil.cli.{verb}"), verb))


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
    """Run the command; a mistake is reported in one sentence and ends with an exit code other than zero."""
    own_process()
    make_streams_safe()
    if COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", AsmilWarning)
            warnings.showwarning = _show_warning
            code = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        # what is left in the buffer must not fail when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = PIPE_CLOSED
    sys.exit(code)


def _run() -> int:
    """The exit code of the command."""
    try:
        return int(app(prog_name="asmil", standalone_mode=False) or 0)
    except AsmilError as error:
        return _failed(str(error), 1)
    except UsageError as error:
        return _misused(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        if is_disk_full(error):
            return _failed(
                f"{error.filename or 'the disk'}: no space left; free some and run the same command again", 1
            )
        if error.filename is None:
            raise
        return _failed(f"{error.filename}: {error.strerror or error}; check the path and its permissions", 1)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _failed(str(error) or "interrupted; run the same command again to resume", 130)
    except RuntimeError as error:
        if is_gpu_full(error):
            return _failed(GPU_FULL, 1)
        raise


def _misused(error: Any) -> int:
    """Explain an unknown verb or option, or a missing argument."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message(), err=True)
    else:
        path = context.command_path if context else "asmil"
        _failed(f"{error.format_message().rstrip('.')}; `{path} -h` explains what to give", 2)
    return int(error.exit_code)


def _failed(message: str, code: int) -> int:
    console = messages()
    say(console, f"error: {printable(message)}", style="red" if console.is_terminal else "")
    return code


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a warning of asmil as one line, and others as Python does."""
    del file, line
    if issubclass(category, AsmilWarning):
        say(messages(), printable(f"warning: {message}"), style="yellow")
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))
