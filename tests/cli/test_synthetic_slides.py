"""The verb `synthetic-slides`."""

SETTINGS = ("--slides", 2, "--mpp", 2, "--side-mm-min", 0.5, "--side-mm-max", 0.6)


def test_slides_are_made_and_summed_up(asmil_here, tmp_path):
    done = asmil_here("synthetic-slides", tmp_path, *SETTINGS, "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("train", "mm²", str(tmp_path / "cohort.csv")))
    assert len(list((tmp_path / "slides").glob("*.tif"))) == 2
    again = asmil_here("synthetic-slides", tmp_path, *SETTINGS)
    assert again.stdout == done.stdout


def test_mistakes_are_one_sentence(asmil_here, tmp_path):
    asmil_here("synthetic-slides", tmp_path, *SETTINGS, "--workers", 1)
    other = asmil_here("synthetic-slides", tmp_path, *SETTINGS, "--seed", 3)
    assert other.returncode == 1
    assert "seed: there 0, asked 3" in other.stderr
    bad = asmil_here("synthetic-slides", tmp_path / "new", "--pen", 3)
    assert bad.returncode == 1
    assert "setting 'pen' = 3.0" in bad.stderr
    assert "Traceback" not in bad.stderr
    assert not (tmp_path / "new").exists()
