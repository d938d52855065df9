"""The record of verdicts is what the rules decide from the trainings that come with the package."""

import json

from asmil.paper.claims.listing import claims, rule
from asmil.paper.claims.measured import Measured
from shared_data import REPOSITORY


def test_the_record_of_verdicts_is_that_of_the_rules():
    stored = json.loads((REPOSITORY / "docs" / "results" / "claims.json").read_text())
    recorded = {claim["id"]: claim for claim in stored}
    measured = Measured()
    assert list(recorded) == [claim.id for claim in claims()]
    for claim in claims():
        ruling = rule(claim, measured)
        known = recorded[claim.id]
        assert (ruling.verdict, ruling.how) == (known["verdict"], known["how"]), claim.id
        assert ruling.why == known["why"] or ruling.how == "mathematics", claim.id
