"""What the documentation site needs beside its pages: the pages at the root of the repository, and links it can follow.

The pages also read well in the repository. What only the repository understands is translated here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
ROOT_LINK = re.compile(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, ROOT_PAGES))})(#[^)]*)?\)")
# stored results (but not their tables), tests and code are in the repository, not on the site
FILE_LINK = re.compile(
    r"(?<!!)\[([^\]]+)\]\((?:(?:\.\./)+(?:src|tests|benchmarks|oracles|examples)|tests|(?:\.\./)*results(?!/[^)]*\.md))/[^)]*\)"
)
PUBLIC = ("asmil", "asmil.evaluation", "asmil.evaluation.localization")
STUBS = {package: f"src/{package.replace('.', '/')}/__init__.pyi" for package in PUBLIC}
STUB_LINE = re.compile(r"^from (\S+) import (\w+) as \w+$", re.MULTILINE)
TESTED_FENCE = re.compile(r"^```(\w+) \w+$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages at the root of the repository."""
    root = Path(config["config_file_path"]).parent
    for name, target in ROOT_PAGES.items():
        text = (root / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, target, content=text))
    files.append(File.generated(config, "reference.md", content=_reference(root)))
    return files


def _reference(root: Path) -> str:
    """A page with the docstring of every public name, in the order of the stubs that list them."""
    lines = [
        "# API reference",
        "",
        "Every public name, from its docstring. [Python](python.md) shows how they fit together.",
        "",
    ]
    for package, stub in STUBS.items():
        lines += [f"## {package}", ""]
        for module, name in STUB_LINE.findall((root / stub).read_text(encoding="utf-8")):
            if not name.startswith("_"):
                options = f'    options: {{ heading: "{package}.{name}", toc_label: "{name}" }}'
                lines += [f"::: {module}.{name}", options, ""]
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Translate links and the code blocks that are tests."""
    up = "../" * page.file.src_uri.count("/")
    markdown = ROOT_LINK.sub(lambda link: f"]({up}{ROOT_PAGES[link[1]]}{link[2] or ''})", markdown)
    markdown = FILE_LINK.sub(r"\1", markdown)
    return TESTED_FENCE.sub(r"```\1", markdown)
