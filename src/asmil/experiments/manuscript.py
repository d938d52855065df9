"""Figures, tables and text for a paper, from the pages and runs below a folder.

figures/          every figure as PDF, SVG and PNG
tables/           every table as LaTeX and CSV, and all of them in tables.docx
text.md, .docx    methods, results, captions
references.bib
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Literal, TypeVar, get_args

from asmil.errors import AsmilError
from asmil.experiments.methods_text import methods_paragraphs, references
from asmil.experiments.results_index import COMPARISON, PAGES, VALIDATION, ResultsIndex, names_in_comparison
from asmil.files import replacing, write_text
from asmil.reporting import Block, Document, Figure, Heading, SideBySide, Table, csv_text
from asmil.reporting.drawing import matrix_figure
from asmil.reporting.print_files import Width, print_files
from asmil.reporting.read_page import read_page
from asmil.reporting.text import escape_latex, latex_table
from asmil.reporting.word import cell_text, word_file

Content = TypeVar("Content", Figure, Table)
Part = Literal["figures", "tables", "text"]
PARTS: tuple[Part, ...] = get_args(Part)
SMALLEST_PICTURE_PX = 1004
"""Pictures with fewer pixels in a row have less than 300 dpi in one column: on pages they are previews."""


@dataclass(frozen=True)
class Manuscript:
    """What was written, and what could not be.

    figures, tables: of the pages, by the names of their files; `only` may leave out the files
    """

    out: Path
    figures: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def write_manuscript(results: ResultsIndex, out: Path, parts: Sequence[Part], width: Width | None = None) -> Manuscript:
    """Write the parts into a folder; a page or picture that cannot be read is listed in `problems`."""
    documents: dict[Path, Document] = {}
    notes: list[str] = []
    problems: list[str] = []
    for page in results.pages:
        try:
            documents[page] = read_page(results.folder / page)
        except (AsmilError, OSError) as error:
            problems.append(str(error))
    figures, tables = _by_name(_figures(results, documents)), _by_name(_tables(documents))
    for name, figure in figures.items() if "figures" in parts else ():
        assert figure.content is not None
        try:
            files = print_files(figure.content, width)
        except (ValueError, KeyError, OSError, SyntaxError) as error:  # what damaged SVG and PNG raise
            problems.append(f"{name} cannot be drawn ({error}); write its page again")
            continue
        for ending, content in files.items():
            _write(out / "figures" / f"{name}.{ending}", content)
    if "tables" in parts:
        for name, table in tables.items():
            _write_table(out / "tables" / name, table)
        notes += _write_word(out / "tables" / "tables.docx", list(tables.values()))
    if "text" in parts:
        text = _text(results, documents, figures, tables)
        write_text(out / "text.md", "\n\n".join(f"## {b.text}" if isinstance(b, Heading) else b for b in text) + "\n")
        notes += _write_word(out / "text.docx", text)
        write_text(out / "references.bib", references(results.run_folders, _comparison(results), _validations(results)))
    return Manuscript(out, figures, tables, tuple(dict.fromkeys(notes)), tuple(problems))


def _figures(results: ResultsIndex, documents: dict[Path, Document]) -> Iterator[tuple[str, Figure]]:
    """Every figure with its file name and caption: those of pages, shaded tables as matrices, and heat maps."""
    for page, document in documents.items():
        for title, block, after in _with_titles(document):
            figure = block if isinstance(block, Figure) else None
            if isinstance(block, Table) and any(cell.shade is not None for row in block.cells() for cell in row):
                figure = Figure(matrix_figure(block), title, block.caption)
            if figure is None or figure.content is None or _is_preview(figure.content):
                continue
            words = [f"{document.title}: {figure.title}.", figure.caption or after, document.about]
            caption = " ".join(filter(None, words))
            yield f"{_prefix(page)}-{_slug(figure.title)}", replace(figure, caption=caption)
    for picture in results.pictures:
        caption = f"Heat maps of slide {picture.stem}. The bar shows the scale."
        yield f"heatmap-{_slug(picture.stem)}", Figure((results.folder / picture).read_bytes(), picture.stem, caption)


def _tables(documents: dict[Path, Document]) -> Iterator[tuple[str, Table]]:
    for page, document in documents.items():
        for title, block, _ in _with_titles(document):
            if isinstance(block, Table):
                named = f"{document.title}: {title}"
                yield f"{_prefix(page)}-{_slug(title)}", replace(block, title=named)


def _with_titles(document: Document) -> Iterator[tuple[str, Block, str]]:
    """Every block with the heading above it, and the paragraph after its group of figures."""
    for section in document.sections:
        title, blocks = section.title, list(_unpacked(section.blocks))
        for number, block in enumerate(blocks):
            title = block.text if isinstance(block, Heading) else title
            after = next((later for later in blocks[number:] if not isinstance(later, Figure)), "")
            yield title, block, after if isinstance(after, str) else ""


def _unpacked(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield from block.blocks if isinstance(block, SideBySide) else [block]


def _text(
    results: ResultsIndex, documents: dict[Path, Document], figures: dict[str, Figure], tables: dict[str, Table]
) -> list[Heading | str]:
    said = [f"{PAGES[page.name][0]}, {document.title}: {document.answer}" for page, document in documents.items()]
    names = names_in_comparison(results.folder)
    methods = methods_paragraphs(results.run_folders, names, _comparison(results), _validations(results))
    first: list[Heading | str] = [Heading("Methods"), *methods] if methods else []
    return [
        *first,
        Heading("Results"),
        *said,
        *_captions("Figure", {f"figures/{name}": figure.caption for name, figure in figures.items()}),
        *_captions("Table", {f"tables/{name}": f"{t.title}. {t.caption}".strip() for name, t in tables.items()}),
    ]


def _captions(kind: str, captions: dict[str, str]) -> list[Heading | str]:
    numbered = [f"**{kind} {n}.** {text} (`{file}`)" for n, (file, text) in enumerate(captions.items(), 1)]
    return [Heading(f"{kind}s"), *numbered] if numbered else []


def _comparison(results: ResultsIndex) -> dict[str, object] | None:
    """The first comparison below the folder."""
    return next(_numbers_of(results, COMPARISON), None)


def _validations(results: ResultsIndex) -> list[dict[str, object]]:
    """All validations below the folder."""
    return list(_numbers_of(results, VALIDATION))


def _numbers_of(results: ResultsIndex, name: str) -> Iterator[dict[str, object]]:
    """The JSON files beside the pages of a name."""
    for page in results.pages:
        data = (results.folder / page).with_suffix(".json")
        if page.name == name and data.is_file():
            yield json.loads(data.read_text(encoding="utf-8"))


def _is_preview(content: str | bytes) -> bool:
    return isinstance(content, bytes) and int.from_bytes(content[16:20]) < SMALLEST_PICTURE_PX


def _prefix(page: Path) -> str:
    return "-".join(dict.fromkeys(_slug(part) for part in (*page.parent.parts, page.stem)))


def _slug(text: str) -> str:
    """A file name.

    >>> _slug("ROC curves: IDC (all)")
    'roc-curves-idc-all'
    """
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-") or "unnamed"


def _by_name(named: Iterable[tuple[str, Content]]) -> dict[str, Content]:
    """Contents by name; a name that was used before gets a number."""
    contents: dict[str, Content] = {}
    for name, content in named:
        numbered = (f"{name}-{number}" for number in count(2))
        contents[next(unused for unused in chain([name], numbered) if unused not in contents)] = content
    return contents


def _write_table(path: Path, table: Table) -> None:
    rows = [
        {title or "name": cell_text(cell) for title, cell in zip(table.columns, row, strict=True)}
        for row in table.cells()
    ]
    write_text(path.with_suffix(".csv"), csv_text(rows))
    written = latex_table(table, escape_latex(f"{table.title}. {table.caption}".strip()), fitted=True)
    write_text(path.with_suffix(".tex"), "% Needs \\usepackage{booktabs,graphicx}.\n" + written + "\n")


def _write_word(path: Path, blocks: Sequence[Block]) -> list[str]:
    """Write a Word file; the reason if it cannot be written."""
    try:
        _write(path, word_file(blocks))
    except AsmilError as error:
        return [str(error)]
    return []


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as partial:
        partial.write_bytes(content)
