"""`asmil completion`: the verbs and options that a shell fills in."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from asmil.cli.options import argument

COMPLETION_VARIABLE = "_ASMIL_COMPLETE"
"""Set by the printed scripts when a shell asks for completions."""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], argument("bash, zsh or fish.")],
) -> None:
    """Print a script that lets your shell complete verbs and options when you press Tab.

    Load it in the start-up file of the shell: `eval "$(asmil completion bash)"` in ~/.bashrc, `eval "$(asmil completion
    zsh)"` at the end of ~/.zshrc, or `asmil completion fish | source` in ~/.config/fish/config.fish.

    Example: eval "$(asmil completion bash)"
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name="asmil", complete_var=COMPLETION_VARIABLE, shell=shell))
