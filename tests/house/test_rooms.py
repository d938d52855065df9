"""The contract of the layers knows every room, and so does the page for contributors."""

import tomllib

from shared_data import REPOSITORY

SOURCES = REPOSITORY / "src" / "asmil"
CONTRACTS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
READERS_OF_RUNS = ("evaluation", "explain", "viewer", "export")


def rooms() -> set[str]:
    modules = {path.stem for path in SOURCES.glob("*.py")} - {"__init__", "__main__"}
    return modules | {path.parent.name for path in SOURCES.glob("*/__init__.py")}


def layers() -> list[str]:
    (contract,) = (contract for contract in CONTRACTS if contract["type"] == "layers")
    return [name.removeprefix("asmil.") for name in contract["layers"]]


def test_every_room_is_in_the_contract():
    assert set(layers()) == rooms()


def test_readers_of_runs_are_below_training():
    above = layers()[: layers().index("training")]
    assert not set(READERS_OF_RUNS) & set(above)


def test_contributors_find_every_room_in_its_order():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    table = text.split("| room | subject |")[1].split("\n\n")[0]
    named = [cell.strip(" `") for row in table.splitlines()[2:] for cell in row.split("|")[1].split(",")]
    assert named[: layers().index("tables")] == layers()[: layers().index("tables")]
    assert set(named) == rooms()


def test_files_named_for_contributors_exist():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text().split("Where to look first")[1].split("## ")[0]
    files = [word for word in text.split("`") if word.endswith(".py")]
    assert files
    assert [name for name in files if not (SOURCES / name).is_file()] == []
