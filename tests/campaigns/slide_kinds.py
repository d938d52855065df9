"""Slides, annotations and weights of encoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import tifffile
import torch
from safetensors.torch import save_file

from asmil.slides.annotations import rasterize, read_annotations, read_mask, tumor_area
from asmil.slides.annotations.writing import write_asap, write_geojson
from asmil.slides.encoders.state import read_state, state_hash
from asmil.slides.opening import open_slide, require_resolution
from asmil.slides.overview import read_overview
from asmil.slides.pyramid_tiff import write_pyramid
from asmil.slides.qc import write_mask
from asmil.slides.settings import TissueConfig
from asmil.slides.tiling import TileReader
from asmil.slides.tissue.files import read_tissue
from asmil.slides.tissue.regions import Region
from tests.campaigns.kinds import Kind
from tests.slides.tiff_writers import smooth_image, write_ome_slide, write_slide

SIDE_PX = 256
PIXELS = smooth_image(SIDE_PX, SIDE_PX)
CORNERS = np.array([[0, 0], [128, 64], [200, 200]], dtype=np.int64)
RING = np.array([(0, 0), (100, 0), (100, 100), (0, 100)], dtype=np.int64)
HOLE = np.array([(40, 40), (60, 40), (60, 60), (40, 60)], dtype=np.int64)
APERIO = "Aperio Image Library v12.0.0\r\n256x256 [0,0 256x256] (128x128) JPEG/RGB Q=70|AppMag = 40|MPP = 0.25"


def _read_slide(path: Path) -> Any:
    image = open_slide(path)
    try:
        resolution = require_resolution(image)
        tiles = TileReader(image, 96, 48).read(CORNERS)
        return image.size, image.level_sizes, resolution, tiles, read_overview(image, max_side=64).pixels
    finally:
        image.close()


def _slide(name: str, file: str, make: Callable[[Path], Any], form: str = "tiff") -> Kind:
    return Kind(
        f"slide {name}", file, form, lambda folder: make(folder / file), lambda folder: _read_slide(folder / file)
    )


def _picture(path: Path) -> None:
    cv2.imwrite(str(path), PIXELS)


def _read_picture(path: Path) -> Any:
    image = open_slide(path, mpp=1.0)
    try:
        return image.size, TileReader(image, 96, 48).read(CORNERS)
    finally:
        image.close()


def _read_outlines(path: Path) -> Any:
    annotations = read_annotations(path)
    area = tumor_area(annotations)
    return area.tumor, annotations.notes, rasterize(area.shape, (40, 40), 4.0)


def _outlines(name: str, file: str, form: str, write: Callable[[Path], Any]) -> Kind:
    return Kind(
        f"annotations {name}",
        file,
        form,
        lambda folder: write(folder / file),
        lambda folder: _read_outlines(folder / file),
    )


def _regions() -> list[Region]:
    return [Region(RING, (HOLE,)), Region(RING + 120, ())]


def _aperio(path: Path) -> None:
    vertices = "".join(f'<Vertex X="{x}" Y="{y}" Z="0"/>' for x, y in RING.tolist())
    region = f'<Region Id="1" NegativeROA="0"><Vertices>{vertices}</Vertices></Region>'
    path.write_text(
        f'<Annotations MicronsPerPixel="0.25"><Annotation Id="1" Name="Tumor"><Regions>{region}</Regions>'
        "</Annotation></Annotations>\n"
    )


def _ncrf(path: Path) -> None:
    outlines = {"positive": [{"name": "a", "vertices": RING.tolist()}]}
    path.write_text(json.dumps({**outlines, "negative": [{"name": "b", "vertices": HOLE.tolist()}]}))


def _mask(path: Path) -> None:
    mask = np.zeros((SIDE_PX, SIDE_PX), np.uint8)
    mask[50:150, 20:90] = 255
    tifffile.imwrite(path, mask, tile=(64, 64), compression="zlib")


def _tissue(name: str, file: str, form: str, write: Callable[[Path], Any]) -> Kind:
    def make(folder: Path) -> None:
        write_slide(folder / "s7.tif", PIXELS)
        write(folder / file)

    def read(folder: Path) -> Any:
        with open_slide(folder / "s7.tif") as image:
            tissue = read_tissue(image, TissueConfig(method="files", mpp=2.0), folder / file)
        return tissue.mask, tissue.regions, tissue.notes

    return Kind(f"tissue {name}", file, form, make, read)


def _png_mask(path: Path) -> None:
    mask = np.zeros((SIDE_PX, SIDE_PX), np.bool_)
    mask[50:150, 20:90] = True
    write_mask(path, mask)


def _state() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {f"layer{n}.weight": torch.randn(8, 4, generator=draw) for n in range(3)}


def _weights(suffix: str, form: str, write: Callable[[Path], Any]) -> Kind:
    def read(folder: Path) -> Any:
        state = read_state(folder / f"weights{suffix}")
        return state, state_hash(state)

    return Kind(f"weights {form}", f"weights{suffix}", form, lambda folder: write(folder / f"weights{suffix}"), read)


KINDS = (
    _slide("tiled", "s7.tif", lambda path: write_slide(path, PIXELS, compression="zlib")),
    _slide("pyramid", "s7.tif", lambda path: write_slide(path, PIXELS, factors=(1, 2), tile_px=64)),
    _slide("own pyramid", "s7.tif", lambda path: write_pyramid(path, PIXELS, 0.25, downsamples=(2,))),
    _slide("strips", "s7.tif", lambda path: write_slide(path, PIXELS, tile_px=None, compression="lzw")),
    _slide("ome", "s7.ome.tif", lambda path: write_ome_slide(path, PIXELS, factors=(1, 2), tile_px=64)),
    _slide(
        "svs",
        "s7.svs",
        lambda path: write_slide(path, PIXELS, compression="jpeg", description=APERIO, metadata=None, software=False),
    ),
    Kind(
        "picture png",
        "s7.png",
        "picture",
        lambda folder: _picture(folder / "s7.png"),
        lambda folder: _read_picture(folder / "s7.png"),
    ),
    Kind(
        "picture jpeg",
        "s7.jpg",
        "picture",
        lambda folder: _picture(folder / "s7.jpg"),
        lambda folder: _read_picture(folder / "s7.jpg"),
    ),
    _outlines("asap", "s7.xml", "xml", lambda path: write_asap(path, _regions(), "tumor")),
    _outlines("geojson", "s7.geojson", "outlines", lambda path: write_geojson(path, _regions(), "tumor")),
    _outlines("aperio", "s7.xml", "xml", _aperio),
    _outlines("ncrf", "s7.json", "json", _ncrf),
    Kind(
        "annotations mask",
        "s7.tif",
        "tiff",
        lambda folder: _mask(folder / "s7.tif"),
        lambda folder: read_mask(folder / "s7.tif", (SIDE_PX, SIDE_PX), (64, 64), 4.0),
    ),
    _tissue("outlines", "s7.geojson", "outlines", lambda path: write_geojson(path, _regions(), "Tissue")),
    _tissue("mask", "s7.png", "picture", _png_mask),
    _weights(".safetensors", "safetensors", lambda path: save_file(_state(), path)),
    _weights(".pt", "torch", lambda path: torch.save(_state(), path)),
)
