import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from asmil.cohort.features import FeatureSource, Provenance, read_bag, write_features
from asmil.cohort.pack import Pack, write_pack
from asmil.errors import AsmilError
from feature_writers import grid, make_slides, tiles, write_clam, write_stamp, write_tensor


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
        assert equal_bags(pack.bag(slide.slide), read_bag(slide.source, slide.slide, slide.mpp))
    assert torch.equal(pack.bag("um").extras["coords_um"][0], torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert pack.bag("s00").features.data_ptr() == pack.bag("s00").features.data_ptr()
    assert not recwarn.list
    assert sorted(p.name for p in pack.folder.iterdir()) == [
        "coords.i64",
        "features.f16",
        "index.json",
        "lock",
    ]


def test_writing_to_a_bag_does_not_reach_the_file(tmp_path):
    slides = make_slides(tmp_path, 2)
    write_pack(slides, tmp_path / "c.pack").bag("s00").features.zero_()
    assert Pack.open(tmp_path / "c.pack").bag("s00").features.abs().sum() > 0


def test_a_changed_source_is_stale(tmp_path):
    slides = make_slides(tmp_path, 3)
    pack = write_pack(slides, tmp_path / "c.pack")
    write_features(slides[1].source.path, tiles(50), grid(), Provenance())
    os.utime(slides[1].source.path, ns=(1, 1))
    with pytest.raises(
        AsmilError, match=r"s01.h5: the file changed since slide 's01' was packed; pack the cohort again"
    ):
        pack.bag("s01")
    assert torch.equal(pack.bag("s00").features, torch.from_numpy(tiles(0)).half())
    again = write_pack(slides, tmp_path / "c.pack")
    assert torch.equal(again.bag("s01").features, torch.from_numpy(tiles(50)).half())


def test_the_same_name_with_other_features_is_packed_again(tmp_path):
    slides = make_slides(tmp_path, 2)
    write_pack(slides, tmp_path / "c.pack")
    write_clam(tmp_path / "other.h5", tiles(60), grid())
    slides[0] = replace(slides[0], source=FeatureSource(tmp_path / "other.h5"))
    pack = write_pack(slides, tmp_path / "c.pack")
    assert torch.equal(pack.bag("s00").features, torch.from_numpy(tiles(60)).half())


def test_slides_are_added_and_nothing_is_read_twice(tmp_path):
    slides = make_slides(tmp_path, 6)
    write_pack(slides[:4], tmp_path / "c.pack")
    steps = []
    pack = write_pack(slides, tmp_path / "c.pack", progress=lambda done, total: steps.append(done))
    assert steps == [5, 6]
    for number, slide in enumerate(slides):
        assert torch.equal(pack.bag(slide.slide).features, torch.from_numpy(tiles(number)).half())


def test_values_beyond_float16_are_refused_and_the_rest_stays_valid(tmp_path):
    slides = make_slides(tmp_path, 3)
    write_clam(slides[2].source.path, tiles(2) * 1e6, grid())
    with pytest.raises(AsmilError, match=r"slide 's02'.*beyond the range of float16"):
        write_pack(slides, tmp_path / "c.pack")
    assert list(Pack.open(tmp_path / "c.pack").entries) == ["s00", "s01"]


def test_a_killed_writer_leaves_a_pack_that_goes_on(tmp_path):
    slides = make_slides(tmp_path, 40)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from asmil.cohort.features import FeatureSource\n"
        "from asmil.cohort.manifest import Slide\n"
        "from asmil.cohort.pack import write_pack\n"
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
        assert torch.equal(pack.bag(slide.slide).features, torch.from_numpy(tiles(number)).half())


def test_a_pack_without_index_or_with_cut_data_is_not_opened(tmp_path):
    with pytest.raises(AsmilError, match="no finished pack"):
        Pack.open(tmp_path / "none.pack")
    pack = write_pack(make_slides(tmp_path, 2), tmp_path / "c.pack")
    data = pack.folder / "features.f16"
    data.write_bytes(data.read_bytes()[:-2])
    with pytest.raises(AsmilError, match="no finished pack"):
        Pack.open(pack.folder)


def test_an_unknown_slide_names_the_nearest(tmp_path):
    pack = write_pack(make_slides(tmp_path, 2), tmp_path / "c.pack")
    with pytest.raises(AsmilError, match=r"slide 's0' is not in the pack; did you mean"):
        pack.bag("s0")
    index = json.loads((pack.folder / "index.json").read_text())
    assert [slide["slide"] for slide in index["slides"]] == ["s00", "s01"]
