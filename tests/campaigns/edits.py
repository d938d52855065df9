"""Edits of a file's structure, by its form: valid files with content that nobody should write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.campaigns import array_edits, excel_edits, text_edits
from tests.campaigns.array_edits import UNFIT

__all__ = ["FORMS_OF_FOLDERS", "FORMS_OF_PARTS", "OF_FORM", "UNFIT"]

OF_FORM: dict[str, Callable[[Path, np.random.Generator], str]] = {
    "csv": text_edits.edit_csv,
    "tsv": text_edits.edit_tsv,
    "xlsx": excel_edits.edit_xlsx,
    "json": text_edits.edit_json,
    "jsonl": text_edits.edit_jsonl,
    "text": text_edits.edit_text,
    "xml": text_edits.edit_text,
    "yaml": text_edits.edit_yaml,
    "hdf5": array_edits.edit_hdf5,
    "mat": array_edits.edit_mat,
    "npy": array_edits.edit_npy,
    "npz": array_edits.edit_npz,
    "official": array_edits.edit_official,
    "outlines": text_edits.edit_outlines,
    "parquet": array_edits.edit_parquet,
    "safetensors": array_edits.edit_safetensors,
    "tiff": array_edits.edit_tiff,
    "torch": array_edits.edit_torch,
    "values": array_edits.edit_values,
    "zarr": array_edits.edit_zarr,
}

FORMS_OF_FOLDERS = ("tiff", "picture")
FORMS_OF_PARTS = ("chunk",)
"""Files of which an incomplete copy may lack one, and a reader must notice."""
