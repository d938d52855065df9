"""Levels that OpenSlide refuses: others stand in for them, and the advice fits the cause."""

import openslide
import pytest

from asmil.errors import AsmilError
from asmil.slides import opening, openslide_image
from asmil.slides.opening import open_slide
from asmil.slides.openslide_image import OpenSlideImage, levels_with_whole_tiles
from small_slides import write_slide

REAL = openslide.OpenSlide


@pytest.fixture
def pyramid(tmp_path):
    path = write_slide(tmp_path / "a.tif", side_px=2048)
    assert REAL(path).level_count >= 3
    return path


class WithCutTiles(REAL):
    """Refuses the last tile of level 1 as OpenSlide does for DICOM, and then everything."""

    failed = False

    def read_region(self, location, level, size):
        if level == 1 or self.failed:
            self.failed = True
            raise openslide.OpenSlideError("Dimensional mismatch reading JPEG")
        return super().read_region(location, level, size)


def test_other_levels_stand_in(pyramid, monkeypatch):
    monkeypatch.setattr(openslide_image.openslide, "OpenSlide", WithCutTiles)
    sizes = REAL(pyramid).level_dimensions
    levels = levels_with_whole_tiles(pyramid, sizes)
    assert levels == (0, *range(2, len(sizes)))
    image = OpenSlideImage(pyramid, WithCutTiles(pyramid), None, levels)
    whole = OpenSlideImage(pyramid, REAL(pyramid), None)
    assert image.level_sizes == (sizes[0], *sizes[2:])
    for mine, theirs in enumerate(levels):
        assert (image.read(300, 500, mine, 40, 30) == whole.read(300, 500, theirs, 40, 30)).all()
        assert image.stored_tile_size(mine) == whole.stored_tile_size(theirs)


def test_after_a_failed_read_every_error_names_the_file(pyramid):
    image = OpenSlideImage(pyramid, WithCutTiles(pyramid), None)
    for level in (1, 0, 2):
        with pytest.raises(AsmilError, match=r"a\.tif"):
            image.read(0, 0, level, 10, 10)


def test_a_compression_that_openslide_lacks_is_no_damage(pyramid, monkeypatch):
    def refuse(path, given):
        raise openslide.OpenSlideError("Reading a.dcm: Unsupported transfer syntax 1.2.840.10008.1.2.4.112")

    monkeypatch.setattr(opening, "_open_with_openslide", refuse)
    with pytest.raises(AsmilError, match=r"a\.tif.*JPEG 2000") as refused:
        open_slide(pyramid)
    assert "damaged" not in str(refused.value)
