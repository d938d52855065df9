"""docs/verbs/ has a section for every verb, with all of its options and no others; docs/verbs.md links to each."""

import re

import pytest
from typer.main import get_command

from asmil.cli.main import app
from shared_data import REPOSITORY

DOCS = REPOSITORY / "docs"
COMMANDS = get_command(app).commands
TABLE = re.compile(r"<!-- options: ([a-z-]+) -->\n(.*?)<!-- end -->", re.DOTALL)


def sections() -> list[tuple[str, str, str]]:
    """All sections of the pages: page, heading, text."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in sorted((DOCS / "verbs").glob("*.md"))}
    return [
        (name, part.partition("\n")[0], part)
        for name, page in pages.items()
        for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    ]


def options_of(verb: str) -> list[set[str]]:
    """The spellings of every option."""
    options = [option for option in COMMANDS[verb].params if option.param_type_name == "option"]
    return [{*option.opts, *option.secondary_opts} for option in options]


def test_every_verb_has_one_section_and_no_section_is_of_a_verb_that_is_gone():
    assert sorted(verb for _, verb, _ in sections()) == sorted(COMMANDS)


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_the_table_of_a_section_has_every_option_of_the_verb_and_no_other(verb):
    (text,) = (part for _, name, part in sections() if name == verb)
    ((named, table),) = TABLE.findall(text)
    assert named == verb
    first_cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    written = [set(re.findall(r"`(--?[a-z][a-z0-9-]*)", cell)) for cell in first_cells]
    assert [spellings for spellings in written if spellings] == options_of(verb)


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_the_tables_of_errors_name_options_that_there_are(verb):
    (text,) = (part for _, name, part in sections() if name == verb)
    rows = re.findall(r"^\| .*? \| (.*) \|$", TABLE.sub("", text), re.MULTILINE)
    named = set(re.findall(r"`(--[a-z][a-z0-9-]*)", " ".join(rows)))
    assert named - set().union(*(spellings for other in COMMANDS for spellings in options_of(other))) == set()


def test_the_list_of_verbs_leads_to_every_section():
    page = (DOCS / "verbs.md").read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[`([a-z-]+)`\]\(verbs/([a-z]+\.md)#([a-z-]+)\) \|", page, re.MULTILINE)
    assert sorted((file, verb, verb) for file, verb, _ in sections()) == sorted(
        (file, verb, anchor) for verb, file, anchor in linked
    )
