"""STAMP extracts features: slides, output folder."""

import sys
from pathlib import Path

from drawn_encoder import TO_TENSOR, Pooled
from stamp.preprocessing import extract_
from stamp.preprocessing.extractor import Extractor

slides, out = map(Path, sys.argv[1:])
extract_(
    wsi_dir=slides,
    output_dir=out,
    wsi_list=None,
    cache_dir=None,
    cache_tiles_ext="jpg",
    extractor=Extractor(model=Pooled(), transform=TO_TENSOR, identifier="drawn"),
    tile_size_px=224,
    tile_size_um=112.0,
    max_workers=1,
    device="cpu",
    default_slide_mpp=None,
    brightness_cutoff=240,
    canny_cutoff=0.02,
    generate_hash=False,
)
