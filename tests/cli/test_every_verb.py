"""Every verb of the command: its help, its example and its output, in narrow and wide windows and in any encoding.

Verbs are found in the command itself, so that a new one is tested from its first day.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import subprocess
import sys

import pytest
import typer.main

from asmil.cli.main import VERBS, app
from patience import PATIENCE_S

COMMAND = typer.main.get_command(app)
NAMES = sorted(COMMAND.commands)
WIDTHS = (80, 200)


def help_of(name: str, option: str, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    from typer.testing import CliRunner

    monkeypatch.setenv("COLUMNS", str(width))
    done = CliRunner().invoke(app, [*([name] if name else []), option], prog_name="asmil")
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_fits_the_window_and_cuts_nothing(name, width, monkeypatch):
    shown = help_of(name, "-h", width, monkeypatch)
    if width == WIDTHS[0]:
        assert shown == help_of(name, "--help", width, monkeypatch)
    assert max(map(len, shown.splitlines())) <= width
    command = COMMAND if not name else COMMAND.commands[name]
    for parameter in command.params:
        assert parameter.help, f"{name}: {parameter.name} has no help"
        assert all(option in shown for option in parameter.opts if option.startswith("--"))


@pytest.mark.parametrize("name", NAMES)
def test_flags_show_no_type(name, monkeypatch):
    shown = help_of(name, "-h", 100, monkeypatch).replace("--help          -h      <bool>", "")
    flags = [parameter for parameter in COMMAND.commands[name].params if getattr(parameter, "is_flag", False)]
    for flag in flags:
        (line,) = [line for line in shown.splitlines() if line.strip("│ ").startswith(flag.opts[-1] + " ")][:1] or [""]
        assert "bool" not in line


def example_of(name: str) -> str:
    """The command that the help of a verb shows."""
    paragraphs = (inspect.getdoc(inspect.unwrap(COMMAND.commands[name].callback)) or "").split("\n\n")
    (example,) = [text.removeprefix("Example: ") for text in paragraphs if text.startswith("Example: ")]
    return " ".join(example.split())


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_verb_can_be_typed(name):
    example = example_of(name)
    assert f"asmil {name}" in example
    words = shlex.split(example, comments=True)[1:]
    if words and words[0] == name:
        context = COMMAND.commands[name].make_context(name, words[1:])
        assert not context.args


@pytest.mark.parametrize("name", NAMES)
def test_out_can_be_written_short(name):
    for parameter in COMMAND.commands[name].params:
        if "--out" in parameter.opts:
            assert "-o" in parameter.opts


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_is_one_line_and_exit_code_2(name, asmil_here):
    done = asmil_here(name, "--no-such-option")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--no-such-option" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert f"asmil {name} -h" in done.stderr


def test_the_list_of_verbs_begins_with_where_to_start(monkeypatch):
    shown = help_of("", "-h", 80, monkeypatch)
    assert shown.index("Start here") < min(shown.index(group) for group in VERBS if group != "Start here")
    assert {verb.replace("_", "-") for verbs in VERBS.values() for verb in verbs} == set(NAMES)


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "asmil", *map(str, words)]
    environment = {"OMP_NUM_THREADS": "1", **environment}
    clean = {
        key: value for key, value in os.environ.items() if key not in ("COLUMNS", "PYTHONUTF8", "PYTHONIOENCODING")
    }
    return subprocess.run(command, env={**clean, **environment}, capture_output=True, timeout=PATIENCE_S, check=False)


@pytest.fixture(scope="module")
def finished_run(small_cohort, tmp_path_factory):
    """A run whose training, report and table were printed in ASCII, with a folder name that ASCII lacks."""
    out = tmp_path_factory.mktemp("runs") / "läuft ± ünïcode"
    words = ("train", small_cohort, "-m", "abmil", "-o", out, "--set", "training.epochs=2")
    done = run(*words, PYTHONIOENCODING="ascii", COLUMNS="60")
    assert done.returncode == 0, done.stderr.decode()
    done.stdout.decode("ascii")
    done.stderr.decode("ascii")
    return out


@pytest.mark.heavy
@pytest.mark.parametrize(("encoding", "width"), [("ascii", 60), ("cp1252", 80), ("latin-1", 200)])
def test_results_are_printed_in_any_encoding_and_width(finished_run, encoding, width, monkeypatch, undrawn_figures):
    """In this process: the output is a pipe with another encoding."""
    import io

    from asmil.cli.main import main

    monkeypatch.setenv("COLUMNS", str(width))
    shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", shown)
    json_words = ["evaluate", finished_run, "--resamples", 20, "--json"]
    for words in (json_words, json_words[:-1], ["stability", finished_run], ["methods"], ["encoders"], ["doctor"]):
        monkeypatch.setattr(sys, "argv", ["asmil", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        if words is json_words:
            printed = json.loads(shown.buffer.getvalue().decode(encoding))
            assert finished_run.name in printed["name"]
    assert "ABMIL" in shown.buffer.getvalue().decode(encoding).upper()


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"NO_COLOR": "1"}, {"PYTHONIOENCODING": "latin-1"}])
def test_a_pipe_gets_no_control_codes(environment):
    done = run("train", "-h", **environment)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr


def test_a_reader_that_has_seen_enough_is_no_error():
    """As in `asmil methods | head -1`."""
    command = [sys.executable, "-m", "asmil", "methods"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 141


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell, asmil_here):
    done = asmil_here("completion", shell)
    assert done.returncode == 0
    assert "_ASMIL_COMPLETE" in done.stdout


def test_completion_completes_verbs():
    done = run(_ASMIL_COMPLETE="complete_bash", COMP_WORDS="asmil tr", COMP_CWORD="1")
    assert done.stdout.decode().split() == ["train", "transplants"]
