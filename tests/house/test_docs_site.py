"""The documentation site: every page has its place in it, and it builds without a warning."""

import importlib
import os
import subprocess
import sys

import pytest

from shared_data import REPOSITORY

GENERATED = {"reference.md", "contributing.md", "changelog.md", "security.md"}


def test_every_page_is_in_the_navigation():
    in_navigation = set()
    for line in (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2].splitlines():
        if line.endswith(".md"):
            in_navigation.add(line.split()[-1])
    docs = REPOSITORY / "docs"
    assert in_navigation == {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} | GENERATED


@pytest.mark.heavy
def test_the_site_builds_in_strict_mode(tmp_path):
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "site" / "reference" / "index.html").read_text(encoding="utf-8")
    for package in ("asmil", "asmil.evaluation", "asmil.evaluation.localization"):
        for name in set(importlib.import_module(package).__all__) - {"__version__"}:
            assert f"{package}.{name}" in page, f"{package}.{name} is missing from the API reference"
    assert "http://" not in page.replace("http://www.w3.org", "")
