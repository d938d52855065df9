"""One prediction a patient, where a run predicted slide by slide."""

from __future__ import annotations

import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.run import Run


def join_patients(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """One row a patient, fold and seed: the mean of the predictions of its slides, named after the patient.

    Slides of a patient that have different targets are refused: their mean would have none.
    """
    truth = list(run.truth_columns)
    for patient, part in table[["patient", *truth]].drop_duplicates().groupby("patient"):
        if len(part) > 1:
            found = " and ".join(", ".join(map(str, row)) for row in part[truth].itertuples(index=False))
            raise AsmilError(
                f"{run.path}: the slides of patient {patient} have different targets ({found}); "
                "take slides as they are (--unit slide)"
            )
    kept = dict.fromkeys(run.prediction_columns, "mean") | dict.fromkeys(truth, "first")
    joined = table.groupby(["patient", "fold", "seed", "role"], as_index=False, sort=False).agg(kept)
    return joined.assign(slide=joined["patient"])
