"""Microns per pixel: who is believed, in which order."""

import numpy as np
import pytest
import tifffile

from asmil.slides.image import Resolution
from asmil.slides.opening import open_slide
from asmil.slides.resolution import from_ome, from_pixels_per_unit, from_properties, resolution_notes
from tiff_writers import write_slide

ALL = {
    "openslide.mpp-x": "0.25",
    "openslide.mpp-y": "0.26",
    "aperio.MPP": "0.3",
    "tiff.XResolution": "25000",
    "tiff.YResolution": "25000",
    "tiff.ResolutionUnit": "centimeter",
    "openslide.objective-power": "20",
}


@pytest.mark.parametrize(
    ("absent", "mpp_x", "mpp_y", "source"),
    [
        ("", 0.25, 0.26, "openslide"),
        ("openslide.mpp", 0.3, 0.3, "aperio.MPP"),
        ("openslide.mpp aperio", 0.4, 0.4, "tiff"),
        ("openslide.mpp aperio tiff", 0.5, 0.5, "objective power 20 (guess)"),
    ],
)
def test_the_order(absent, mpp_x, mpp_y, source):
    told = {key: text for key, text in ALL.items() if not key.startswith(tuple(absent.split() or ["-"]))}
    assert from_properties(told) == Resolution(mpp_x, mpp_y, source)


def test_nothing_told():
    assert from_properties({"openslide.vendor": "aperio"}) is None


@pytest.mark.parametrize("text", ["0,2505", " 0.2505 "])
def test_decimal_commas_and_blanks(text):
    assert from_properties({"aperio.MPP": text}) == Resolution(0.2505, 0.2505, "aperio.MPP")


@pytest.mark.parametrize("text", ["", "unknown", "nan", "inf", "-0.25", "0", "353", "0.001"])
def test_what_no_scanner_means(text):
    assert from_properties({"openslide.mpp-x": text, "aperio.AppMag": "40"}).source == "objective power 40 (guess)"


@pytest.mark.parametrize(
    ("pixels", "unit", "mpp"),
    [
        (101_600, "inch", 0.25),
        (40_000, "CENTIMETER", 0.25),
        *((dpi, "inch", None) for dpi in (1, 72, 96, 300, 600)),
        (1, "centimeter", None),
        (40_000, "none", None),
        (0, "inch", None),
        (None, "inch", None),
    ],
)
def test_tiff_resolution(pixels, unit, mpp):
    found = from_pixels_per_unit(pixels, pixels, unit)
    assert (found and found.mpp) == (mpp and pytest.approx(mpp))


@pytest.mark.parametrize(
    ("attributes", "mpp"),
    [
        ('PhysicalSizeX="0.25" PhysicalSizeY="0.25"', 0.25),
        ('PhysicalSizeX="250" PhysicalSizeXUnit="nm"', 0.25),
        ('PhysicalSizeX="0.00025" PhysicalSizeXUnit="mm"', 0.25),
        ('PhysicalSizeX="0.25" PhysicalSizeXUnit="pixel"', None),
        ('PhysicalSizeX="1000"', None),
        ("", None),
    ],
)
def test_ome(attributes, mpp):
    space = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
    found = from_ome(f'<OME xmlns="{space}"><Image><Pixels {attributes}/></Image></OME>')
    assert (found and found.mpp) == (mpp and pytest.approx(mpp))
    power = f'<OME xmlns="{space}"><Instrument><Objective NominalMagnification="40"/></Instrument>'
    assert from_ome(f"{power}<Image><Pixels/></Image></OME>").source == "objective power 40 (guess)"
    assert from_ome("<OME") is None


def test_notes():
    assert resolution_notes(Resolution(0.25, 0.254, "openslide")) == ()
    assert "0.26 um" in resolution_notes(Resolution(0.25, 0.26, "openslide"))[0]
    assert "power 20" in resolution_notes(Resolution(0.5, 0.5, "objective power 20 (guess)"))[0]
    assert "250 um/px" in resolution_notes(Resolution(250, 250, "given"))[0]


def test_the_user_wins(tmp_path):
    path = write_slide(tmp_path / "a.tif", np.zeros((130, 130, 3), np.uint8), mpp=0.25)
    with open_slide(path) as image:
        assert image.resolution.mpp == pytest.approx(0.25)
    with open_slide(path, mpp=0.4) as image:
        assert image.resolution == Resolution(0.4, 0.4, "given")


def test_image_programs(tmp_path):
    pixels = np.zeros((130, 130, 3), np.uint8)
    tifffile.imwrite(tmp_path / "dpi.tif", pixels, resolution=(72, 72), resolutionunit="INCH")
    tifffile.imwrite(tmp_path / "fiji.tif", pixels, imagej=True, resolution=(2, 2), metadata={"unit": "um"})
    with open_slide(tmp_path / "dpi.tif") as image:
        assert image.resolution is None
    with open_slide(tmp_path / "fiji.tif") as image:
        assert image.resolution.mpp == pytest.approx(0.5)
