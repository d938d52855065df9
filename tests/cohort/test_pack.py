import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.cohort.features import FeatureSource, Provenance, read_bag, write_features
from asmil.cohort.manifest import cohort_from_features
from asmil.cohort.pack import index as pack_index
from asmil.cohort.pack import writing as pack_writing
from asmil.cohort.pack.packing import pack_features, read_packed, write_pack
from asmil.cohort.pack.reading import Pack
from asmil.errors import AsmilError
from asmil.settings.made_from import DoneBefore
from feature_writers import WIDTH, grid, make_slides, tiles, write_clam, write_stamp, write_tensor, write_trident


def equal_bags(one, other):
    same_coords = (one.coords is None) == (other.coords is None) and (
        one.coords is None or torch.equal(one.coords, other.coords)
    )
    return torch.equal(one.features, other.features) and same_coords and one.id == other.id


def test_a_pack_gives_back_what_was_packed_without_copies(tmp_path, recwarn):
    slides = make_slides(tmp_path, 5, dtype="float16")
    write_tensor(tmp_path / "bare.pt", torch.from_numpy(tiles(9, 7)).half())
    slides.append(replace(slides[0], slide="bare", source=FeatureSource(tmp_path / "bare.pt")))
    write_stamp(tmp_path / "um.h5", tiles(10, 5, np.float16), grid(5, 256) + np.float32(0.5))
    slides.append(replace(slides[0], slide="um", source=FeatureSource(tmp_path / "um.h5")))
    slides.append(replace(slides[0], slide="px", source=FeatureSource(tmp_path / "um.h5"), mpp=0.5))
    steps = []
    pack = write_pack(slides, tmp_path / "c.pack", progress=lambda done, total: steps.append((done, total)))
    assert steps == [(n, 8) for n in range(1, 9)]
    for slide in slides:
        assert equal_bags(read_packed(pack, slide.slide), read_bag(slide.source, slide.slide, slide.mpp))
    assert torch.equal(read_packed(pack, "um").extras["coords_um"][0], torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert read_packed(pack, "s00").features.data_ptr() == read_packed(pack, "s00").features.data_ptr()
    assert not recwarn.list
    assert sorted(p.name for p in pack.folder.iterdir()) == [
        "coords.i64",
        "features.f16",
        "index.json",
        "lock",
        "lowres.u8",
    ]


def test_writing_to_a_bag_does_not_reach_the_file(tmp_path):
    slides = make_slides(tmp_path, 2)
    pack = write_pack(slides, tmp_path / "c.pack")
    read_packed(pack, "s00").features.zero_()
    assert np.array_equal(
        np.fromfile(pack.folder / "features.f16", np.float16)[:72], tiles(0).astype(np.float16).ravel()
    )


def test_a_changed_source_is_stale(tmp_path):
    slides = make_slides(tmp_path, 3)
    pack = write_pack(slides, tmp_path / "c.pack")
    write_features(slides[1].source.path, tiles(50), grid(), Provenance())
    os.utime(slides[1].source.path, ns=(1, 1))
    with pytest.raises(AsmilError, match=r"s01.h5.*'s01'"):
        read_packed(pack, "s01")
    assert torch.equal(read_packed(pack, "s00").features, torch.from_numpy(tiles(0)).half())
    again = write_pack(slides, tmp_path / "c.pack")
    assert torch.equal(read_packed(again, "s01").features, torch.from_numpy(tiles(50)).half())


def test_the_same_name_with_other_features_is_packed_again(tmp_path):
    slides = make_slides(tmp_path, 2)
    write_pack(slides, tmp_path / "c.pack")
    write_clam(tmp_path / "other.h5", tiles(60), grid())
    slides[0] = replace(slides[0], source=FeatureSource(tmp_path / "other.h5"))
    pack = write_pack(slides, tmp_path / "c.pack")
    assert torch.equal(read_packed(pack, "s00").features, torch.from_numpy(tiles(60)).half())


def test_slides_are_added_and_nothing_is_read_twice(tmp_path):
    slides = make_slides(tmp_path, 6)
    write_pack(slides[:4], tmp_path / "c.pack")
    steps = []
    pack = write_pack(slides, tmp_path / "c.pack", progress=lambda done, total: steps.append(done))
    assert steps == [5, 6]
    for number, slide in enumerate(slides):
        assert torch.equal(read_packed(pack, slide.slide).features, torch.from_numpy(tiles(number)).half())


def test_values_beyond_float16_are_refused_and_the_rest_stays_valid(tmp_path):
    slides = make_slides(tmp_path, 3)
    write_clam(slides[2].source.path, tiles(2) * 1e6, grid())
    with pytest.raises(AsmilError, match=r"'s02'.*float16"):
        write_pack(slides, tmp_path / "c.pack")
    assert list(Pack.open(tmp_path / "c.pack").entries) == ["s00", "s01"]


def test_a_killed_writer_leaves_a_pack_that_goes_on(tmp_path):
    slides = make_slides(tmp_path, 40)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from asmil.cohort.features import FeatureSource\n"
        "from asmil.cohort.manifest import Slide\n"
        "from asmil.cohort.pack.packing import write_pack\n"
        "root = Path(sys.argv[1])\n"
        "paths = sorted((root / 'features').glob('*'))\n"
        "slides = [Slide(path.stem, path.stem, '0', FeatureSource(path)) for path in paths]\n"
        "def progress(done, total):\n"
        "    if done == 36:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_pack(slides, root / 'c.pack', progress)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(Pack.open(tmp_path / "c.pack").entries) == 32
    steps = []
    pack = write_pack(slides, tmp_path / "c.pack", progress=lambda done, total: steps.append(done))
    assert steps == list(range(33, 41))
    for number, slide in enumerate(slides):
        assert torch.equal(read_packed(pack, slide.slide).features, torch.from_numpy(tiles(number)).half())


def test_a_pack_without_index_or_with_cut_data_is_not_opened(tmp_path):
    with pytest.raises(AsmilError, match=r"none\.pack"):
        Pack.open(tmp_path / "none.pack")
    pack = write_pack(make_slides(tmp_path, 2), tmp_path / "c.pack")
    data = pack.folder / "features.f16"
    data.write_bytes(data.read_bytes()[:-2])
    with pytest.raises(AsmilError, match=r"features\.f16"):
        Pack.open(pack.folder)


def test_an_unknown_slide_names_the_nearest(tmp_path):
    pack = write_pack(make_slides(tmp_path, 2), tmp_path / "c.pack")
    with pytest.raises(AsmilError, match="'s0'"):
        read_packed(pack, "s0")
    index = json.loads((pack.folder / "index.json").read_text())
    assert [slide["slide"] for slide in index["slides"]] == ["s00", "s01"]


def spoil(folder):
    """Ten slides, of which four cannot be packed."""
    slides = make_slides(folder, 10)
    path = {slide.slide: slide.source.path for slide in slides}
    path["s01"].write_bytes(path["s01"].read_bytes()[:500])
    write_clam(path["s04"], np.full((12, WIDTH), np.nan, np.float32), grid())
    write_clam(path["s05"], tiles(5, 0), grid(0))
    write_clam(path["s07"], np.ones((12, WIDTH + 1), np.float32), grid())
    return slides


def test_bad_files_are_reported_and_the_rest_is_packed(tmp_path):
    slides = spoil(tmp_path)
    report = pack_features(slides, tmp_path / "c.pack")
    assert report.added == ("s00", "s02", "s03", "s06", "s08", "s09")
    assert len(report.problems) == 4
    told = "\n".join(map(str, report.problems))
    for part in ("s01.h5: ", "s04: 12 of 12 tiles", "s05.h5 "):
        assert part in told
    assert "s07.h5" in told
    write_features(slides[4].source.path, tiles(4), grid(), Provenance())
    again = pack_features(slides, tmp_path / "c.pack")
    assert (again.added, len(again.kept), len(again.problems)) == (("s04",), 6, 3)


def test_changed_slides_are_packed_anew_and_removed_ones_stay(tmp_path):
    slides = make_slides(tmp_path, 4)
    pack_features(slides, tmp_path / "c.pack")
    slides[0].source.path.unlink()
    write_features(slides[3].source.path, tiles(30, 9), grid(9), Provenance(encoder="uni"))
    with pytest.raises(AsmilError, match=r"s03.*features"):
        pack_features(slides[1:], tmp_path / "c.pack")
    report = pack_features(slides[1:], tmp_path / "c.pack", done_before=DoneBefore(again=True))
    assert (report.added, report.kept, report.others) == (("s03",), ("s01", "s02"), ("s00",))
    for name, seed, n in (("s00", 0, 12), ("s01", 1, 12), ("s03", 30, 9)):
        bag = read_bag(FeatureSource(tmp_path / "c.pack", name), name)
        assert torch.equal(bag.features, torch.from_numpy(tiles(seed, n)).half())
    assert report.pack.unused_share == 12 / 57
    fresh = pack_features(cohort_from_features(tmp_path / "c.pack").slides, tmp_path / "d.pack").pack
    assert fresh.unused_share == 0
    assert torch.equal(read_bag(FeatureSource(fresh.folder, "s03"), "x").features, bag.features)


def test_what_a_reader_has_open_stays_readable_while_others_write(tmp_path):
    slides = make_slides(tmp_path, 3)
    pack_features(slides[:2], tmp_path / "c.pack")
    bag = read_bag(FeatureSource(tmp_path / "c.pack", "s01"), "s01")
    write_features(slides[1].source.path, tiles(9), grid(), Provenance(encoder="uni"))
    pack_features(slides, tmp_path / "c.pack", done_before=DoneBefore(again=True))
    assert torch.equal(bag.features, torch.from_numpy(tiles(1)).half())
    assert torch.equal(
        read_bag(FeatureSource(tmp_path / "c.pack", "s01"), "s01").features, torch.from_numpy(tiles(9)).half()
    )


def test_features_made_in_two_ways_are_refused_and_leave_nothing_behind(tmp_path):
    for number, encoder in enumerate(("uni", "uni", "virchow")):
        write_trident(tmp_path / "features" / f"{number}.h5", tiles(number), grid(), encoder)
    slides = cohort_from_features(tmp_path / "features").slides
    with pytest.raises(AsmilError, match="mixes 2 encoders"):
        pack_features(slides, tmp_path / "c.pack")
    assert not (tmp_path / "c.pack").exists()
    pack_features(slides[:2], tmp_path / "c.pack")
    with pytest.raises(AsmilError, match="mixes 2 encoders"):
        pack_features(slides[2:], tmp_path / "c.pack")
    assert list(Pack.open(tmp_path / "c.pack").entries) == ["0", "1"]


def test_two_widths_in_equal_parts_are_refused(tmp_path):
    slides = make_slides(tmp_path, 2)
    write_clam(slides[0].source.path, np.ones((3, 9), np.float32), grid(3))
    with pytest.raises(AsmilError, match="mixes 2 feature widths"):
        pack_features(slides, tmp_path / "c.pack")


def test_the_type_is_a_property_of_the_pack(tmp_path):
    slides = make_slides(tmp_path, 3)
    write_clam(slides[2].source.path, tiles(2) * 1e6, grid())
    report = pack_features(slides, tmp_path / "half.pack")
    assert report.added == ("s00", "s01")
    assert "'s02'" in str(report.problems[0])
    assert "--dtype float32" in str(report.problems[0])
    pack = pack_features(slides[:2], tmp_path / "full.pack", "float32").pack
    assert (pack.folder / "features.f32").stat().st_size == 4 * 2 * 12 * WIDTH
    assert pack_features(slides, pack.folder).added == ("s02",)
    source = FeatureSource(pack.folder, "s02")
    assert torch.equal(read_bag(source, "s02").features, torch.from_numpy(tiles(2) * np.float32(1e6)))
    with pytest.raises(AsmilError, match=r"full.pack.*float32.*float16"):
        pack_features(slides, pack.folder, "float16")


def test_other_places_are_not_written_to(tmp_path):
    slides = make_slides(tmp_path, 2)
    (tmp_path / "file").write_text("")
    with pytest.raises(AsmilError, match=re.escape(str(tmp_path / "file"))):
        pack_features(slides, tmp_path / "file")
    with pytest.raises(AsmilError, match=r"\('s00.h5'.*'s01.h5'\)"):
        pack_features(slides, tmp_path / "features")
    pack_features(slides, tmp_path / "c.pack")
    with pytest.raises(AsmilError, match="itself"):
        pack_features(cohort_from_features(tmp_path / "c.pack").slides, tmp_path / "c.pack")


def test_a_pack_of_version_1_is_made_again(tmp_path):
    slides = make_slides(tmp_path, 2)
    pack = write_pack(slides, tmp_path / "c.pack")
    (pack.folder / "index.json").write_text('{"version": 1, "slides": []}')
    with pytest.raises(AsmilError, match=r"c\.pack"):
        Pack.open(pack.folder)
    assert list(write_pack(slides, pack.folder).entries) == ["s00", "s01"]


def test_a_cut_pack_keeps_what_is_whole_and_names_the_rest(tmp_path):
    slides = make_slides(tmp_path, 3)
    pack = pack_features(slides, tmp_path / "c.pack").pack
    os.truncate(pack.folder / "features.f16", 2 * 13 * WIDTH)
    report = pack_features(slides[:2], pack.folder)
    assert (report.added, report.kept) == (("s01",), ("s00",))
    assert "'s02'" in str(report.problems[0])
    assert list(report.pack.entries) == ["s00", "s01"]


def test_malformed_low_resolution_tiles_are_named(tmp_path):
    slides = make_slides(tmp_path, 2)
    with h5py.File(slides[0].source.path, "a") as file:
        file["lowres/tiles"] = np.zeros((3, 2, 2, 3), np.uint8)
    report = pack_features(slides, tmp_path / "c.pack")
    assert report.added == ("s01",)
    assert "lowres/tiles of" in str(report.problems[0])


def test_a_full_disk_is_one_sentence_and_what_was_packed_is_kept(tmp_path):
    """A limit on the size of files stands in for the disk."""
    resource = pytest.importorskip("resource")
    slides = make_slides(tmp_path, 8, tiles_each=300)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * 300 * 2 * 8, limits[1]))  # five slides' coordinates fit
    try:
        with pytest.raises(AsmilError, match=r"c.pack: the disk"):
            pack_features(slides, tmp_path / "c.pack")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(Pack.open(tmp_path / "c.pack").entries) == 5
    assert pack_features(slides, tmp_path / "c.pack").added == ("s05", "s06", "s07")
    for number, slide in enumerate(slides):
        bag = read_bag(FeatureSource(tmp_path / "c.pack", slide.slide), slide.slide)
        assert torch.equal(bag.features, torch.from_numpy(tiles(number, 300)).half())
        assert torch.equal(bag.coords, torch.from_numpy(grid(300)))


def test_two_extractions_are_a_warning(tmp_path):
    for number, tissue in enumerate(("auto", "clam")):
        made = json.dumps({"settings": {"tissue": tissue}})
        write_features(tmp_path / "f" / f"{number}.h5", tiles(number), grid(), Provenance(extraction=made))
    report = pack_features(cohort_from_features(tmp_path / "f").slides, tmp_path / "c.pack")
    assert report.added == ("0", "1")
    assert [problem.severity for problem in report.problems] == ["warning"]


def test_an_altered_value_is_noticed_when_its_slide_is_read(tmp_path):
    slides = make_slides(tmp_path, 3)
    pack = write_pack(slides, tmp_path / "c.pack")
    for name in ("features.f16", "coords.i64"):
        shutil.copytree(pack.folder, tmp_path / name)
        values = bytearray((tmp_path / name / name).read_bytes())
        values[len(values) // 2] ^= 4
        (tmp_path / name / name).write_bytes(values)
        with pytest.raises(AsmilError, match=rf"{name}.*'s01'"):
            read_bag(FeatureSource(tmp_path / name, "s01"), "s01")
        assert read_bag(FeatureSource(tmp_path / name, "s02"), "s02").width == WIDTH


def without_checksums(folder):
    """A pack as earlier versions wrote it."""
    known = json.loads((folder / "index.json").read_text())
    del known["crc32"]
    for slide in known["slides"]:
        del slide["crc32"]
    (folder / "index.json").write_text(json.dumps(known, indent=1))


def test_packs_of_earlier_versions_open_and_their_values_are_checked(tmp_path):
    slides = make_slides(tmp_path, 2)
    pack = pack_features(slides, tmp_path / "c.pack", "float32").pack
    without_checksums(pack.folder)
    assert torch.equal(read_packed(Pack.open(pack.folder), "s01").features, torch.from_numpy(tiles(1)))
    for value in (np.nan, 3e38):
        values = np.fromfile(pack.folder / "features.f32", np.float32)
        values[WIDTH * 12 + 5] = value
        values.tofile(pack.folder / "features.f32")
        with pytest.raises(AsmilError, match=r"s01: 1 of 12 tiles.*c\.pack"):
            read_bag(FeatureSource(pack.folder, "s01"), "s01")
    assert pack_features(make_slides(tmp_path, 3), pack.folder, done_before=DoneBefore(again=True)).added


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_index_is_one_sentence_or_the_same_bags(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("packs")
    pack = write_pack(make_slides(folder, 2), folder / "c.pack")
    wanted = {name: read_bag(FeatureSource(pack.folder, name), name) for name in pack.entries}
    checked = data.draw(st.booleans())
    if not checked:
        without_checksums(pack.folder)
    path = pack.folder / "index.json"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[int(data.draw(st.floats(0, 0.9999)) * len(content))] = data.draw(
            st.sampled_from(b'0123456789"-.eE[]{}n,')
        )
    path.write_bytes(content)
    try:
        found = {name: read_bag(FeatureSource(pack.folder, name), name) for name in wanted}
    except AsmilError:
        return
    assert all(len(bag) and bag.features.isfinite().all() for bag in found.values())
    if checked:
        assert all(equal_bags(found[name], wanted[name]) for name in wanted)


def test_slides_are_noted_in_a_journal_until_the_pack_is_closed(tmp_path, monkeypatch):
    """However many there are, the index is written once; what was noted is there if the writer is killed."""
    monkeypatch.setattr(pack_writing, "SLIDES_PER_JOURNAL_LINE", 2)
    written = []
    monkeypatch.setattr(pack_writing, "write_index", lambda *a: (written.append(a), pack_index.write_index(*a)))
    slides = make_slides(tmp_path, 9)
    folder = tmp_path / "c.pack"
    seen = []

    def progress(done, total):
        if (folder / "index.journal").exists():
            seen.append(len(Pack.open(folder).entries))
            shutil.copytree(folder, tmp_path / f"killed-{done}")

    pack_features(slides, folder, progress=progress)
    assert seen == [2, 2, 4, 4, 6, 6, 8, 8]
    assert len(written) == 1
    assert not (folder / "index.journal").exists()
    for number in range(2, 10):
        killed = tmp_path / f"killed-{number}"
        with (killed / "index.journal").open("ab") as journal:
            journal.write(b"0123abcd half a li")
        assert len(Pack.open(killed).entries) == number // 2 * 2
        assert len(pack_features(slides, killed).added) == 9 - number // 2 * 2
        for seed, slide in enumerate(slides):
            bag = read_bag(FeatureSource(killed, slide.slide), slide.slide)
            assert torch.equal(bag.features, torch.from_numpy(tiles(seed)).half())


def test_altered_feature_files_are_not_packed(tmp_path):
    slides = make_slides(tmp_path, 2)
    with h5py.File(slides[0].source.path, "a") as file:
        file["features"][3, 2] += 1
    report = pack_features(slides, tmp_path / "c.pack")
    assert report.added == ("s01",)
    assert "s00.h5" in str(report.problems[0])
