"""New slides are extracted as those of a run, or refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from asmil.errors import AsmilError
from asmil.extraction.settings import parse_extraction
from asmil.runs.new_slides import extraction_plan


def test_a_run_whose_tissue_was_read_from_files_cannot_find_that_of_new_slides():
    settings = parse_extraction({"tissue": {"method": "files"}}).model_dump(mode="json")
    with pytest.raises(AsmilError, match=r"runs/a: .*--tissue"):
        extraction_plan(SimpleNamespace(features={"extraction": settings}), Path("runs/a"), None)
