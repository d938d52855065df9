import pytest
from hypothesis import given
from hypothesis import strategies as st

from asmil.cohort.consistency import mixture_problems, refuse_mixed
from asmil.cohort.features import FeatureInfo, FeatureSource
from asmil.errors import AsmilError


def info(name="a", **known):
    source = FeatureSource.parse(f"{name}.h5")
    basics = {"layout": "asmil", "n_tiles": 9, "width": 8, "dtype": "float16", "n_bytes": 144}
    return FeatureInfo(source=source, **(basics | known))


def test_files_made_in_one_way_pass_and_unknowns_do_not_count():
    refuse_mixed([])
    refuse_mixed([info(encoder="uni", tile_um=128.0, tile_px=256), info(), info(layout="trident", magnification=20)])


def test_empty_slides_have_no_width_to_compare():
    refuse_mixed([info(), info(n_tiles=0, width=0)])


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (
            {"encoder": "uni"},
            {"encoder": "conch"},
            r"uni in 2.*a\.h5.*conch in 1.*c\.h5",
        ),
        (
            {"encoder": "uni", "weights_hash": "1" * 64},
            {"encoder": "uni", "weights_hash": "2" * 64},
            "weights 111111111111.*weights 222222222222",
        ),
        ({"width": 8}, {"width": 16}, "8 features.*16 features"),
        ({"tile_um": 128.0, "tile_px": 256}, {"tile_um": 128.0, "tile_px": 128}, "resolutions"),
        ({"magnification": 20.0}, {"magnification": 10.0}, "0.5 um/px.*1 um/px"),
        ({"tile_um": 128.0, "tile_px": 256}, {"tile_um": 256.0, "tile_px": 512}, "128 um.*256 um"),
        ({"tile_px": 256}, {"tile_px": 512}, "256 px.*512 px"),
    ],
)
def test_mixtures_name_an_example_of_each_kind(one, other, message):
    with pytest.raises(AsmilError, match=message):
        refuse_mixed([info("a", **one), info("b", **one), info("c", **other)])


@given(st.floats(0.1, 4), st.lists(st.floats(0, 0.04), min_size=1, max_size=8))
def test_scanners_of_one_magnification_are_one_kind(mpp, deviations):
    refuse_mixed([info(tile_um=256 * mpp * (1 + share), tile_px=256) for share in deviations])


def test_tissue_found_in_two_ways_is_a_warning_that_stops_nothing():
    one, other = (f'{{"settings": {{"tissue": "{method}"}}, "slide": {{}}}}' for method in ("auto", "clam"))
    infos = [info("a", extraction=one), info("b", extraction=other), info("c")]
    (problem,) = mixture_problems(infos)
    assert (problem.severity, "asmil extract" in str(problem)) == ("warning", True)
    refuse_mixed(infos)


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', '{"settings": 3}', "[" * 100_000])
def test_a_damaged_record_of_an_extraction_names_its_file(text):
    whole = info("whole", extraction='{"settings": {"a": 1}}')
    (problem,) = mixture_problems([whole, info("torn", extraction=text)])
    assert (problem.severity, "torn.h5" in str(problem)) == ("error", True)
