"""Methods that estimate how certain they are say so beside their predictions."""

import pandas as pd
import pytest

from asmil.runs.predictions import read_predictions

COLUMNS = {"mutual_information", "entropy", "variance_normal", "variance_tumor"}


def uncertainties(table: pd.DataFrame) -> set[str]:
    return {name.removeprefix("uncertainty_") for name in table if name.startswith("uncertainty_")}


@pytest.mark.usefixtures("undrawn_figures")
def test_runs_and_new_predictions_have_the_columns(small_cohort, tmp_path, asmil_here):
    out = tmp_path / "run"
    settings = ("--set", "training.epochs=1", "--set", "model.attention=8", "--set", "record.attention=none", "-q")
    done = asmil_here("train", small_cohort, "--method", "simple_mil", *settings, "-o", out)
    assert done.returncode == 0, done.stderr
    table = read_predictions(out / "predictions.parquet")
    assert uncertainties(table) == COLUMNS
    assert (table["uncertainty_entropy"] > table["uncertainty_mutual_information"]).all()
    assert "mutual information" in (out / "report.html").read_text()
    done = asmil_here("predict", out, small_cohort.parent / "features", "--out", tmp_path / "new.csv")
    assert done.returncode == 0, done.stderr
    new = pd.read_csv(tmp_path / "new.csv").set_index("slide")
    assert uncertainties(new) == COLUMNS
    known = table.set_index("slide")["uncertainty_mutual_information"]
    assert new["uncertainty_mutual_information"][known.index].to_numpy() == pytest.approx(known.to_numpy(), rel=1e-4)
