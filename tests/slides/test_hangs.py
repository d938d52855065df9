"""Files that readers would wait for, or follow, for ever."""

import os
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
import tifffile

from asmil.cohort.features import inspect_features
from asmil.cohort.source import FeatureSource
from asmil.errors import AsmilError
from asmil.slides.annotations import find_annotations, read_annotations, read_mask
from asmil.slides.discovery import find_slides
from asmil.slides.encoders.state import read_state
from asmil.slides.opening import open_slide
from tiff_writers import noise_image, write_slide


def make_loop(path: Path, bigtiff: bool, target: int) -> None:
    """Let the last page be followed by the one of this number."""
    with tifffile.TiffFile(path) as tiff:
        offsets, last, order = [page.offset for page in tiff.pages], tiff.pages[-1], tiff.byteorder
        tags = len(last.tags)
    place = offsets[-1] + (8 + 20 * tags if bigtiff else 2 + 12 * tags)
    content = bytearray(path.read_bytes())
    struct.pack_into(order + ("Q" if bigtiff else "I"), content, place, offsets[target])
    path.write_bytes(content)


@pytest.mark.parametrize("bigtiff", [False, True])
@pytest.mark.parametrize("target", [0, -1])
@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_pages_that_lead_back_are_refused(tmp_path, bigtiff: bool, target: int, byteorder: str):
    path = tmp_path / "loop.tif"
    with tifffile.TiffWriter(path, bigtiff=bigtiff, byteorder=byteorder) as tiff:
        for _ in range(3):
            tiff.write(noise_image(256, 256), tile=(128, 128), photometric="rgb")
    make_loop(path, bigtiff, target)
    with pytest.raises(AsmilError, match=r"loop\.tif"):
        open_slide(path)


def test_a_mask_whose_pages_lead_back_is_refused(tmp_path):
    path = tmp_path / "mask.tif"
    tifffile.imwrite(path, np.zeros((64, 64), np.uint8))
    make_loop(path, False, 0)
    with pytest.raises(AsmilError, match=r"mask\.tif"):
        read_mask(path, None, (64, 64), 1.0)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.svs", open_slide),
        ("a.png", open_slide),
        ("a.csv", find_slides),
        ("a.xml", read_annotations),
        ("a.geojson", read_annotations),
        ("a.tif", lambda path: read_mask(path, None, (8, 8), 1.0)),
        ("a.pt", read_state),
        ("a.h5", lambda path: inspect_features(FeatureSource(path))),
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_neither_file_nor_folder_is_refused(tmp_path, monkeypatch, kind: str, name: str, read):
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    if kind == "pipe":
        os.mkfifo(name)
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
    with pytest.raises(AsmilError, match=name):
        read(Path(name))


def test_a_pipe_among_slides_is_told_by_the_one_who_opens_it(tmp_path):
    write_slide(tmp_path / "good.tif", noise_image(64, 64))
    os.mkfifo(tmp_path / "pipe.svs")
    assert [slide.name for slide in find_slides(tmp_path)] == ["good", "pipe"]


def test_links_in_a_circle_among_annotations(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.xml").write_text("<Annotations/>")
    for number in range(4):
        (tmp_path / "one" / f"up-{number}").symlink_to(tmp_path)
        (tmp_path / f"down-{number}").symlink_to(tmp_path / "one")
    found = find_annotations(tmp_path, ["a"])
    assert found.by_slide["a"].name == "a.xml"
    assert not found.clashing


def test_a_part_of_a_png_that_is_longer_than_the_file(tmp_path):
    import cv2

    path = tmp_path / "torn.png"
    assert cv2.imwrite(str(path), noise_image(64, 64))
    open_slide(path).close()
    content = bytearray(path.read_bytes())
    content[33:37] = b"\xfe\x00\x30\x00"  # the length of the part after the header
    path.write_bytes(content)
    with pytest.raises(AsmilError, match=r"torn\.png"):
        open_slide(path)
