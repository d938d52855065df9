"""Edits of text files: numbers that are none, columns and keys that are missing or doubled, nesting without end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import yaml

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
WORDS = (
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "0",
    "1e30",
    "9" * 40,
    "9" * 5000,
    "0x10",
    "",
    "text",
    "é",
    "\x1b[31mred",
    "=1+1",
    "null",
    "../../x",
    "\x00",
    "\u00a0",
    "Dead",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**40,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "text",
    "../../x",
    [],
    [[]],
    {},
    {"a": 1},
    [None],
    ["x"],
)
DEEP = 20_000


def edit_text(path: Path, draw: np.random.Generator) -> str:
    """A number, a word or a line of any text changes."""
    text = path.read_text(encoding="utf-8")
    options = [_change_number, _change_line, _change_characters, _nest, _encode]
    return _write(path, *options[int(draw.choice(5, p=[0.45, 0.2, 0.15, 0.1, 0.1]))](text, draw))


def edit_tsv(path: Path, draw: np.random.Generator) -> str:
    """A cell, a row or a column of a table with tabs changes."""
    return edit_csv(path, draw, "\t")


def edit_csv(path: Path, draw: np.random.Generator, separator: str = ",") -> str:
    """A cell, a row or a column of a table changes."""
    if draw.random() < 0.3:
        return edit_text(path, draw)
    rows = [line.split(separator) for line in path.read_text(encoding="utf-8").splitlines()]
    column = int(draw.integers(0, len(rows[0])))
    row = int(draw.integers(1, len(rows)))
    choice = str(draw.choice(["cell", "cell", "cell", "drop", "double", "blank", "rename", "short", "long", "many"]))
    if choice == "cell":
        rows[row][column] = str(draw.choice(WORDS))
    elif choice == "drop":
        rows = [[*cells[:column], *cells[column + 1 :]] for cells in rows]
    elif choice == "double":
        rows = [[*cells, cells[column]] for cells in rows]
    elif choice == "blank":
        rows = [rows[0], *([*cells[:column], "", *cells[column + 1 :]] for cells in rows[1:])]
    elif choice == "rename":
        rows[0][column] = str(draw.choice([*WORDS, rows[0][column].upper(), f" {rows[0][column]} "]))
    elif choice == "short":
        del rows[row][column:]
    elif choice == "long":
        rows[row] += ["x"] * int(draw.integers(1, 50))
    else:
        rows += [rows[row]] * int(draw.integers(1, 200))
    return _write(path, "\n".join(map(separator.join, rows)) + "\n", f"csv, {choice}: row {row}, column {column}")


def edit_json(path: Path, draw: np.random.Generator) -> str:
    """A value or a key of a tree changes."""
    if draw.random() < 0.2:
        return edit_text(path, draw)
    tree, what = _edited(json.loads(path.read_text(encoding="utf-8")), draw)
    return _write(path, json.dumps(tree), what)


def edit_outlines(path: Path, draw: np.random.Generator) -> str:
    """A GeoJSON file changes as any tree does, or its outlines cross themselves."""
    if draw.random() < 0.6:
        return edit_json(path, draw)
    tree = json.loads(path.read_text(encoding="utf-8"))
    points = int(np.exp(draw.uniform(np.log(4), np.log(1500))))
    for feature in tree["features"]:
        corners = draw.integers(0, 1000, (points, 2)).tolist()
        feature["geometry"]["coordinates"] = [[*corners, corners[0]]]
    return _write(path, json.dumps(tree), f"outlines of {points} random points")


def edit_jsonl(path: Path, draw: np.random.Generator) -> str:
    """A line of trees changes, or their order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    place = int(draw.integers(0, len(lines)))
    choice = str(draw.choice(["tree", "tree", "tree", "drop", "double", "bare", "text"]))
    what = choice
    if choice == "tree":
        tree, what = _edited(json.loads(lines[place]), draw)
        lines[place] = json.dumps(tree)
    elif choice == "drop":
        del lines[place]
    elif choice == "double":
        lines.insert(place, lines[place])
    elif choice == "bare":
        lines[place] = json.dumps(VALUES[int(draw.integers(0, len(VALUES)))])
    else:
        return edit_text(path, draw)
    return _write(path, "\n".join(lines) + "\n", f"line {place}: {what}")


def edit_yaml(path: Path, draw: np.random.Generator) -> str:
    """A value or a key of a tree changes, or an alias stands for more than memory holds."""
    choice = draw.random()
    if choice < 0.2:
        return edit_text(path, draw)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    if choice < 0.3:
        key = str(draw.choice(sorted(tree)))
        rest = {name: value for name, value in tree.items() if name != key}
        levels = [f"bomb0: &b0 [{', '.join(['x'] * 10)}]"]
        levels += [f"bomb{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 10)}]" for n in range(1, 12)]
        text = "\n".join(levels) + f"\n{key}: *b11\n" + yaml.safe_dump(rest, sort_keys=False)
        return _write(path, text, f"{key} is an alias bomb")
    tree, what = _edited(tree, draw)
    return _write(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), what)


def edited_tree(tree: Any, draw: np.random.Generator) -> tuple[Any, str]:
    """A tree with one value changed, and what was done."""
    return _edited(tree, draw)


def _edited(tree: Any, draw: np.random.Generator) -> tuple[Any, str]:
    places = list(_places(tree))
    place = places[int(draw.integers(0, len(places)))]
    value = VALUES[int(draw.integers(0, len(VALUES)))]
    if not place:
        return value, f"all is {value!r}"
    holder = tree
    for key in place[:-1]:
        holder = holder[key]
    name = ".".join(map(str, place))
    choice = draw.random()
    if choice < 0.2:
        del holder[place[-1]]
        return tree, f"{name} removed"
    if choice < 0.25 and isinstance(holder, dict):
        holder[f"{place[-1]}x"] = holder.pop(place[-1])
        return tree, f"{name} renamed"
    if choice < 0.3 and isinstance(holder, list):
        holder.append(holder[place[-1]])
        return tree, f"{name} twice"
    holder[place[-1]] = value
    return tree, f"{name} = {value!r}"


def _places(tree: Any, here: tuple[Any, ...] = ()) -> Any:
    yield here
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield from _places(child, (*here, key))


def _change_number(text: str, draw: np.random.Generator) -> tuple[str, str]:
    found = list(NUMBER.finditer(text))
    if not found:
        return _change_characters(text, draw)
    number = found[int(draw.integers(0, len(found)))]
    word = str(draw.choice(WORDS))
    return text[: number.start()] + word + text[number.end() :], f"{number.group()} is now {word[:20]!r}"


def _change_line(text: str, draw: np.random.Generator) -> tuple[str, str]:
    lines = text.splitlines(keepends=True)
    place = int(draw.integers(0, len(lines)))
    choice = str(draw.choice(["removed", "doubled", "emptied", "cut"]))
    line = lines[place]
    lines[place] = {"removed": "", "doubled": line * 2, "emptied": "\n", "cut": line[: len(line) // 2]}[choice]
    return "".join(lines), f"line {place} {choice}"


def _change_characters(text: str, draw: np.random.Generator) -> tuple[str, str]:
    place = int(draw.integers(0, len(text)))
    word = str(draw.choice([*WORDS, '"', "<", ">", "&", "{", "}", "[", "]", ",", ":", "\n", "\t", "'"]))
    return text[:place] + word + text[place + int(draw.integers(0, 3)) :], f"{word[:20]!r} at {place}"


def _nest(text: str, draw: np.random.Generator) -> tuple[str, str]:
    opening = str(draw.choice(["[", '{"a":', "<a>", "- ", "(", "&"]))
    place = int(draw.choice([0, len(text) // 2, len(text)]))
    return text[:place] + opening * DEEP + text[place:], f"{opening!r} {DEEP} times at {place}"


def _encode(text: str, draw: np.random.Generator) -> tuple[bytes, str]:
    encoding = str(draw.choice(["utf-16", "latin-1", "utf-8-sig", "crlf", "cp1252"]))
    if encoding == "crlf":
        return text.replace("\n", "\r\n").encode(), encoding
    return (text + "ü").encode(encoding, "replace"), encoding


def _write(path: Path, text: str | bytes, what: str) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return what
