"""Files that no other test executes say what is there: workflows, the container, the changelog, troubleshooting."""

import ast
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from asmil.runs.config import RunConfig
from shared_data import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def text_of(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


# Workflows


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_is_there(path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert steps
    for step in steps:
        assert ("run" in step) != ("uses" in step), step
        for line in step.get("run", "").splitlines():
            if line.startswith("make "):
                assert line.split()[1] in TARGETS, line
            elif line.startswith("bash "):
                assert (REPOSITORY / line.split()[1]).is_file(), line
    for job in jobs.values():
        assert set(job.get("needs", "").split()) <= set(jobs)


def test_every_supported_python_is_tested_on_both_kinds_of_machine():
    matrix = yaml.safe_load(text_of(".github/workflows/test.yml"))["jobs"]["test"]["strategy"]["matrix"]
    classifiers = "\n".join(PROJECT["classifiers"])
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", classifiers)
    assert {runner.endswith("-arm") for runner in matrix["runner"]} == {True, False}


def test_every_system_is_tested():
    jobs = yaml.safe_load(text_of(".github/workflows/test.yml"))["jobs"]
    runners = {job["runs-on"].split("-")[0] for job in jobs.values() if "matrix" not in job["runs-on"]}
    assert {"ubuntu", "macos", "windows"} <= runners


def actions(path: Path) -> list[tuple[str, str, str]]:
    """Name, version and comment of every action that a workflow uses."""
    uses = re.findall(r"^\s*(?:- )?uses:\s*(\S+?)@(\S+)(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(uses) == path.read_text(encoding="utf-8").count("uses:")
    return uses


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_with_their_version_beside(path):
    for name, commit, comment in actions(path):
        assert re.fullmatch(r"[\w-]+/[\w-]+", name)
        assert re.fullmatch(r"[0-9a-f]{40}", commit), f"{name}@{commit}"
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{name}: Dependabot reads the version from the comment"


def test_an_action_has_one_version_in_all_workflows():
    versions: dict[str, set[tuple[str, str]]] = {}
    for path in WORKFLOWS:
        for name, commit, comment in actions(path):
            versions.setdefault(name, set()).add((commit, comment))
    assert all(len(pinned) == 1 for pinned in versions.values()), versions


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_says_otherwise(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())


def test_coverage_has_a_threshold():
    report = tomllib.loads(text_of("pyproject.toml"))["tool"]["coverage"]["report"]
    assert 0 < report["fail_under"] <= 100


def test_dependabot_watches_what_is_there():
    files = {
        "github-actions": ".github/workflows",
        "pip": "pyproject.toml",
        "npm": "package.json",
        "docker": "Dockerfile",
    }
    updates = yaml.safe_load(text_of(".github/dependabot.yml"))["updates"]
    assert {update["package-ecosystem"] for update in updates} == set(files)
    for update in updates:
        assert (REPOSITORY / update["directory"].lstrip("/") / files[update["package-ecosystem"]]).exists(), update


# The oldest dependencies


def oldest_dependencies():
    path = REPOSITORY / ".github" / "oldest_dependencies.py"
    spec = importlib.util.spec_from_file_location("oldest_dependencies", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("requirement", "constraint"),
    [
        ("pillow>=10", "pillow==10.0.*"),
        ("pandas>=2.1", "pandas==2.1.*"),
        ("tifffile>=2024.1.30", "tifffile==2024.1.30"),
        ("torch>=2.4,<2.14", "torch==2.4.*"),
        ("a-b[c,d] >= 1.2 ; python_version > '3.1'", "a-b==1.2.*"),
    ],
)
def test_a_lower_bound_becomes_a_constraint(requirement, constraint):
    assert oldest_dependencies().constraint_of(requirement) == constraint


@pytest.mark.parametrize("requirement", ["numpy", "numpy<3", "numpy; python_version >= '3.1'"])
def test_a_dependency_without_a_lower_bound_is_refused(requirement):
    with pytest.raises(SystemExit, match="numpy"):
        oldest_dependencies().constraint_of(requirement)


def test_every_dependency_of_users_is_installed_at_its_oldest():
    module = oldest_dependencies()
    pinned = {Requirement(line).name: Requirement(line) for line in module.constraints(REPOSITORY / "pyproject.toml")}
    extras = set(PROJECT["optional-dependencies"]) - set(module.LEFT_OUT)
    declared = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    declared += PROJECT["dependencies"]
    assert set(pinned) == {Requirement(line).name for line in declared}
    (installed,) = re.findall(r"--editable '\.\[([\w,]+)\]' \\", text_of("Makefile"))
    assert set(installed.split(",")) == extras


def test_templates_ask_for_something():
    for path in (REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(form)
        assert len({field["id"] for field in form["body"]}) == len(form["body"])


def test_the_package_names_the_repository_that_builds_it(monkeypatch):
    core = pytest.importorskip("hatchling.metadata.core")
    manager = pytest.importorskip("hatchling.plugin.manager")

    def urls():
        return core.ProjectMetadata(str(REPOSITORY), manager.PluginManager()).core.urls

    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    assert urls() == {}
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.org")
    monkeypatch.setenv("GITHUB_REPOSITORY", "lab/asmil")
    found = urls()
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(found)
    for address in found.values():
        assert address.startswith("https://example.org/lab/asmil")
        _, named, path = address.partition("/blob/main/")
        assert not named or (REPOSITORY / path).is_file()


# The container


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in text_of("Dockerfile").splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines()]


def test_the_container_is_built_from_what_is_there():
    steps = instructions()
    assert [name for name, _ in steps if name == "FROM"] == ["FROM"]
    arguments = dict(value.split("=", 1) for name, value in steps if name == "ARG")
    for name, value in steps:
        assert name in {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
        assert set(re.findall(r"\$\{(\w+)\}", value)) <= set(arguments)
        if name == "COPY":
            assert all((REPOSITORY / source).exists() for source in value.split()[:-1])
    assert set(arguments["EXTRAS"].split(",")) <= set(PROJECT["optional-dependencies"])
    kept = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src", "frontend"}
    assert not kept & set(text_of(".dockerignore").split()), "the package is built from these"


def test_the_documented_builds_give_arguments_that_the_container_takes():
    arguments = {value.split("=", 1)[0] for name, value in instructions() if name == "ARG"}
    page = text_of("docs/install.md").replace("\\\n", " ")
    builds = [shlex.split(line) for line in page.splitlines() if line.startswith("docker build")]
    assert len(builds) >= 2
    for words in builds:
        given = dict(words[n + 1].split("=", 1) for n, word in enumerate(words) if word == "--build-arg")
        assert set(given) <= arguments
        assert set(given.get("EXTRAS", "hub").split(",")) <= set(PROJECT["optional-dependencies"])
        assert words[-1] == "."


def test_every_extra_of_users_is_documented():
    page = text_of("docs/install.md")
    assert all(f"`{extra}`" in page for extra in set(PROJECT["optional-dependencies"]) - {"dev", "docs"})


# Changelog and troubleshooting


def test_the_changelog_lists_the_versions_newest_first():
    from asmil.version import __version__

    found = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", text_of("CHANGELOG.md"), re.MULTILINE)
    versions = [tuple(map(int, version.split("."))) for version, _ in found]
    assert versions == sorted(versions, reverse=True)
    assert found[0][0] == __version__
    assert {(0, minor, 0) for minor in range(1, 6)} <= set(versions)
    assert [date for _, date in found] == sorted((date for _, date in found), reverse=True)


def texts_in_the_code() -> str:
    """All strings of the code; what f-strings fill in is a zero byte."""
    found = []
    for path in (REPOSITORY / "src" / "asmil").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in node.values))
    return "\n".join(found)


def test_messages_and_settings_of_the_troubleshooting_page_exist():
    page, texts = text_of("docs/troubleshooting.md"), texts_in_the_code()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 10
    for message, *_ in rows:
        for part in re.findall(r"`([^`]+)`", message):
            assert part in texts, part
    for section, name in re.findall(r"`[^`]*?\b(task|training|data|model)\.(\w+)=", page):
        assert name in RunConfig.model_fields[section].annotation.model_fields, f"{section}.{name}"
