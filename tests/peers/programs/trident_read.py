"""TRIDENT encodes a slide from a feature file: slide, features, output folder; prints the file that it wrote."""

import sys

from trident import load_wsi
from trident.slide_encoder_models.load import encoder_factory

slide, features, out = sys.argv[1:]
encoder = encoder_factory("mean-resnet50")
with load_wsi(slide_path=slide, lazy_init=False) as wsi:
    print(wsi.extract_slide_features(features, encoder, out, device="cpu"))
