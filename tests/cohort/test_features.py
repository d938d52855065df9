import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asmil.cohort.features import (
    FeatureSource,
    Provenance,
    content_hash,
    fingerprint,
    inspect_features,
    read_bag,
    write_features,
)
from asmil.cohort.manifest import cohort_from_features
from asmil.cohort.open_features import common_step
from asmil.errors import AsmilError
from asmil.version import __version__
from feature_writers import WIDTH, grid, tiles, write_clam, write_stamp, write_tensor, write_trident


def test_own_file_keeps_values_type_and_provenance(tmp_path):
    provenance = Provenance(encoder="uni", weights_hash="ab", tile_um=128.0, tile_px=256, mpp=0.5)
    path = tmp_path / "a.h5"
    write_features(path, tiles(), grid(), provenance)
    bag, info = read_bag(FeatureSource(path), "a"), inspect_features(FeatureSource(path))
    assert bag.features.dtype == torch.float16
    assert torch.equal(bag.features, torch.from_numpy(tiles()).half())
    assert torch.equal(bag.coords, torch.from_numpy(grid()))
    assert (info.layout, info.n_tiles, info.width, info.dtype) == ("asmil", 12, WIDTH, "float16")
    assert (info.encoder, info.weights_hash, info.tile_um, info.tile_px, info.mpp) == (
        "uni",
        "ab",
        128,
        256,
        0.5,
    )
    assert info.tile_mpp == 0.5
    with h5py.File(path) as file:
        assert file.attrs["asmil_version"].decode() == __version__
        for name in ("encoder", "asmil_version"):
            assert h5py.check_string_dtype(file.attrs.get_id(name).dtype).length
        assert file["features"].chunks is None
        assert file["coords"].dtype == np.int64


def test_float32_is_written_on_request(tmp_path):
    write_features(tmp_path / "a.h5", tiles(), grid(), Provenance(), dtype="float32")
    assert torch.equal(read_bag(FeatureSource(tmp_path / "a.h5"), "a").features, torch.from_numpy(tiles()))


def test_writing_refuses_what_float16_cannot_hold(tmp_path):
    with pytest.raises(AsmilError, match=r"a.h5.*70000.*float32"):
        write_features(tmp_path / "a.h5", np.full((12, WIDTH), 70_000.0), grid(), Provenance())
    assert list(tmp_path.iterdir()) == []


def test_a_newer_format_asks_for_an_update(tmp_path):
    write_features(tmp_path / "a.h5", tiles(), grid(), Provenance())
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.attrs["asmil_format"] = 99
    with pytest.raises(AsmilError, match="update asmil"):
        read_bag(FeatureSource(tmp_path / "a.h5"), "a")


def test_low_resolution_tiles_come_along(tmp_path):
    path = tmp_path / "a.h5"
    write_features(path, tiles(), grid(), Provenance())
    assert "lowres" not in read_bag(FeatureSource(path), "a").extras
    with h5py.File(path, "a") as file:
        file["lowres/features"] = tiles(1, 3)
    low = read_bag(FeatureSource(path), "a").extras["lowres"]
    assert torch.equal(low["features"], torch.from_numpy(tiles(1, 3)))


def test_extraction_settings_and_low_resolution_tiles_are_written(tmp_path):
    path = tmp_path / "a.h5"
    low = np.arange(12 * 4 * 4 * 3, dtype=np.uint8).reshape(12, 4, 4, 3)
    write_features(path, tiles(), grid(), Provenance(extraction='{"tile_um": 128}'), lowres=low)
    assert inspect_features(FeatureSource(path)).extraction == '{"tile_um": 128}'
    assert torch.equal(read_bag(FeatureSource(path), "a").extras["lowres"]["tiles"], torch.from_numpy(low))
    for wrong in (low[:5], low.astype(np.float32), low[..., :2], low.reshape(12, -1)):
        with pytest.raises(AsmilError, match=r"b.h5.*uint8.*12.*3"):
            write_features(tmp_path / "b.h5", tiles(), grid(), Provenance(), lowres=wrong)


@pytest.mark.parametrize("value", [np.full((2, 3), np.inf, np.float32), np.full((2, 3), 1e200)])
def test_low_magnification_tiles_that_are_not_finite_are_refused(tmp_path, value):
    path = tmp_path / "a.h5"
    write_features(path, tiles(), grid(), Provenance())
    with h5py.File(path, "a") as file:
        file["lowres/features"] = value
    with pytest.raises(AsmilError, match=r"a\.h5"):
        read_bag(FeatureSource(path), "a")


def test_trident(tmp_path):
    path = tmp_path / "slide.h5"
    write_trident(path, tiles(), grid())
    info, bag = inspect_features(FeatureSource(path)), read_bag(FeatureSource(path), "slide")
    assert (info.layout, info.encoder, info.tile_px, info.tile_px_level0) == ("trident", "uni_v1", 256, 512)
    assert (info.tile_mpp, info.tile_side_um, info.tile_inferred) == (0.5, 128.0, False)
    assert (info.slide_width_px, info.slide_height_px) == (40_000, 30_000)
    assert torch.equal(bag.features, torch.from_numpy(tiles()))
    assert torch.equal(bag.coords, torch.from_numpy(grid()))


def test_trident_without_tiles_is_a_named_outcome(tmp_path):
    path = tmp_path / "blank.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("features", (0,), "f4", chunks=(1,), maxshape=(None,))
        file.create_dataset("coords", (0,), "i8", chunks=(1,), maxshape=(None,))
        file["features"].attrs["encoder"] = "uni_v1"
    assert inspect_features(FeatureSource(path)).n_tiles == 0
    with pytest.raises(AsmilError, match=r"slide S-1.*no tiles"):
        read_bag(FeatureSource(path), "S-1")


@pytest.mark.parametrize(
    ("attrs", "side", "inferred"),
    [
        ({}, 512, True),
        ({"patch_size": 256, "patch_level": 1, "downsample": np.array([4.0, 4.0])}, 1024, False),
    ],
)
def test_clam(tmp_path, attrs, side, inferred):
    path = tmp_path / "h5_files" / "slide.h5"
    write_clam(path, tiles(), grid(), **attrs)
    info = inspect_features(FeatureSource(path))
    assert (info.layout, info.tile_px_level0, info.tile_inferred) == ("clam", side, inferred)
    assert torch.equal(read_bag(FeatureSource(path), "slide").coords, torch.from_numpy(grid()))


def test_clam_tensor_takes_coordinates_from_the_file_beside_it(tmp_path):
    source = FeatureSource(tmp_path / "pt_files" / "slide.pt")
    write_tensor(source.path, torch.from_numpy(tiles()))
    assert read_bag(source, "slide").coords is None
    assert inspect_features(source).layout == "tensor"
    write_clam(tmp_path / "h5_files" / "slide.h5", tiles(), grid())
    bag = read_bag(source, "slide")
    assert torch.equal(bag.coords, torch.from_numpy(grid()))
    info = inspect_features(source)
    assert (info.layout, info.coords_unit, info.n_tiles) == ("clam", "px", 12)
    write_clam(tmp_path / "h5_files" / "slide.h5", tiles(n=9), grid(9))
    assert read_bag(source, "slide").coords is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_trident_tensor(tmp_path, dtype):
    values = torch.from_numpy(tiles()).to(dtype)
    write_tensor(tmp_path / "slide.pt", values[None])
    source = FeatureSource(tmp_path / "slide.pt")
    assert torch.equal(read_bag(source, "slide").features, values)
    assert inspect_features(source).n_bytes == values.nbytes


def test_tensor_in_the_old_torch_format(tmp_path):
    torch.save(torch.from_numpy(tiles()), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert inspect_features(FeatureSource(tmp_path / "a.pt")).n_tiles == 12


def test_stamp_microns_become_pixels_only_with_mpp(tmp_path):
    path = tmp_path / "slide.h5"
    coords_um = grid(side=256).astype(np.float32)
    write_stamp(path, tiles(dtype=np.float16), coords_um)
    info = inspect_features(FeatureSource(path))
    assert (info.layout, info.encoder, info.coords_unit) == ("stamp", "virchow2", "um")
    assert info.tile_mpp == pytest.approx(256 / 224)
    bag = read_bag(FeatureSource(path), "slide")
    assert bag.coords is None
    assert bag.features.dtype == torch.float16
    assert torch.equal(bag.extras["coords_um"], torch.from_numpy(coords_um).double())
    placed = read_bag(FeatureSource(path), "slide", mpp=0.25)
    assert torch.equal(placed.coords, torch.from_numpy(grid(side=1024)))
    assert "coords_um" not in placed.extras


def test_stamp_2_0_called_the_side_tile_size(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["feats"], file["coords"] = tiles(), grid(side=256).astype(np.float32)
        file.attrs.update({"unit": "um", "tile_size": 256.0, "extractor": "uni"})
    assert inspect_features(FeatureSource(tmp_path / "a.h5")).tile_um == 256


@pytest.mark.parametrize("attrs", [{}, {"tile_size": 224.0}])
def test_stamp_historic_counts_in_256_of_224_microns(tmp_path, attrs):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["feats"], file["coords"] = tiles(), grid(side=224)
        file.attrs.update(attrs)
    source = FeatureSource(tmp_path / "a.h5")
    assert inspect_features(source).layout == "stamp_historic"
    microns = read_bag(source, "a").extras["coords_um"]
    assert torch.allclose(microns, torch.from_numpy(grid(side=256)).double())
    assert torch.equal(read_bag(source, "a", mpp=0.5).coords, torch.from_numpy(grid(side=512)))


def test_stamp_historic_with_another_stride_has_no_known_unit(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["feats"], file["coords"] = tiles(), grid(side=512)
    bag = read_bag(FeatureSource(tmp_path / "a.h5"), "a", mpp=0.5)
    assert bag.coords is None
    assert "coords_um" not in bag.extras


def test_cohort_file_with_a_group_a_slide(tmp_path):
    path = tmp_path / "cohort.h5"
    with h5py.File(path, "w") as file:
        for number, name in enumerate(["alpha", "beta"]):
            group = file.create_group(name)
            group["feat"], group["coords"] = tiles(number)[None], grid()
            group.attrs["label"] = number
    source = FeatureSource.parse(f"{path}::beta")
    assert str(source) == f"{path}::beta"
    assert torch.equal(read_bag(source, "beta").features, torch.from_numpy(tiles(1)))
    assert inspect_features(source).layout == "cohort_h5"
    with pytest.raises(AsmilError, match=r"'alpha'.*'beta'.*cohort.h5::alpha"):
        read_bag(FeatureSource(path), "x")
    with pytest.raises(AsmilError, match=r"'bet'.*'beta'"):
        read_bag(FeatureSource(path, "bet"), "x")


def test_two_possible_readings_are_an_error(tmp_path):
    write_clam(tmp_path / "a.h5", tiles(), grid())
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["feats"] = tiles()
    with pytest.raises(AsmilError, match="ambiguous"):
        read_bag(FeatureSource(tmp_path / "a.h5"), "a")
    write_stamp(tmp_path / "b.h5", tiles(), grid())
    with h5py.File(tmp_path / "b.h5", "a") as file:
        file["coords"].attrs["patch_size_level0"] = 512
    with pytest.raises(AsmilError, match=r"microns.*pixels"):
        read_bag(FeatureSource(tmp_path / "b.h5"), "b")


def test_the_layout_is_decided_by_content_not_by_names(tmp_path):
    write_stamp(tmp_path / "h5_files" / "slide.pt", tiles(), grid().astype(np.float32))
    assert inspect_features(FeatureSource(tmp_path / "h5_files" / "slide.pt")).layout == "stamp"


@pytest.mark.parametrize("kept", [0, 7, 2000, -100])
def test_a_truncated_file_is_named(tmp_path, kept):
    write_features(tmp_path / "cut.h5", tiles(n=500), grid(500), Provenance())
    whole = (tmp_path / "cut.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[:kept])
    with pytest.raises(AsmilError, match=r"cut.h5.*(truncated|damaged)"):
        read_bag(FeatureSource(tmp_path / "cut.h5"), "cut")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_tensor_is_named(tmp_path, zipped):
    path = tmp_path / "cut.pt"
    torch.save(torch.zeros(50, 6), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for kept in range(2, len(whole) - 1, 61):
        path.write_bytes(whole[:kept])
        with pytest.raises(AsmilError, match=r"cut.pt.*(damaged|truncated)"):
            read_bag(FeatureSource(path), "cut")


def test_missing_file_folder_and_other_content(tmp_path):
    with pytest.raises(AsmilError, match="does not exist"):
        read_bag(FeatureSource(tmp_path / "no.h5"), "no")
    with pytest.raises(AsmilError, match="is a folder"):
        read_bag(FeatureSource(tmp_path), "no")
    with h5py.File(tmp_path / "mask.h5", "w") as file:
        file["mask"] = np.zeros(3)
    with pytest.raises(AsmilError, match=r"'features'.*'mask'"):
        read_bag(FeatureSource(tmp_path / "mask.h5"), "no")
    write_tensor(tmp_path / "wrong.pt", torch.zeros(2, 3, 4))
    with pytest.raises(AsmilError, match=r"wrong.pt.*\(2, 3, 4\)"):
        read_bag(FeatureSource(tmp_path / "wrong.pt"), "no")


def test_pickles_are_refused_and_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    write_tensor(tmp_path / "trap.pt", Trap())
    with pytest.raises(AsmilError, match=r"trap.pt.*torch.save"):
        read_bag(FeatureSource(tmp_path / "trap.pt"), "trap")
    assert not (tmp_path / "sprung").exists()
    write_tensor(tmp_path / "array.pt", np.array([Trap()], dtype=object))
    with pytest.raises(AsmilError, match=r"array\.pt"):
        read_bag(FeatureSource(tmp_path / "array.pt"), "array")
    assert not (tmp_path / "sprung").exists()


def test_nan_names_slide_and_file(tmp_path):
    values = tiles()
    values[3, 2] = np.nan
    write_clam(tmp_path / "a.h5", values, grid())
    with pytest.raises(AsmilError, match=r"S-7: 1 of 12 .*tile 3.*a\.h5"):
        read_bag(FeatureSource(tmp_path / "a.h5"), "S-7")


def test_files_are_left_as_they_are_even_when_read_only(tmp_path):
    write_trident(tmp_path / "a.h5", tiles(), grid())
    before = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").chmod(0o444)
    read_bag(FeatureSource(tmp_path / "a.h5"), "a")
    assert (tmp_path / "a.h5").read_bytes() == before


def test_fingerprints_see_through_layout_and_type_but_not_content(tmp_path):
    write_features(tmp_path / "a.h5", tiles(), grid(), Provenance())
    write_clam(tmp_path / "b.h5", tiles(), grid())
    write_tensor(tmp_path / "c.pt", torch.from_numpy(tiles()))
    write_features(tmp_path / "d.h5", tiles(1), grid(), Provenance())
    names = ("a.h5", "b.h5", "c.pt", "d.h5")
    for digest in (fingerprint, content_hash):
        a, b, c, d = (digest(FeatureSource(tmp_path / name)) for name in names)
        assert a == b == c != d


def test_a_change_between_the_sampled_rows_shows_in_the_full_hash_only(tmp_path):
    values = tiles(n=1000)
    write_clam(tmp_path / "a.h5", values, grid(1000))
    values[1] += 1
    write_clam(tmp_path / "b.h5", values, grid(1000))
    a, b = FeatureSource(tmp_path / "a.h5"), FeatureSource(tmp_path / "b.h5")
    assert fingerprint(a) == fingerprint(b)
    assert content_hash(a) != content_hash(b)


@given(st.integers(2, 40), st.integers(2, 6), st.integers(1, 2000), st.randoms(use_true_random=False))
def test_the_common_step_is_the_side_whatever_the_order(rows, columns, side, random):
    coords = [(x * side, y * side) for x in range(columns) for y in range(rows)]
    random.shuffle(coords)
    assert common_step(np.array(coords)) == side


def test_a_single_tile_has_no_step():
    assert common_step(np.array([[5, 5]])) is None


def test_killed_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.h5"
    write_features(path, tiles(), grid(), Provenance())
    script = (
        "import os, signal, sys, h5py\n"
        "from pathlib import Path\n"
        "from asmil.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as partial, h5py.File(partial, 'w') as file:\n"
        "    file['features'] = [[1.0]]\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert torch.equal(read_bag(FeatureSource(path), "a").features, torch.from_numpy(tiles()).half())
    assert [slide.slide for slide in cohort_from_features(tmp_path)] == ["a"]


@pytest.mark.parametrize("attrs", [{"extractor": "STAMP-extract-1.1.1_ctranspath"}, {"tile_size": 224, "unit": "px"}])
def test_stamp_1_counts_in_256_of_224_microns(tmp_path, attrs):
    """STAMP 1 names its extractor, but neither a unit nor a tile size; the second tile lies at 256 microns."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["feats"], file["coords"] = tiles(dtype=np.float16), grid(side=224)
        file["augmented"] = np.zeros(12, bool)
        file.attrs.update(attrs)
    source = FeatureSource(tmp_path / "a.h5")
    info = inspect_features(source)
    assert (info.layout, info.encoder, info.tile_um) == ("stamp_historic", attrs.get("extractor"), 256)
    assert torch.allclose(read_bag(source, "a").extras["coords_um"], torch.from_numpy(grid(side=256)).double())
