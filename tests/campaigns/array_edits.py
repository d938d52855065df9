"""Edits of files of arrays: other types and shapes, NaN, missing and foreign parts."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import scipy.io
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.campaigns import text_edits

UNFIT = "unfit: "
"""Begins the description of content that a reader must refuse if it reads it at all."""

Array = np.ndarray[Any, Any]


def _nan(array: Array, draw: np.random.Generator) -> Array:
    return _with_value(array, draw, np.nan)


def _infinite(array: Array, draw: np.random.Generator) -> Array:
    return _with_value(array, draw, np.inf)


def _huge(array: Array, draw: np.random.Generator) -> Array:
    return _with_value(array, draw, 1e200)


def _with_value(array: Array, draw: np.random.Generator, value: float) -> Array:
    if array.dtype.kind not in "fiub" or not array.size:
        return array
    keeps = array.dtype.kind == "f" and not np.isfinite(value)
    changed = np.array(array, dtype=array.dtype if keeps else np.float64).reshape(-1)
    changed[int(draw.integers(0, changed.size))] = value
    return changed.reshape(array.shape)


UNFIT_CHANGES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "a NaN": _nan,
    "an infinite value": _infinite,
    "1e200": _huge,
}

CHANGES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "flat": lambda array, draw: array.reshape(-1),
    "one more axis": lambda array, draw: array[None],
    "transposed": lambda array, draw: array.T,
    "no rows": lambda array, draw: array[:0] if array.ndim else array.reshape(0),
    "fewer rows": lambda array, draw: array[: len(array) // 2] if array.ndim else array,
    "more rows": lambda array, draw: np.concatenate([array, array]) if array.ndim else array,
    "fewer columns": lambda array, draw: array[..., :-1] if array.ndim else array,
    "a single number": lambda array, draw: np.array(3.0),
    "as float64": lambda array, draw: _cast(array, np.float64),
    "as int8": lambda array, draw: _cast(array, np.int8),
    "as uint64": lambda array, draw: _cast(array, np.uint64),
    "as complex": lambda array, draw: _cast(array, np.complex64),
    "as bool": lambda array, draw: _cast(array, np.bool_),
    "as text": lambda array, draw: np.asarray(array).astype("S8"),
    "all negative": lambda array, draw: -np.abs(_cast(array, np.float32)) - 1,
    "all zero": lambda array, draw: np.zeros_like(array),
}


def _cast(array: Array, dtype: Any) -> Array:
    if array.dtype.kind not in "fiub":
        return np.zeros(array.shape, dtype)
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def _changed(array: Array, draw: np.random.Generator) -> tuple[Array, str]:
    if draw.random() < 0.3:
        name = str(draw.choice(list(UNFIT_CHANGES)))
        return UNFIT_CHANGES[name](array, draw), UNFIT + name
    name = str(draw.choice(list(CHANGES)))
    return CHANGES[name](array, draw), name


def edit_hdf5(path: Path, draw: np.random.Generator) -> str:
    """A dataset, a link or an attribute of an HDF5 file changes."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
        name = str(draw.choice(sorted(names)))
        choice = draw.random()
        if choice < 0.4:
            attributes = dict(file[name].attrs)
            array, what = _changed(file[name][()], draw)
            del file[name]
            try:
                file[name] = array
            except TypeError:
                return f"{name} removed"
            file[name].attrs.update(attributes)
            return what if what.startswith(UNFIT) else f"{name}: {what}"
        if choice < 0.7:
            return _edit_attribute(file, names, draw)
        return _edit_link(file, path, name, draw)


def _edit_attribute(file: h5py.File, names: list[str], draw: np.random.Generator) -> str:
    owners = [owner for owner in (file, *(file[name] for name in sorted(names))) if len(owner.attrs)]
    if not owners:
        return "nothing"
    owner = owners[int(draw.integers(0, len(owners)))]
    name = str(draw.choice(sorted(owner.attrs)))
    values = [*text_edits.VALUES, np.zeros(0), np.arange(3), b"\xff\xfe", "x" * 60_000, np.float64("nan"), -5.0]
    value = values[int(draw.integers(0, len(values)))]
    if isinstance(value, dict) or value is None or draw.random() < 0.15:
        del owner.attrs[name]
        return f"attribute {name} removed"
    try:
        owner.attrs[name] = h5py.Empty("f8") if isinstance(value, list) and not value else value
    except (TypeError, ValueError, OverflowError):
        owner.attrs[name] = h5py.Empty("f8")
    return f"attribute {name} = {str(value)[:30]!r}"


def _edit_link(file: h5py.File, path: Path, name: str, draw: np.random.Generator) -> str:
    shape, dtype = file[name].shape, file[name].dtype
    attributes = dict(file[name].attrs)
    del file[name]
    choice = str(
        draw.choice(
            ["removed", "renamed", "group", "soft", "soft loop", "external link", "virtual", "external file", "no data"]
        )
    )
    if choice == "renamed":
        file.create_dataset(f"{name}_", data=np.zeros(shape, dtype))
    elif choice == "group":
        file.create_group(name)
    elif choice == "soft":
        file[name] = h5py.SoftLink("/nowhere")
    elif choice == "soft loop":
        file[name] = h5py.SoftLink(f"/{name}")
    elif choice == "external link":
        file[name] = h5py.ExternalLink("missing.h5", "/features")
    elif choice == "virtual":
        layout = h5py.VirtualLayout(shape=shape, dtype=dtype)
        if len(shape):
            layout[...] = h5py.VirtualSource("missing.h5", name, shape=shape)
        file.create_virtual_dataset(name, layout)
        file[name].attrs.update(attributes)
        return f"{UNFIT}{name} is virtual, without a source"
    elif choice == "external file":
        foreign = path.with_name("foreign.bin")
        foreign.write_bytes(bytes(range(60)) * 2000)
        file.create_dataset(name, shape, dtype, external=[(str(foreign), 0, h5py.h5f.UNLIMITED)])
        file[name].attrs.update(attributes)
        return f"{UNFIT}{name} is stored in another file"
    elif choice == "no data":
        file[name] = h5py.Empty("f4")
    return f"{name}: {choice}"


def edit_npz(path: Path, draw: np.random.Generator) -> str:
    """An array of a NumPy archive changes."""
    with np.load(path) as archive:
        arrays = dict(archive)
    return _rewrite(arrays, draw, lambda changed: np.savez(path, **changed))


def edit_npy(path: Path, draw: np.random.Generator) -> str:
    """The array of a NumPy file changes."""
    array, what = _changed(np.load(path), draw)
    if draw.random() < 0.1:
        array, what = np.array([{"a": 1}], dtype=object), "an object"
    np.save(path, array)
    return what


def edit_mat(path: Path, draw: np.random.Generator) -> str:
    """A variable of a MATLAB file changes."""
    arrays = {name: value for name, value in scipy.io.loadmat(path).items() if not name.startswith("__")}
    return _rewrite(arrays, draw, lambda changed: save_mat(path, changed))


def save_mat(path: Path, variables: dict[str, Any]) -> None:
    """Write a MATLAB file without its date."""
    scipy.io.savemat(path, variables)
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(116) + path.read_bytes()[116:])


def edit_values(path: Path, draw: np.random.Generator) -> str:
    """Raw numbers of float16: one of them is NaN or infinite."""
    values = np.frombuffer(path.read_bytes(), np.float16).copy()
    values[int(draw.integers(0, len(values)))] = draw.choice([np.nan, np.inf, -np.inf])
    path.write_bytes(values.tobytes())
    return f"{UNFIT}a NaN or an infinite value"


def edit_safetensors(path: Path, draw: np.random.Generator) -> str:
    """A tensor or the metadata of a safetensors file changes."""
    with safe_open(str(path), framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata() or {})
    if metadata and draw.random() < 0.4:
        key = str(draw.choice(sorted(metadata)))
        try:
            tree, what = text_edits.edited_tree(json.loads(metadata[key]), draw)
            metadata[key] = json.dumps(tree)
        except json.JSONDecodeError:
            metadata[key], what = "{", "broken"
        _save_tensors(path, arrays, metadata)
        return f"metadata {key}: {what}"
    return _rewrite(arrays, draw, lambda changed: _save_tensors(path, changed, metadata))


def edit_official(path: Path, draw: np.random.Generator) -> str:
    """Official weights change, or have a tensor of another model besides."""
    if draw.random() < 0.6:
        return edit_safetensors(path, draw)
    with safe_open(str(path), framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name = str(draw.choice(["online_encoder.qkv.weight", "feature.3.weight", "cls_token", "norm.running_mean"]))
    _save_tensors(path, {**arrays, name: np.ones((2, 3), np.float32)}, {})
    return f"{UNFIT}{name} besides"


def edit_zarr(path: Path, draw: np.random.Generator) -> str:
    """The metadata of a zarr array change as any tree does, or describe objects that are pickled."""
    if draw.random() < 0.7:
        return text_edits.edit_json(path, draw)
    tree = json.loads(path.read_text(encoding="utf-8"))
    choice = str(draw.choice(["a pickle codec", "objects", "no fill value"]))
    if choice == "a pickle codec":
        if path.name == ".zarray":
            tree["filters"] = [{"id": "pickle", "protocol": 5}]
        else:
            tree["codecs"] = [*tree["codecs"], {"name": "numcodecs.pickle", "configuration": {}}]
    elif choice == "objects":
        tree["dtype" if path.name == ".zarray" else "data_type"] = "|O"
    else:
        tree["fill_value"] = None
    path.write_text(json.dumps(tree), encoding="utf-8")
    return choice if choice == "no fill value" else f"{UNFIT}{choice}"


def _save_tensors(path: Path, arrays: dict[str, Array], metadata: dict[str, str]) -> None:
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
    save_file(tensors, path, metadata=metadata or None)


def edit_torch(path: Path, draw: np.random.Generator) -> str:
    """What torch.save wrote changes: the tensor itself, or what stands in its place."""
    content = torch.load(path, weights_only=False)
    if isinstance(content, dict):
        return _rewrite(
            {name: value.numpy() for name, value in content.items()},
            draw,
            lambda changed: torch.save({name: torch.from_numpy(value) for name, value in changed.items()}, path),
        )
    tensor = torch.as_tensor(content)
    options: dict[str, Callable[[], Any]] = {
        "with gradients": lambda: tensor.clone().requires_grad_(),
        "sparse": lambda: tensor.to_sparse(),
        "a dict": lambda: {"features": tensor},
        "a list": lambda: [tensor],
        "an array": lambda: tensor.numpy(),
        "a parameter": lambda: torch.nn.Parameter(tensor),
        "bfloat16": lambda: tensor.bfloat16(),
        "quantized": lambda: torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8),
        "expanded": lambda: tensor[:1].expand(10**7, -1),
        "meta": lambda: torch.empty(10, 4, device="meta"),
        "None": lambda: None,
        "text": lambda: "text",
    }
    if draw.random() < 0.5:
        what = str(draw.choice(list(options)))
        torch.save(options[what](), path)
        return what
    array, what = _changed(tensor.numpy(), draw)
    torch.save(torch.from_numpy(np.ascontiguousarray(array)) if array.dtype.kind != "S" else {}, path)
    return what


def edit_parquet(path: Path, draw: np.random.Generator) -> str:
    """A column of a table changes."""
    table = pd.read_parquet(path)
    column = str(draw.choice(list(table.columns)))
    choice = str(
        draw.choice(["drop", "null", "nan", "text", "number", "list", "bytes", "category", "double rows", "no rows"])
    )
    replacements: dict[str, Any] = {
        "null": None,
        "nan": float("nan"),
        "text": "text",
        "number": 1e300,
        "bytes": b"\xff",
    }
    if choice == "drop":
        table = table.drop(columns=column)
    elif choice in replacements:
        table[column] = [replacements[choice]] * len(table)
    elif choice == "list":
        table[column] = [[1.0, float("nan")]] * len(table)
    elif choice == "category":
        table[column] = table[column].astype(str).astype("category")
    else:
        table = pd.concat([table, table]) if choice == "double rows" else table[:0]
    table.to_parquet(path, index=False)
    return f"{column}: {choice}"


def edit_tiff(path: Path, draw: np.random.Generator) -> str:
    """A directory of a TIFF changes: an entry, or where the next one lies."""
    data = bytearray(path.read_bytes())
    if data[:4] != b"II*\0":
        return "nothing"
    directories = _directories(data)
    here = directories[int(draw.integers(0, len(directories)))]
    (entries,) = struct.unpack_from("<H", data, here)
    next_at = here + 2 + 12 * entries
    choice = str(draw.choice(["loop", "next", "tag", "kind", "count", "value", "value", "value"]))
    entry = here + 2 + 12 * int(draw.integers(0, entries))
    (tag,) = struct.unpack_from("<H", data, entry)
    huge = int(draw.choice([0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, len(data) - 4]))
    if choice == "loop":
        struct.pack_into("<I", data, next_at, int(draw.choice([here, directories[0]])))
    elif choice == "next":
        struct.pack_into("<I", data, next_at, int(draw.integers(0, 2 * len(data))))
    elif choice == "tag":
        struct.pack_into("<H", data, entry, int(draw.integers(250, 340)))
    elif choice == "kind":
        struct.pack_into("<H", data, entry + 2, int(draw.integers(0, 20)))
    else:
        struct.pack_into("<I", data, entry + (4 if choice == "count" else 8), huge)
    path.write_bytes(bytes(data))
    return f"directory at {here}, {choice} (tag {tag}, {huge})"


def _directories(data: bytearray) -> list[int]:
    (place,) = struct.unpack_from("<I", data, 4)
    found: list[int] = []
    while place and place not in found:
        found.append(place)
        (entries,) = struct.unpack_from("<H", data, place)
        (place,) = struct.unpack_from("<I", data, place + 2 + 12 * entries)
    return found


def _rewrite(arrays: dict[str, Array], draw: np.random.Generator, save: Callable[[dict[str, Array]], None]) -> str:
    name = str(draw.choice(sorted(arrays)))
    choice = draw.random()
    if choice < 0.1:
        rest = {key: value for key, value in arrays.items() if key != name}
        save(rest or {"other": np.zeros(1, np.float32)})
        return f"{name} removed"
    if choice < 0.2:
        save({f"{key}_" if key == name else key: value for key, value in arrays.items()})
        return f"{name} renamed"
    array, what = _changed(np.asarray(arrays[name]), draw)
    try:
        save({**arrays, name: array})
    except TypeError:  # text in a file of tensors
        save({**arrays, name: np.zeros(3, np.float32)})
    # names of bags may be any numbers
    unfit = what.startswith(UNFIT) and not name.startswith("bag")
    return what if unfit else f"{name}: {what.removeprefix(UNFIT)}"
