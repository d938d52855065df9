"""Checklists of reporting guidelines: the items, what asmil knows about each, and what remains for the authors."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from asmil.evaluation.checklists import run_facts, validation_facts
from asmil.evaluation.checklists.facts import RULES, Fact, known_facts
from asmil.evaluation.checklists.known import Known, gather
from asmil.files import replacing
from asmil.reporting import Cell, Document, Row, Section, Table
from asmil.reporting.files import write_document
from asmil.reporting.word import word_document
from asmil.settings.documents import validated

GUIDELINES = ("tripod_ai", "stard_ai")
NO_WORD = "no Word files were written, because python-docx is not installed; pip install 'asmil[word]'"
Status = Literal["filled", "partly", "authors"]
FACT_MODULES = (run_facts, validation_facts)
"""They add their facts to `RULES` when they are imported."""


class Item(BaseModel):
    """An item of a guideline, in our words.

    facts: names of facts that answer it, see `RULES`; authors: what they do not say; empty: they are enough
    """

    model_config = ConfigDict(extra="forbid")
    item: str
    topic: str
    facts: tuple[str, ...] = ()
    authors: str = ""


class ItemSection(BaseModel):
    """A titled part of a guideline."""

    model_config = ConfigDict(extra="forbid")
    title: str
    items: tuple[Item, ...]


class Guideline(BaseModel):
    """A reporting guideline. tasks: the kinds of tasks it is for."""

    model_config = ConfigDict(extra="forbid")
    name: str
    about: str
    tasks: tuple[str, ...]
    citation: str
    sections: tuple[ItemSection, ...]


@cache
def read_guideline(name: str) -> Guideline:
    """One of `GUIDELINES`, from its file in this package."""
    file = files("asmil.evaluation.checklists").joinpath(f"{name}.yaml")
    guideline = validated(
        yaml.safe_load(file.read_text(encoding="utf-8")), Guideline, f"{name}.yaml", "reinstall asmil"
    )
    unknown = {fact for part in guideline.sections for item in part.items for fact in item.facts} - set(RULES)
    assert not unknown, f"{name}.yaml: {unknown}"
    return guideline


@dataclass(frozen=True)
class FilledItem:
    """An item with the facts that are known."""

    item: Item
    facts: tuple[Fact, ...]

    @property
    def status(self) -> Status:
        if not self.facts:
            return "authors"
        return "partly" if self.item.authors else "filled"

    @property
    def remaining(self) -> str:
        """What the authors have to write."""
        return {"filled": "", "partly": self.item.authors, "authors": "for the authors"}[self.status]

    def to_dict(self) -> dict[str, Any]:
        return {
            "item": self.item.item,
            "topic": self.item.topic,
            "status": self.status,
            "facts": [vars(fact) for fact in self.facts],
            "authors": self.remaining,
        }


@dataclass(frozen=True)
class Checklist:
    """A guideline that was filled in.

    sections: its items by the title of their section
    """

    key: str
    guideline: Guideline
    name: str
    sections: Mapping[str, tuple[FilledItem, ...]]
    validated: bool

    def count(self, status: Status) -> int:
        """How many items have this status."""
        return sum(item.status == status for items in self.sections.values() for item in items)

    @property
    def answer(self) -> str:
        """How much is filled in."""
        total = sum(map(len, self.sections.values()))
        return (
            f"{self.count('filled')} of {total} items are filled in from the run"
            f"{' and its validation' if self.validated else ''}, {self.count('partly')} partly; "
            f"{self.count('authors')} are for the authors."
        )

    @property
    def document(self) -> Document:
        """The checklist as a page."""
        external = (
            [] if self.validated else ["No external validation was given: see `asmil validate` and --validation."]
        )
        return Document(
            kind=f"{self.guideline.name} checklist",
            title=self.name,
            answer=self.answer,
            about=f"For {self.guideline.about}: {self.guideline.citation}",
            warnings=external,
            sections=[Section(title, [_table(items)]) for title, items in self.sections.items()],
            reading=(
                "Topics are in our words; compare with the wording of the guideline before you submit.",
                "Each fact is followed by its file. Check every fact: asmil knows the files, not the study.",
                "Column page: where your manuscript reports the item.",
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """The content, ready for JSON."""
        sections = {title: [item.to_dict() for item in items] for title, items in self.sections.items()}
        return {"guideline": self.guideline.name, "citation": self.guideline.citation, "sections": sections}


def _table(items: tuple[FilledItem, ...]) -> Table:
    rows: list[Row] = [
        [
            each.item.item,
            each.item.topic,
            "\n".join(f"{fact.text} [{fact.source}]" for fact in each.facts),
            Cell(each.remaining, strong=each.status == "authors"),
            "",
        ]
        for each in items
    ]
    return Table(["item", "what to report", "from asmil", "for the authors", "page"], rows, widths=(6, 26, 42, 18, 8))


def fill(known: Known, key: str) -> Checklist:
    """Fill in one of `GUIDELINES`."""
    guideline, facts = read_guideline(key), known_facts(known)
    sections = {
        part.title: tuple(
            FilledItem(item, tuple(facts[name] for name in item.facts if name in facts)) for item in part.items
        )
        for part in guideline.sections
    }
    return Checklist(key, guideline, known.run.name, sections, bool(known.validation))


def fill_all(run: Path | str, validation: Path | str | None = None) -> list[Checklist]:
    """The guidelines that fit the task of a run, filled in."""
    known = gather(run, validation)
    return [fill(known, key) for key in GUIDELINES if known.run.kind in read_guideline(key).tasks]


def has_word() -> bool:
    """Whether python-docx, which writes Word files, is installed."""
    return importlib.util.find_spec("docx") is not None


def write_checklist(checklist: Checklist, folder: Path) -> list[Path]:
    """Write a checklist as HTML, Markdown, JSON and, if python-docx is installed, Word; returns the paths."""
    page = write_document(checklist.document, folder / f"{checklist.key}.html", checklist.to_dict())
    paths = [page, page.with_suffix(".md"), page.with_suffix(".json")]
    if has_word():
        paths.append(page.with_suffix(".docx"))
        with replacing(paths[-1]) as partial:
            partial.write_bytes(word_document(checklist.document, landscape=True))
    return paths
