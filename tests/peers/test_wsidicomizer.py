"""DICOM slides as wsidicomizer writes them: read as they are, with other levels, or refused in one sentence."""

import numpy as np
import pytest

from asmil.errors import AsmilError
from asmil.slides.opening import open_slide
from asmil.slides.pyramid_tiff import write_pyramid
from peer_software import module, run
from small_slides import tissue_pixels

pytestmark = pytest.mark.peers

SIDE_PX = 1400


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    module("wsidicomizer", "wsidicomizer")
    path = tmp_path_factory.mktemp("slides") / "a.tif"
    write_pyramid(path, tissue_pixels(SIDE_PX), 0.5)
    return path


def converted(slide, folder, *options):
    run("-c", "from wsidicomizer.cli import main; main()", "-i", slide, "-o", folder, *options)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--offset-table", "empty"),
        ("--offset-table", "extended", "--format", "jpeg2000", "--force-transcoding"),
        ("--add-missing-levels", "--source", "openslide", "--tile-size", 240),
        ("--add-missing-levels", "--source", "tiffslide", "--format", "jpeg2000"),
    ],
    ids=lambda options: " ".join(map(str, options)) or "plain",
)
def test_every_level_that_is_offered_can_be_read(slide, tmp_path, options):
    image, original = open_slide(converted(slide, tmp_path / "dicom", *options)), open_slide(slide)
    assert image.resolution.mpp == pytest.approx(0.5)
    assert image.level_sizes[0] == (SIDE_PX, SIDE_PX)
    sizes = dict(zip(original.level_sizes, range(len(original.level_sizes)), strict=True))
    assert len(image.level_sizes) > 1
    for level, (width, height) in enumerate(image.level_sizes):
        pixels = image.read(0, 0, level, width, height).astype(int)
        if (width, height) in sizes:
            same = original.read(0, 0, sizes[width, height], width, height)
            assert np.abs(pixels - same).mean() < 4


@pytest.mark.parametrize("codec", ["jpegxl", "htjpeg2000"])
def test_a_compression_that_openslide_lacks_is_told(slide, tmp_path, codec):
    folder = converted(slide, tmp_path / "dicom", "--format", codec, "--force-transcoding")
    with pytest.raises(AsmilError, match="compression"):
        open_slide(folder)
