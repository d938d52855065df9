"""A pack in the place of feature files."""

import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.attention.affine import cohort_dependence
from asmil.cohort.check import check_cohort
from asmil.cohort.features import (
    FeatureSource,
    Provenance,
    content_hash,
    fingerprint,
    inspect_features,
    read_bag,
    write_features,
)
from asmil.cohort.loader import BagLoader
from asmil.cohort.locate import find_features
from asmil.cohort.manifest import cohort_from_features, load_cohort
from asmil.cohort.pack.packing import pack_features
from asmil.cohort.pack.reading import Pack
from asmil.errors import AsmilError
from feature_writers import WIDTH, grid, make_slides, tiles, write_clam, write_manifest, write_stamp, write_trident

PROVENANCE = Provenance(
    encoder="uni",
    weights_hash="ab12",
    tile_um=128.0,
    tile_px=256,
    tile_px_level0=512,
    mpp=0.25,
    mpp_source="file",
    slide_width_px=9000,
    slide_height_px=7000,
    extraction='{"tissue": {}}',
)


def packed(folder, place, **options):
    report = pack_features(cohort_from_features(place).slides, folder, **options)
    assert report.problems == ()
    return report


def described(source):
    """What is known about features, without where they lie and how they are stored."""
    info = asdict(inspect_features(source))
    return {name: value for name, value in info.items() if name not in ("source", "dtype", "n_bytes")}


def test_headers_and_values_outlive_the_files(tmp_path):
    place = tmp_path / "features"
    lowres = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3), dtype=np.uint8)
    write_features(place / "a.h5", tiles(), grid(), PROVENANCE, lowres=lowres)
    write_features(place / "b.h5", tiles(1), grid(), replace(PROVENANCE, mpp=0.252, slide_width_px=12))
    sources = find_features(place)
    before = {
        name: (described(source), read_bag(source, name), fingerprint(source)) for name, source in sources.items()
    }
    hashes = {name: content_hash(source) for name, source in sources.items()}
    pack = packed(tmp_path / "c.pack", place).pack
    shutil.rmtree(place)
    found = find_features(pack.folder)
    assert list(found) == ["a", "b"]
    for name, source in found.items():
        info, bag, digest = before[name]
        assert described(source) == info
        again = read_bag(source, name)
        assert torch.equal(again.features, bag.features)
        assert torch.equal(again.coords, bag.coords)
        assert (fingerprint(source), content_hash(source)) == (digest, hashes[name])
    assert inspect_features(found["a"]).extraction == PROVENANCE.extraction
    assert torch.equal(read_bag(found["a"], "a").extras["lowres"]["tiles"], torch.from_numpy(lowres))
    assert "lowres" not in read_bag(found["b"], "b").extras
    index = json.loads((pack.folder / "index.json").read_text())
    assert (index["version"], index["dtype"], index["extractions"]) == (2, "float16", [PROVENANCE.extraction])


@pytest.mark.parametrize("write", [write_trident, write_clam, write_stamp])
def test_files_of_other_tools_say_the_same_from_a_pack(tmp_path, write):
    write(tmp_path / "features" / "a.h5", tiles(), grid(side=256))
    source = FeatureSource(tmp_path / "features" / "a.h5")
    report = packed(tmp_path / "c.pack", tmp_path / "features", dtype="float32")
    again = FeatureSource(report.pack.folder, "a")
    assert described(again) == described(source)
    one, other = read_bag(source, "a", mpp=0.5), read_bag(again, "a", mpp=0.5)
    assert torch.equal(one.features, other.features)
    assert torch.equal(one.coords, other.coords)


def test_the_resolution_of_a_manifest_is_kept(tmp_path):
    """Microns became pixels by it, and nobody else may know it later."""
    slides = make_slides(tmp_path, 1)
    write_stamp(slides[0].source.path, tiles(), grid(side=256))
    path = write_manifest(tmp_path, slides, mpp=0.5)
    report = pack_features(load_cohort(path).slides, tmp_path / "c.pack")
    source = FeatureSource(report.pack.folder, "s00")
    info = inspect_features(source)
    assert (info.mpp, info.mpp_source, info.coords_unit) == (0.5, "manifest", "px")
    assert torch.equal(read_bag(source, "s00").coords, torch.from_numpy(grid(side=512)))


def test_a_pack_stands_for_the_features_of_a_manifest(tmp_path):
    slides = make_slides(tmp_path, 8)
    path = write_manifest(tmp_path, slides)
    pack = packed(tmp_path / "c.pack", tmp_path / "features").pack
    shutil.rmtree(tmp_path / "features")
    report = check_cohort(path, pack.folder)
    assert report.ok, report.problems
    data = [file for file in pack.folder.iterdir() if file.name != "lock"]
    assert report.summary.bytes_on_disk == sum(file.stat().st_size for file in data)
    assert report.summary.encoder == "uni"
    assert len(cohort_dependence(path, pack.folder).slides) == 8
    assert [slide.slide for slide in cohort_from_features(pack.folder)] == [slide.slide for slide in slides]
    (only,) = cohort_from_features(f"{pack.folder}::s03")
    assert (only.slide, only.source.group) == ("s03", "s03")
    for cache in ("none", "memory", "disk", "auto"):
        loader = BagLoader(load_cohort(path, pack.folder).slides, cache, tmp_path / cache)
        assert torch.equal(loader.bag(4).features, torch.from_numpy(tiles(4)).half())


def test_cells_of_a_manifest_may_name_slides_of_packs(tmp_path):
    slides = make_slides(tmp_path, 3)
    packed(tmp_path / "c.pack", tmp_path / "features")
    cells = ["c.pack::s02", "", "c.pack"]
    cohort = load_cohort(write_manifest(tmp_path, slides, features=cells))
    first, second, third = (slide.source for slide in cohort)
    assert torch.equal(read_bag(first, "s00").features, torch.from_numpy(tiles(2)).half())
    assert second.path.name == "s01.h5"
    with pytest.raises(AsmilError, match=r"3 slides.*c.pack::s00"):
        read_bag(third, "s02")
    with pytest.raises(AsmilError, match="'s0'"):
        read_bag(FeatureSource(first.path, "s0"), "s0")


def test_large_bags_are_views_of_one_mapping(tmp_path):
    write_clam(tmp_path / "features" / "a.h5", tiles(0, 5000, np.float16), grid(5000))
    source = FeatureSource(packed(tmp_path / "c.pack", tmp_path / "features").pack.folder, "a")
    one, other = read_bag(source, "a"), read_bag(source, "a")
    assert one.features.data_ptr() == other.features.data_ptr()
    assert Pack.open(source.path) is Pack.open(source.path)


def test_where_memory_is_not_promised_bags_are_copied(tmp_path, monkeypatch):
    import mmap

    from asmil.cohort.pack import reading as pack_reading

    real = mmap.mmap

    def strict(number, length, **how):
        if how.get("access") != mmap.ACCESS_READ:
            raise OSError(12, "Cannot allocate memory")
        return real(number, length, **how)

    make_slides(tmp_path, 2)
    monkeypatch.setattr(pack_reading.mmap, "mmap", strict)
    packed(tmp_path / "c.pack", tmp_path / "features")
    bag = read_bag(FeatureSource(tmp_path / "c.pack", "s01"), "s01")
    bag.features.add_(0)
    assert torch.equal(bag.features, torch.from_numpy(tiles(1)).half())


def test_low_resolution_tiles_are_in_the_cache_of_a_training_too(tmp_path):
    slides = make_slides(tmp_path, 2)
    lowres = np.arange(12 * 2 * 2 * 3, dtype=np.uint8).reshape(12, 2, 2, 3)
    write_features(slides[1].source.path, tiles(1), grid(), Provenance(encoder="uni"), lowres=lowres)
    loader = BagLoader(slides, "disk", tmp_path)
    assert "lowres" not in loader.bag(0).extras
    assert torch.equal(loader.bag(1).extras["lowres"]["tiles"], torch.from_numpy(lowres))


def test_an_unfinished_pack_is_told_from_a_folder_of_features(tmp_path):
    folder = tmp_path / "c.pack"
    folder.mkdir()
    (folder / "features.f16").write_bytes(b"1234")
    for use in (lambda: find_features(folder), lambda: read_bag(FeatureSource(folder, "a"), "a")):
        with pytest.raises(AsmilError, match=r"c.pack"):
            use()
    for text, what in (('{"version": 3}', "update asmil"), ("{", "is damaged"), ('{"version": 2}', "is damaged")):
        (folder / "index.json").write_text(text)
        with pytest.raises(AsmilError, match=what):
            find_features(folder)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.sampled_from(["float16", "float32"]), st.data())
def test_any_bags_come_back(tmp_path_factory, sizes, dtype, data):
    folder = tmp_path_factory.mktemp("bags")
    for number, n in enumerate(sizes):
        kind = data.draw(st.sampled_from(["px", "um", "none"]))
        path = folder / "features" / f"{number}.h5"
        if kind == "px":
            lowres = np.full((n, 2, 2, 3), number, np.uint8) if data.draw(st.booleans()) else None
            write_features(path, tiles(number, n), grid(n), Provenance(), "float32", lowres)
        elif kind == "um":
            write_stamp(path, tiles(number, n), grid(n) + 0.25, extractor="None", tile_size_um=0.0)
        else:
            path.parent.mkdir(exist_ok=True)
            torch.save(torch.from_numpy(tiles(number, n)), path.with_suffix(".pt"))
    found = find_features(folder / "features")
    place = packed(folder / "c.pack", folder / "features", dtype=dtype).pack.folder
    for name, source in found.items():
        one, other = read_bag(source, name), read_bag(FeatureSource(place, name), name)
        assert torch.equal(one.features.to(getattr(torch, dtype)), other.features)
        assert other.width == WIDTH
        assert (one.coords is None) == (other.coords is None)
        assert one.coords is None or torch.equal(one.coords, other.coords)
        assert one.extras.keys() == other.extras.keys()
        if "coords_um" in one.extras:
            assert torch.equal(one.extras["coords_um"], other.extras["coords_um"])
        if "lowres" in one.extras:
            assert torch.equal(one.extras["lowres"]["tiles"], other.extras["lowres"]["tiles"])
