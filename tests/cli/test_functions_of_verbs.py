"""Everything the commands do is a function: each verb has one in `asmil`, with the same words."""

from __future__ import annotations

import inspect

import pytest
import typer.main

import asmil
from asmil.cli.main import app
from asmil.cli.train import SHORTHANDS
from asmil.explain.settings import HeatmapSettings
from asmil.runs.config import RunConfig
from asmil.synthetic.bags import SyntheticConfig
from asmil.synthetic.slides import SyntheticSlidesConfig
from asmil.synthetic.transplants import TransplantConfig

VERBS = typer.main.get_command(app).commands
NO_FUNCTION = {
    "view": "serves pages until it is stopped",
    "doctor": "prints what this machine can do",
    "completion": "prints a script for the shell",
}
NAMED_OTHERWISE = {
    "classic": "classic_benchmark",
    "datasets": "make_dataset",
    "export": "export_run",
    "paper": "paper_table",
    "synthetic": "synthetic_cohort",
}
"""Verbs whose name is that of a package: `asmil.export` is one."""
CONSOLE_ONLY = {"as_json", "quiet", "help"}
"""What is printed; functions return it, and have `progress`."""
OTHER_WORDS = {
    "check": {"every"},  # how many problems are printed
    "train": {"dry_run", "profile", "methods", "names", *SHORTHANDS},  # printed; in `settings`; of `train_methods`
    "predict": {"method", "device"},  # given to `load_run`
    "encoders": {"name"},  # explains one entry of what the function returns
    "methods": {"name", "every"},
    "evaluate": {"runs"},  # one call per run
    "heatmap": {"targets"},  # runs and slides in one list
    "paper": {"dataset", "labels"},  # of `asmil paper manifest`
    "claims": {"names"},
}
"""Options that have another form in Python, with the reason."""
SETTINGS = {
    "heatmap": HeatmapSettings,
    "synthetic": SyntheticConfig,
    "synthetic-slides": SyntheticSlidesConfig,
    "transplants": TransplantConfig,
}
"""Functions that take settings by their names."""


@pytest.mark.parametrize("verb", sorted(set(VERBS) - set(NO_FUNCTION)))
def test_a_verb_has_a_function_with_the_same_words(verb):
    name = NAMED_OTHERWISE.get(verb, verb.replace("-", "_"))
    assert name in asmil.__all__
    function = getattr(asmil, name)
    if verb == "predict":
        function = asmil.TrainedRun.predict
    words = set(inspect.signature(function).parameters)
    if verb in SETTINGS:
        words |= set(SETTINGS[verb].model_fields)
    options = {parameter.name for parameter in VERBS[verb].params} - CONSOLE_ONLY - OTHER_WORDS.get(verb, set())
    if verb == "predict":
        options -= {"run"}
    assert options - words == set()


def test_the_lists_name_what_exists():
    assert {*NO_FUNCTION, *NAMED_OTHERWISE, *OTHER_WORDS, *SETTINGS} <= set(VERBS)
    for verb, names in OTHER_WORDS.items():
        assert names <= {parameter.name for parameter in VERBS[verb].params}
    for verb in NAMED_OTHERWISE:
        assert inspect.ismodule(__import__(f"asmil.{verb}", fromlist=["_"]))


def test_shorthands_are_settings():
    for setting in SHORTHANDS.values():
        fields = RunConfig.model_fields
        for part in setting.split("."):
            assert part in fields
            fields = getattr(fields[part].annotation, "model_fields", {})
