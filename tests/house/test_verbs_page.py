"""docs/verbs.md has a section for every verb, with all of its options and no others."""

import re

import pytest
from typer.main import get_command

from asmil.cli.main import app
from shared_data import REPOSITORY

DOCS = REPOSITORY / "docs"
ON_THEIR_OWN_PAGE = {"extract": "extract.md", "tissue": "tissue.md"}
"""Verbs whose section leaves the list of options to another page."""
COMMANDS = get_command(app).commands


def sections() -> dict[str, str]:
    page = (DOCS / "verbs.md").read_text(encoding="utf-8")
    return {part.partition("\n")[0]: part for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]}


def options_of(verb: str) -> list[set[str]]:
    """The spellings of every option."""
    options = [{*one.opts, *one.secondary_opts} for one in COMMANDS[verb].params if one.param_type_name == "option"]
    return [{name for name in names if name.startswith("--")} for names in options]


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_the_page_of_verbs_has_every_option(verb):
    section = sections()[verb]
    if verb in ON_THEIR_OWN_PAGE:
        section = (DOCS / ON_THEIR_OWN_PAGE[verb]).read_text(encoding="utf-8")
    written = set(re.findall(r"--[a-z][a-z0-9-]*", section))
    assert [names for names in options_of(verb) if not names & written] == []


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_the_tables_of_the_page_have_no_other_option(verb):
    first_cells = re.findall(r"^\| (`--[^|]*) \|", sections()[verb], re.MULTILINE)
    tabled = set(re.findall(r"`(--[a-z][a-z0-9-]*)", " ".join(first_cells)))
    assert tabled - set().union(*options_of(verb), {"--help"}) == set()


def test_the_page_has_no_section_of_a_verb_that_is_gone():
    verbs = {name for name in sections() if re.fullmatch(r"[a-z-]+", name)}
    assert verbs == set(COMMANDS)
