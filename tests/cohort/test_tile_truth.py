"""Tables of the tumor tiles of slides."""

import numpy as np
import pandas as pd
import pytest

from asmil import AsmilError
from asmil.cohort.tile_truth import read_tile_truth

TABLE = pd.DataFrame({"slide": ["a", "a", "b7"], "x": [0, 512, 0], "y": [0, 0, 512], "tumor": [0, 1, 1]})


def write(path, table):
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(("column", "value"), [("x", np.inf), ("y", -np.inf), ("tumor", np.inf), ("tumor", 2)])
def test_a_row_without_a_place_or_a_truth_is_named(suffix, column, value, tmp_path):
    assert read_tile_truth(write(tmp_path / f"good{suffix}", TABLE)).equals(TABLE)
    wrong = TABLE.astype({column: float})
    wrong.loc[2, column] = value
    with pytest.raises(AsmilError, match=rf"tiles{suffix}.*row 3 .*b7"):
        read_tile_truth(write(tmp_path / f"tiles{suffix}", wrong))


def test_columns_that_a_measure_needs_are_asked_for(tmp_path):
    with pytest.raises(AsmilError, match=r"tiles\.csv.*focus"):
        read_tile_truth(write(tmp_path / "tiles.csv", TABLE), ("focus",))
