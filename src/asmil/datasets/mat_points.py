"""Reads the points of many MATLAB files, in a separate process: damaged files can crash SciPy's reader.

    python mat_points.py POINTS.npz FILE.mat ...

It writes the variable `detection` (N x 2) of each file under the number of the file, or prints which file cannot be
read and exits with REFUSED. It imports nothing of asmil, so that it starts quickly.
"""

from __future__ import annotations

import sys

import numpy as np
import scipy.io

REFUSED = 3


def main(out: str, *paths: str) -> int:
    """Read all files and write their points."""
    points = {}
    for number, path in enumerate(paths):
        try:
            points[str(number)] = np.asarray(scipy.io.loadmat(path)["detection"], dtype=np.float64).reshape(-1, 2)
        except Exception as error:  # noqa: BLE001 - SciPy raises many kinds of errors on damaged files
            print(f"{path} cannot be read as a .mat file with `detection` ({' '.join(str(error).split())})")
            return REFUSED
    np.savez(out, **points)  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
