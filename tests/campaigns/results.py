"""What a command left in its folder, to compare two runs of it bit for bit; only durations do not count."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import yaml
from safetensors import safe_open

from asmil.cohort.features import read_bag
from asmil.cohort.manifest import cohort_from_features
from tests.campaigns.contents import digest

DURATIONS = ("seconds",)
PRESENCE_ONLY = (".html", ".md")
"""Pages, which print durations; what they show is in the files of numbers, too."""
PACK_DATA = ("features.f16", "features.f32", "coords.i64", "lowres.u8", "pack.lock", ".lock")
"""A resumed pack may hold its slides in another order; they are compared one by one."""


def snapshot(folder: Path) -> dict[str, str]:
    """A digest of every file below a folder, by its relative path."""
    packs = {path.parent for path in folder.rglob("index.json")}
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or (path.parent in packs and path.name in PACK_DATA):
            continue
        name = str(path.relative_to(folder))
        try:
            found[name] = digest(
                _pack(path.parent) if path.parent in packs and path.name == "index.json" else _content(path)
            )
        except Exception as error:  # noqa: BLE001 a broken file differs from a whole one
            found[name] = f"unreadable ({type(error).__name__}: {error})"
    return found


def differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """What is missing, left over or different."""
    return [
        *(f"lost: {name}" for name in expected if name not in found),
        *(f"left over: {name}" for name in found if name not in expected),
        *(
            f"differs: {name}" + (f" ({found[name]})" if found[name].startswith("unreadable") else "")
            for name in found
            if name in expected and found[name] != expected[name]
        ),
    ]


def _content(path: Path) -> Any:
    suffix = path.suffix
    if suffix in PRESENCE_ONLY:
        return None
    if suffix == ".safetensors":
        with safe_open(str(path), framework="np") as file:
            state = json.loads((file.metadata() or {}).get("state", "null"))
            return {name: file.get_tensor(name) for name in sorted(file.keys())}, _timeless(state)
    if suffix == ".json":
        return _timeless(json.loads(path.read_text(encoding="utf-8")))
    if suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    if suffix == ".yaml":
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    if suffix == ".parquet":
        return pd.read_parquet(path)
    if suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [_timeless(row) for row in csv.DictReader(file)]
    if suffix == ".h5":
        return _hdf5(path)
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(inner) for name, inner in value.items() if name not in DURATIONS}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def _hdf5(path: Path) -> Any:
    found: dict[str, Any] = {}

    def note(name: str, node: Any) -> None:
        found[f"attributes of {name}"] = {key: np.asarray(value) for key, value in sorted(node.attrs.items())}
        if isinstance(node, h5py.Dataset):
            found[name] = np.asarray(node[()])

    with h5py.File(path, "r") as file:
        note("", file)
        file.visititems(note)
    return found


def _pack(folder: Path) -> Any:
    return {slide.slide: read_bag(slide.source, slide.slide) for slide in cohort_from_features(folder).slides}
