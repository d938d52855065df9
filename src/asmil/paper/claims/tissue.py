"""Claims that real tissue refutes: differences between methods on TCGA cohorts, paired by patient.

The records of the study on real tissue compare in one metric with one reference, on other data sets than the paper's.
So they can refute a general claim, by a clear difference in the other direction after Holm's correction over all
differences of the claim; they support none. Where they do not refute a claim, the other rules decide it, and its
reason says what real tissue shows. Results of the user come before both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from io import StringIO
from typing import Any

import pandas as pd

from asmil.paper.claims.ruling import Ruling
from asmil.paper.claims.runs import Difference, corrected, listed
from asmil.reporting import Interval
from asmil.settings.config import Settings

RECORDS = "data/real_tissue.csv"
"""In the package: the rows of docs/results/real_tissue that claims name, written by `python docs/evidence.py`."""


class OnTissue(Settings):
    """Differences that a claim implies to be above 0: (record, cohort, variant), each with the record's reference.

    Rows without a record are not run yet; they are counted in the reason.
    """

    above: tuple[tuple[str, str, str], ...]

    def judged(self, otherwise: Ruling) -> Ruling:
        """Refuted by real tissue, or as decided otherwise, with what real tissue shows."""
        records = _records()
        known = [key for key in self.above if key in records]
        if not known:
            return otherwise
        differences = corrected([_difference(*key[1:], records[key]) for key in known])
        missing = len(self.above) - len(known)
        shown = listed(differences) + (f"; {missing} not run" if missing else "")
        if any(difference.sign < 0 for difference in differences):
            why = f"real tissue shows the opposite: {shown}; on stand-ins {otherwise.verdict}"
            return replace(otherwise, verdict="not supported", how="tissue", why=why, run=f"asmil/paper/{RECORDS}")
        return replace(otherwise, why=f"{otherwise.why}; on real tissue {shown}")


def _difference(cohort: str, variant: str, row: Mapping[str, Any]) -> Difference:
    name = f"'{variant}' − '{row['reference']}' on '{cohort}', {row['metric']}"
    interval = Interval(row["difference_low"], row["difference_high"])
    return Difference(name, (cohort, row["metric"]), row["difference"], interval, row["p"], row["patients"])


@cache
def _records() -> dict[tuple[str, str, str], dict[str, Any]]:
    text = files("asmil.paper").joinpath(RECORDS).read_text(encoding="utf-8")
    table = pd.read_csv(StringIO(text))
    keys = table[["record", "cohort", "variant"]].itertuples(index=False, name=None)
    return dict(zip(keys, table.to_dict("records"), strict=True))  # type: ignore[arg-type]
