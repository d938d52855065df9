"""Benchmark sets from MATLAB files (version 7 and before)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from asmil.classic import mat_reader
from asmil.classic.bag_set import BagSet
from asmil.classic.npz_file import from_arrays
from asmil.cohort.numpy_files import read_npz
from asmil.errors import AsmilError

READER = Path(mat_reader.__file__)
TIMEOUT_S = 300.0


def read_mat(path: Path) -> BagSet:
    """A .mat file of one of the three forms in `mat_reader.FORMS`, read in a process of its own."""
    with TemporaryDirectory(prefix="asmil-mat-") as folder:
        out = Path(folder) / "arrays.npz"
        # -P: no module beside the program, or in the working folder, is taken for one of SciPy's
        command = [sys.executable, "-P", "-X", "utf8", str(READER), str(path.absolute()), str(out)]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, encoding="utf-8")
        except subprocess.TimeoutExpired:
            raise AsmilError(
                f"{path}: it cannot be read as a .mat file within {TIMEOUT_S:g} s; write it anew with '-v7'"
            ) from None
        if ended.returncode == mat_reader.REFUSED:
            raise AsmilError(f"{path}: {ended.stdout.strip()}")
        if ended.returncode != 0:
            raise AsmilError(
                f"{path}: it cannot be read as a .mat file (its reader ended with code {ended.returncode}: the file is "
                "damaged); write it anew with '-v7'"
            )
        return from_arrays(path, read_npz(out))
