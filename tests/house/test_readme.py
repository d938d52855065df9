"""The README's commands do what it says: every block tagged `test` runs, in order, in an empty folder."""

import fcntl
import inspect
import os
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from patience import PATIENCE_S
from shared_data import REPOSITORY

BLOCK = re.compile(r"^```(bash|python) test\n(.*?)^```$", re.MULTILINE | re.DOTALL)


README_BLOCKS = BLOCK.findall((REPOSITORY / "README.md").read_text())


def run_block(language: str, code: str, folder: Path) -> None:
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "bash" else [sys.executable, "-c", code]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{code}\n{done.stderr[-3000:]}"


class Session:
    """A folder in which blocks run in order; each is run once, also by several test processes and in any order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = folder.with_suffix(".done")

    def run_up_to(self, index: int) -> None:
        with self._count.open("a+") as count:
            fcntl.flock(count, fcntl.LOCK_EX)  # until the file is closed
            count.seek(0)
            for number in range(len(count.read()), index + 1):
                run_block(*README_BLOCKS[number], self.folder)
                count.write(".")


@pytest.fixture(scope="module")
def readme_session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "readme"
    folder.mkdir(exist_ok=True)
    return Session(folder)


@pytest.mark.heavy
@pytest.mark.parametrize("index", range(len(README_BLOCKS)))
def test_a_tagged_block_of_the_readme_runs(index: int, readme_session: Session):
    readme_session.run_up_to(index)


@pytest.mark.heavy
def test_the_blocks_of_the_readme_write_what_it_says(readme_session: Session):
    assert {language for language, _ in README_BLOCKS} == {"bash", "python"}
    readme_session.run_up_to(len(README_BLOCKS) - 1)
    assert (readme_session.folder / "report" / "report.html").exists()
    assert len(list((readme_session.folder / "predictions_attention").glob("*.h5"))) == 150


@pytest.mark.heavy
def test_the_examples_of_the_python_page_run_as_one_session(tmp_path: Path):
    """In order and in one process, as in a notebook."""
    blocks = BLOCK.findall((REPOSITORY / "docs" / "python.md").read_text())
    assert len(blocks) > 8
    for language in ("bash", "python"):
        run_block(language, "\n".join(code for kind, code in blocks if kind == language), tmp_path)


STAND_INS = Path(__file__).parent / "stand_ins"


def test_the_anchor_runs_around_a_model_of_another_library(tmp_path: Path):
    """With the real torchmil where it is installed, otherwise with one that has its signatures."""
    ((language, code),) = BLOCK.findall((REPOSITORY / "docs" / "anchor.md").read_text())
    assert language == "python"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ if find_spec("torchmil") else {**os.environ, "PYTHONPATH": str(STAND_INS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "copy.pool.fc1" in done.stdout
    assert "classifier" not in done.stdout


def test_the_recorded_signatures_are_those_of_torchmil():
    real = pytest.importorskip("torchmil.models")
    spec = spec_from_file_location("recorded_torchmil", STAND_INS / "torchmil" / "models.py")
    recorded = module_from_spec(spec)
    spec.loader.exec_module(recorded)

    def names(function):
        return list(inspect.signature(function).parameters)

    for kind, recorded_kind in (
        (real.ABMIL, recorded.ABMIL),
        (type(real.ABMIL((2,)).pool), recorded.AttentionPool),
    ):
        assert names(kind.__init__) == names(recorded_kind.__init__)
        assert names(kind.forward) == names(recorded_kind.forward)


def test_links_between_pages_lead_somewhere():
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_no_placeholder_is_left():
    for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")):
        assert "{{" not in page.read_text(), page


def documented(page: Path) -> set[str]:
    return set(re.findall(r"^\| `([a-z0-9_]+)` \|", page.read_text(), re.MULTILINE))


def test_documented_settings_are_the_ones_there_are():
    from asmil.runs.config import RunConfig, StabilizersConfig

    page = (REPOSITORY / "docs" / "settings.md").read_text()
    sections = [name for name, field in RunConfig.model_fields.items() if hasattr(field.annotation, "model_fields")]
    stabilizers = [f"stabilizers.{name}" for name in StabilizersConfig.model_fields]
    for name in ["run", *(set(sections) - {"model", "stabilizers"}), *stabilizers]:
        assert f"<!-- settings: {name} -->" in page, name


def test_every_method_has_a_row_and_a_page_with_its_settings():
    from asmil.models import methods

    index = (REPOSITORY / "docs" / "methods.md").read_text()
    readme = (REPOSITORY / "README.md").read_text()
    for name, method in methods().items():
        module = method.model.__module__.rsplit(".", 1)[-1]
        assert f"[`{name}`](methods/{module}.md)" in index
        assert f"`{name}`" in readme
        fields = method.model.config_type.model_fields
        page = REPOSITORY / "docs" / "methods" / f"{module}.md"
        assert fields.keys() <= documented(page), f"{page.name} lacks settings of {name}"
        if len(methods_of(module)) == 1:
            assert documented(page) <= fields.keys(), f"{page.name} has settings that {name} lacks"
        assert f"<!-- settings: {module} -->" in page.read_text()


def test_the_tables_of_settings_are_current():
    tables = REPOSITORY / "docs" / "tables.py"
    done = subprocess.run([sys.executable, tables, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_written_from_records_are_current():
    evidence = REPOSITORY / "docs" / "evidence.py"
    done = subprocess.run([sys.executable, evidence, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


TEMPLATES = sorted((REPOSITORY / "docs" / "templates").rglob("*.md.jinja"))
SETTINGS = {
    "anchor_cost": "1.25 1.5 2.11 2.13",
    "anchor_study": "0.1 0.5 0.6 0.999 2.11",
    "asmil_settings": "0.02 0.1 0.6 2.11",
    "classic": "0.03 0.05 0.98 7.3",
    "faithfulness": "0.6",
    "performance": "0.05 12.5",
    "preset_study": "0.002 0.005 0.01 0.02 0.05 0.1 0.25 0.5 0.6 0.99 0.999 2.11",
    "reproduction": "0.01 0.02 0.05 0.1 0.5 0.6 0.9 0.9999 1.25 1.5",
    "tables_anchor_cost": "2.11 2.13",
    "tables_classic": "0.01 2.11 2.13",
    "tables_performance": "0.05 0.15 2.11 2.13 2.5 5.0",
    "tables_reproduction": "0.6",
    "slides": "0.05 0.25 0.5",
    "stability": "0.001 0.005 0.01 0.1 0.14 0.2 0.5 0.693 0.9 1.4 1.5 2.13 4.5",
    "survival": "0.5 0.6 2.11 16.118",
    "uncertainty": "0.001 0.05 0.5 0.55 0.8 0.9 0.95 70.4",
}
"""Settings, targets, versions and mathematical constants that stand in a template."""


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_hold_no_results(template):
    """Other decimal numbers come from records."""
    text = re.sub(r"```.*?```|`[^`]*`|\{\{.*?\}\}|\{%.*?%\}", "", template.read_text(), flags=re.DOTALL)
    assert set(re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", text)) <= set(
        SETTINGS.get(template.name.removesuffix(".md.jinja"), "").split()
    )


def methods_of(module: str) -> list[str]:
    from asmil.models import methods

    return [name for name, method in methods().items() if method.model.__module__.endswith(f".{module}")]
