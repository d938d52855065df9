"""CLAM, TRIDENT, STAMP and LazySlide write features for us, and read ours.

Their own code finds tissue, tiles, writes and reads. A stand-in of a few lines makes their imports of timm and
torchvision work, and an encoder with drawn weights takes the place of a trained one.
"""

import json
from importlib.util import find_spec

import h5py
import numpy as np
import pytest

from asmil.cohort.features import FeatureSource, inspect_features, read_bag
from asmil.cohort.manifest import load_cohort
from peer_software import PROGRAMS, STAND_INS, module, run, source

pytestmark = pytest.mark.peers

HELPERS = (PROGRAMS, STAND_INS)
SLIDES = [f"slide-{number:04d}" for number in range(4)]


@pytest.fixture(scope="module")
def clam():
    return source("CLAM", "create_patches_fp.py")


@pytest.fixture(scope="module")
def stamp_paths(tmp_path_factory):
    """STAMP asks for its installed version, which a clone does not have."""
    clone = source("STAMP", "src/stamp/__init__.py")
    for name in ("beartype", "jaxtyping", "lightning", "torchmetrics", "tqdm"):
        module(name, name)
    folder = tmp_path_factory.mktemp("installed") / "stamp-2.5.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: stamp\nVersion: 2.5.0\n")
    return (*HELPERS, clone / "src", folder.parent)


@pytest.fixture(scope="module")
def trident_paths():
    clone = source("TRIDENT", "trident/__init__.py")
    for name in ("geopandas", "skimage", "einops", "tqdm"):
        module(name, name)
    return (*HELPERS, clone)


@pytest.fixture(scope="module")
def lazyslide_paths():
    for name in ("wsidata", "lazyslide", "lazyslide_models"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: run make test-peers")
    return HELPERS


def answer(program, *arguments, paths):
    """The last line that a program prints, as JSON."""
    return json.loads(run(PROGRAMS / program, *arguments, paths=paths).splitlines()[-1])


def checked(lab, features, layout):
    """A cohort of these features, each with coordinates of the same tiles."""
    cohort = load_cohort(lab / "cohort.csv", features=features)
    assert len(cohort) == 4
    for slide in cohort.slides:
        info, bag = inspect_features(slide.source), read_bag(slide.source, slide.slide)
        assert (info.layout, info.width) == (layout, 32)
        assert len(bag) == info.n_tiles > 50
        assert np.isfinite(bag.features.numpy()).all()
    return cohort


def test_clam_writes_for_us(clam, lab, tmp_path):
    paths, results, features = (STAND_INS, clam), tmp_path / "results", tmp_path / "features"
    tiling = ("--patch_size", 128, "--step_size", 128, "--preset", "bwh_biopsy.csv", "--seg", "--patch", "--stitch")
    command = ("create_patches_fp.py", "--source", lab / "slides", "--save_dir", results, *tiling)
    run(*command, paths=paths, cwd=clam)
    run(
        *("extract_features_fp.py", "--data_h5_dir", results, "--data_slide_dir", lab / "slides"),
        *("--slide_ext", ".tif", "--csv_path", results / "process_list_autogen.csv", "--feat_dir", features),
        paths=paths,
        cwd=clam,
    )
    checked(lab, features, "clam")
    for slide in SLIDES:
        theirs = read_bag(FeatureSource(features / "pt_files" / f"{slide}.pt"), slide)
        ours = read_bag(FeatureSource(lab / "features" / f"{slide}.h5"), slide)
        assert {*map(tuple, theirs.coords.tolist())} == {*map(tuple, ours.coords.tolist())}


def test_clam_reads_ours(clam, taken_along, clam_table):
    told = answer("clam_read.py", clam_table, taken_along / "clam", paths=(STAND_INS, clam))
    assert sorted(told["shapes"]) == SLIDES
    assert np.mean(told["losses"][-4:]) < np.mean(told["losses"][:4])


def test_stamp_writes_for_us(stamp_paths, lab, tmp_path):
    run(PROGRAMS / "stamp_write.py", lab / "slides", tmp_path / "stamp", paths=stamp_paths)
    cohort = checked(lab, tmp_path / "stamp", "stamp")
    info = inspect_features(cohort.slides[0].source)
    assert (info.tile_um, info.tile_px, info.encoder, info.coords_unit) == (112, 224, "drawn", "um")


def test_stamp_reads_ours(stamp_paths, lab, taken_along):
    told = answer("stamp_read.py", taken_along / "stamp", paths=stamp_paths)
    assert told["type"] == "tile"
    assert sorted(told["slides"]) == SLIDES
    for slide, seen in told["slides"].items():
        ours = read_bag(FeatureSource(lab / "features" / f"{slide}.h5"), slide)
        assert seen["shape"] == list(ours.features.shape)
        assert seen["sum"] == pytest.approx(float(ours.features.double().sum()), rel=1e-3)
        assert seen["first_um"] == pytest.approx((ours.coords[0].double() * 0.5).tolist())
        assert (seen["tile_um"], seen["mpp"]) == (64.0, 0.5)


def test_trident_writes_for_us(trident_paths, lab, tmp_path):
    run(PROGRAMS / "trident_write.py", lab / "slides", tmp_path / "job", paths=trident_paths)
    for place in (tmp_path / "job", tmp_path / "job" / "20x_128px_0px_overlap" / "features_drawn"):
        cohort = checked(lab, place, "trident")
        info = inspect_features(cohort.slides[0].source)
        assert (info.tile_px, info.tile_px_level0, info.magnification, info.encoder) == (128, 128, 20, "drawn")


def test_trident_reads_ours(trident_paths, lab, tmp_path):
    slide = SLIDES[0]
    ours = lab / "features" / f"{slide}.h5"
    run(PROGRAMS / "trident_read.py", lab / "slides" / f"{slide}.tif", ours, tmp_path, paths=trident_paths)
    with h5py.File(tmp_path / f"{slide}.h5") as file:
        vector = np.squeeze(file["features"][:])
    mean = read_bag(FeatureSource(ours), slide).features.float().mean(0).numpy()
    np.testing.assert_allclose(vector, mean, rtol=0.02, atol=0.02)


def test_lazyslide_writes_for_us(lazyslide_paths, lab, tmp_path):
    slide = lab / "slides" / f"{SLIDES[0]}.tif"
    run(PROGRAMS / "lazyslide_write.py", slide, tmp_path, paths=lazyslide_paths)
    files = [FeatureSource(tmp_path / f"{slide.stem}{ending}") for ending in (".h5ad", ".zarr")]
    infos, bags = [inspect_features(file) for file in files], [read_bag(file, slide.stem) for file in files]
    for info in infos:
        assert (info.layout, info.tile_px, info.tile_px_level0, info.tile_um) == ("anndata", 128, 128, 64)
    assert len(bags[0]) > 50
    assert bags[0].features.equal(bags[1].features)
    assert bags[0].coords.equal(bags[1].coords)


def test_lazyslide_reads_ours(lazyslide_paths, lab):
    slide = SLIDES[0]
    ours = lab / "features" / f"{slide}.h5"
    told = answer("lazyslide_read.py", lab / "slides" / f"{slide}.tif", ours, paths=lazyslide_paths)
    bag = read_bag(FeatureSource(ours), slide)
    assert told["shape"] == list(bag.features.shape)
    assert told["base_width"] == 128
    assert told["first"] in (bag.coords[0].tolist(), (bag.coords[0] + 64).tolist())
