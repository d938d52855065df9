"""LazySlide finds tissue, tiles and extracts features: slide, output folder; writes a Zarr store and AnnData."""

import sys
from pathlib import Path

import lazyslide
from drawn_encoder import TO_TENSOR, Pooled
from PIL import Image
from wsidata import open_wsi

slide, out = map(Path, sys.argv[1:])
out.mkdir(parents=True, exist_ok=True)
wsi = open_wsi(str(slide), store=str(out / f"{slide.stem}.zarr"))
lazyslide.pp.find_tissues(wsi)
lazyslide.pp.tile_tissues(wsi, 128, mpp=0.5)
lazyslide.tl.feature_extraction(
    wsi,
    Pooled(),
    model_name="drawn",
    transform=lambda tile: TO_TENSOR(Image.fromarray(tile)),
    device="cpu",
    num_workers=0,
    amp=False,
)
wsi.fetch.features_anndata("drawn").write_h5ad(out / f"{slide.stem}.h5ad")
wsi.write()
