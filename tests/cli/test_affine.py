import json

import numpy as np
import pandas as pd
import pytest
import torch


@pytest.fixture
def cohort(tmp_path):
    """Six slides of 4, 8, 9, 10, 30 and 8 tiles with 8 features; the last one repeats a tile."""
    features = tmp_path / "features"
    features.mkdir()
    rows = []
    for number, n in enumerate((4, 8, 9, 10, 30, 8)):
        tiles = torch.from_numpy(np.random.default_rng(number).standard_normal((n, 8)))
        if number == 5:
            tiles[1] = tiles[0]
        torch.save(tiles, features / f"s{number}.pt")
        rows.append({"slide": f"s{number}"})
    pd.DataFrame(rows).to_csv(tmp_path / "cohort.csv", index=False)
    return tmp_path / "cohort.csv"


def test_both_shares_are_printed_beside_the_papers(cohort, asmil_here):
    done = asmil_here("affine", cohort)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "bag feature 3 of 6 50.00 % 50.00 % 2 4" in lines
    assert "its softmax 4 of 6 66.67 % 66.67 % 3 3" in lines
    told = " ".join(done.stdout.split())
    for part in ("6 slides", "4 to 30 tiles", "stored as float64", "99.24 %", "99.80 %", "96.08 %"):
        assert part in told


def test_json_and_table(cohort, asmil_here, tmp_path):
    out = tmp_path / "tables" / "affine.csv"
    done = asmil_here("affine", cohort, "--json", "--deduplicate", "--out", out)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["all_tiles"]["plain"]["share"] == 0.5
    assert told["distinct_tiles"]["plain"]["dependent"] == 2
    assert told["distinct_tiles"]["softmax"]["dependent"] == 3
    assert told["problems"] == []
    table = pd.read_csv(out).set_index("slide")
    assert table["plain_dependent"].tolist() == [False, False, False, True, True, True]
    assert table["softmax_by_count"].tolist() == [False, False, True, True, True, False]
    assert table.loc["s5", ["n_tiles", "n_distinct", "plain_rank"]].tolist() == [8, 7, 6]


def test_bad_slides_are_named_at_the_end_and_the_others_counted(cohort, asmil_here, tmp_path):
    torch.save(torch.full((4, 8), torch.nan), cohort.parent / "features" / "s0.pt")
    (cohort.parent / "features" / "s3.pt").unlink()
    done = asmil_here("affine", cohort, "--out", tmp_path / "a.csv")
    assert done.returncode == 1
    assert "2 of 4" in done.stdout
    assert "Traceback" not in done.stderr
    for part in ("2 of 6", "s0: 4 of 4 tiles", "slide 's3'"):
        assert part in done.stderr
    assert len(pd.read_csv(tmp_path / "a.csv")) == 4


def test_coarse_types_are_told(cohort, asmil_here):
    for path in (cohort.parent / "features").iterdir():
        torch.save(torch.load(path, weights_only=True).to(torch.bfloat16), path)
    done = asmil_here("affine", cohort)
    told = " ".join(done.stdout.split())
    assert "rounding" in told
    assert "stored as bfloat16" in told


def test_a_cohort_that_is_not_there_is_one_sentence(asmil_here, tmp_path):
    done = asmil_here("affine", tmp_path / "none.csv")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "none.csv" in done.stderr
